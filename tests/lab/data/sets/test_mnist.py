"""MNIST from IDX files: read back, from every layout and root."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.lab.data.miniatures import FILES, check

from drcl.lab.data import MissingData, load


def test_reads_back_what_was_written(mnist: tuple[Path, list[np.ndarray]]) -> None:
    data = load("mnist")
    check(data, mnist[1])
    assert data.train.images.dtype == np.uint8
    assert data.train.labels.dtype == np.int64
    assert data.classes == tuple("0123456789")
    assert not data.synthetic
    assert data.train.images.flags.writeable  # torch.from_numpy warns otherwise


def test_an_explicit_root_wins_over_the_environment(
    mnist: tuple[Path, list[np.ndarray]], root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRCL_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(MissingData, match="drcl data fetch mnist"):
        load("mnist")
    check(load("mnist", root), mnist[1])


def test_a_missing_file_means_the_set_is_missing(mnist: tuple[Path, list[np.ndarray]]) -> None:
    (mnist[0] / FILES[3]).unlink()
    with pytest.raises(MissingData, match=r"fetch mnist`, or by hand: get .* put it into .*mnist\."):
        load("mnist")
