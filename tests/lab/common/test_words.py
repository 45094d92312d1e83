"""Durations, shares and exceptions in words."""

from __future__ import annotations

import math
import unicodedata

import pytest

from drcl.lab.common.words import clean, clean_tree, clock, percent, reason


def test_words():
    assert [clock(s) for s in (0.04, 8.24, 59.97, 65, 7380)] == ["0.0 s", "8.2 s", "1:00 min", "1:05 min", "2:03 h"]
    assert [percent(v) for v in (0.1234, 1.0, math.nan)] == ["12.3 %", "100.0 %", "–"]
    assert reason(FileNotFoundError(2, "No such file", "x.toml")) == "x.toml: No such file"
    assert reason(KeyError("tasks")) == "tasks"
    assert reason(ValueError("a\n  b")) == "a b"
    assert reason(ValueError()) == "ValueError"


def test_no_control_character_is_left_and_plain_text_is_as_it_was():
    every = "".join(map(chr, range(0x11000)))
    left = {c for c in clean(every) if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")}
    assert left == set()
    assert clean("a\x1b[31mb\x9b\u202e\ud800") == "a\\x1b[31mb\\x9b\\u202e\\ud800"
    assert clean("a\nb\tc\r", keep="\n\t") == "a\nb\tc\\x0d"
    for plain in ("drcl · seed 0", "Größe – ±", "置信", "emoji 🙂"):
        assert clean(plain) == plain
        assert clean(clean(plain)) == plain


def test_a_tree_is_clean_to_its_last_leaf_and_not_deeper_than_one_reads():
    tree = {"a\x1b": ["b\x00", {"c": "d\x07"}, 1, None, 0.5, True]}
    assert clean_tree(tree) == {"a\\x1b": ["b\\x00", {"c": "d\\x07"}, 1, None, 0.5, True]}
    deep: object = 1
    for _ in range(400):
        deep = [deep]
    with pytest.raises(ValueError, match="nested more than 50 deep"):
        clean_tree(deep)
