"""The two errors of data sets: a set is missing, or it is not what it should be."""

from __future__ import annotations


class DataError(ValueError):
    """A file, archive or option is not what the data set needs; the message names it and the remedy."""


class MissingData(DataError, FileNotFoundError):
    """The data set is not in the data folder; the message says how to get it and where to put it."""
