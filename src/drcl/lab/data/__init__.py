"""Data sets in their official layouts, one file each."""
