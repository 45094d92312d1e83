"""One sentence about the file, whatever its parser trips over. Whole files are tried in test_hostile_*.py."""

from __future__ import annotations

import errno
import json

import pytest

from drcl.lab.data import DataError, MissingData
from drcl.lab.data.guard import reading, short


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("it\nends early"), "a.json is no JSON (it ends early); get it again."),
        (KeyError("users"), "a.json is no JSON; get it again."),  # words about the parser, not about the file
        (MemoryError(), "a.json needs more memory than there is; get it again, or use a machine with more."),
        (OSError(errno.ENOSPC, "No space left"), "a.json does not fit on the disk (No space left); make room there."),
        (PermissionError(errno.EACCES, "Permission denied"), "a.json cannot be read (Permission denied)."),
    ],
)
def test_every_error_becomes_a_sentence(error, sentence):
    with pytest.raises(DataError) as told, reading("a.json", "is no JSON"):
        raise error
    assert str(told.value) == sentence
    assert told.value.__cause__ is error


def test_a_sentence_that_is_one_already_stays_and_no_error_is_none():
    with pytest.raises(MissingData, match=r"^where to get it$"), reading("a.json", "is no JSON"):
        raise MissingData("where to get it")
    with pytest.raises(KeyboardInterrupt), reading("a.json", "is no JSON"):
        raise KeyboardInterrupt
    with reading("a.json", "is no JSON", remedy="write it anew"):
        assert json.loads("[1]") == [1]


def test_long_texts_are_cut():
    assert short("x" * 160) == "x" * 160
    assert short("x" * 161) == "x" * 160 + "..."
