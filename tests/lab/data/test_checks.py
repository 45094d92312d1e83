"""Is it really that data set? Sums, counts, and damage that came later."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.lab.data.miniatures import FILES, downloads, nothing_left

from drcl.lab.data import DataError, fetch, registry, verify
from drcl.lab.data.registry import entry


def test_wrong_content_is_not_accepted(
    root: Path, small: Callable, site: tuple[str, Path], content: dict[str, bytes]
) -> None:
    small(downloads(site[0]))
    changed = bytearray(content[FILES[0]])
    changed[100] ^= 1
    (site[1] / f"{FILES[0]}.gz").write_bytes(gzip.compress(bytes(changed)))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz has SHA-256 .* damaged or another"):
        fetch("mnist")
    assert nothing_left(root)


def test_counts_are_checked_where_no_sum_is_known(
    root: Path, small: Callable, site: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    small(downloads(site[0]))
    changed = replace(entry("mnist"), hashes={}, counts={"train": 60_000, "test": 10_000})
    monkeypatch.setitem(registry.ENTRIES.ours, "mnist", changed)
    with pytest.raises(DataError, match="should have 60,000 train images but has 5"):
        fetch("mnist")
    assert nothing_left(root)


def test_verify_notices_later_damage(
    root: Path, small: Callable, site: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    small(downloads(site[0]))
    fetch("mnist")
    path = root / "mnist" / f"{FILES[1]}.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), mtime=5))
    assert "4 files by SHA-256" in verify("mnist")  # packed anew, the content is still MNIST's
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1] + b"\x03"))
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte.gz has SHA-256"):
        verify("mnist")
    # Where no sum is known beforehand, the one noted when fetching counts.
    monkeypatch.setitem(registry.ENTRIES.ours, "mnist", replace(entry("mnist"), hashes={}))
    with pytest.raises(DataError, match="has changed since it was fetched"):
        verify("mnist")
