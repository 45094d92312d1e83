"""numpy's files, read as far as their bytes really go. Hostile ones are tried in test_hostile_arrays.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from drcl.lab.data import DataError
from drcl.lab.data.formats.npy import map_npy, read_npy, read_npz

ARRAYS = {
    "bytes": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "text": np.array(["ant", "bee"]),
    "one value": np.array(3.5),
    "big end first": np.arange(5, dtype=">i4"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_it_reads_what_numpy_reads(tmp_path: Path, name: str) -> None:
    np.save(tmp_path / "a.npy", ARRAYS[name])
    found, expected = read_npy(tmp_path / "a.npy"), np.load(tmp_path / "a.npy")
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype
    assert found.flags.writeable


def test_the_first_rows_alone(tmp_path: Path) -> None:
    for name in ("bytes", "columns first"):
        np.save(tmp_path / "a.npy", ARRAYS[name])
        np.testing.assert_array_equal(read_npy(tmp_path / "a.npy", rows=1), ARRAYS[name][:1])
        np.testing.assert_array_equal(read_npy(tmp_path / "a.npy", rows=9), ARRAYS[name])


def test_a_map_leaves_the_file_alone(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ARRAYS["bytes"])
    before = (tmp_path / "a.npy").read_bytes()
    found = map_npy(tmp_path / "a.npy")
    np.testing.assert_array_equal(found, ARRAYS["bytes"])
    found[0] = 77
    assert (tmp_path / "a.npy").read_bytes() == before


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_is_read_as_far_as_wanted(tmp_path: Path, save) -> None:
    save(tmp_path / "a.npz", **ARRAYS)
    arrays, names = read_npz(tmp_path / "a.npz", {"bytes"})
    assert list(arrays) == ["bytes"]
    assert names == list(ARRAYS)
    everything, _ = read_npz(tmp_path / "a.npz")
    for name, expected in ARRAYS.items():
        np.testing.assert_array_equal(everything[name], expected)


def test_a_header_that_its_bytes_contradict_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ARRAYS["bytes"])
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
    with pytest.raises(DataError, match=r"it announces uint8 2x3x4 = 24 bytes but holds 23; fetch it again"):
        read_npy(tmp_path / "a.npy")
    np.save(tmp_path / "b.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(DataError, match="holds a pickle, and opening a pickle can run code"):
        read_npy(tmp_path / "b.npy")
