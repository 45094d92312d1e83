"""Data sets in their official layouts, one file each: ``load`` reads them, ``fetch`` gets them."""

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.checks import verify
from drcl.lab.data.errors import DataError, MissingData
from drcl.lab.data.fetch import fetch
from drcl.lab.data.folder import data_folder
from drcl.lab.data.loading import load, names

__all__ = ["DataError", "DataSet", "MissingData", "Split", "data_folder", "fetch", "load", "names", "verify"]
