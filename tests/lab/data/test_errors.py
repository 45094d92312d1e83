"""The two ways a data set can disappoint."""

from __future__ import annotations

from drcl.lab.data import DataError, MissingData


def test_both_are_what_callers_catch() -> None:
    assert issubclass(DataError, ValueError)
    assert issubclass(MissingData, DataError)
    assert issubclass(MissingData, FileNotFoundError)
    assert str(MissingData("where to get it")) == "where to get it"
