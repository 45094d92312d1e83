"""Options by name: text becomes a value, and every option says what it does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from drcl.lab import methods
from drcl.lab.common import fields as options
from drcl.lab.training.settings import Training


def test_options_carry_help():
    for cls in (Training, *map(methods.get, methods.names())):
        for row in options.table(cls):
            assert row["help"], (cls, row)
            assert row["kind"]


plain = st.one_of(st.integers(-(2**40), 2**40), st.floats(allow_nan=False), st.booleans(), st.none())


@settings(max_examples=60, deadline=None)
@given(plain)
def test_a_value_written_out_reads_back(value):
    word = {bool: str(value).lower(), type(None): "none"}.get(type(value), repr(value))
    got = options.convert("x", word, int | float | bool | None)
    assert got == value
    assert type(got) is type(value)


@settings(max_examples=60, deadline=None)
@given(st.text())
def test_any_text_is_text_where_text_is_wanted(text):
    assert options.convert("x", text, str) == text or options.read(text) == options.convert("x", text, str)
