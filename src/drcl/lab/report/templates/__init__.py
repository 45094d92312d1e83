"""The page of a report: its HTML template and its style, as package data."""
