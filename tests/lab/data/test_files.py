"""Reading one file whole, packed or not, and never more than was agreed."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from drcl.lab.data import DataError
from drcl.lab.data.files import read_bytes, read_lines


def test_packed_or_not_the_content_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"abc" * 100)
    (tmp_path / "packed").write_bytes(gzip.compress(b"abc" * 100))  # by its first bytes, not by its name
    assert read_bytes(tmp_path / "plain") == read_bytes(tmp_path / "packed") == b"abc" * 100
    (tmp_path / "empty").write_bytes(b"")
    assert read_bytes(tmp_path / "empty") == b""


def test_a_small_file_cannot_become_a_huge_one(tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(gzip.compress(bytes(100_000)))
    assert len(read_bytes(tmp_path / "bomb", limit=100_000)) == 100_000
    with pytest.raises(DataError, match="bomb unpacks to more than 99,999 bytes"):
        read_bytes(tmp_path / "bomb", limit=99_999)


def test_damage_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(gzip.compress(b"abc" * 1000)[:-9])
    with pytest.raises(DataError, match="cut is a damaged or truncated gzip file"):
        read_bytes(tmp_path / "cut")


def test_lines(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes("\ufeff one \r\n\n  zwei ä\n".encode())
    assert read_lines(tmp_path / "lines") == ["one", "zwei ä"]
    (tmp_path / "latin").write_bytes("ä".encode("latin-1"))
    with pytest.raises(DataError, match="should be a text file but is not UTF-8"):
        read_lines(tmp_path / "latin")
