"""Coordinates in which weights do not interact: Kronecker factors, their eigenbasis, the proximal map there."""
