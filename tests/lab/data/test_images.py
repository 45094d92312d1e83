"""Decoding once, keeping the result, and mapping it from disk when it is larger than the budget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from drcl.lab.data import DataError, images, load


def test_more_than_the_budget_is_mapped(folder: Path, root: Path) -> None:
    data = load("folder", path=folder, budget=1000)  # 6 x 243 bytes against 1,000; 2 x 243 fit
    assert isinstance(data.train.images, np.memmap)
    assert not isinstance(data.test.images, np.memmap)
    np.testing.assert_array_equal(data.train.images, load("folder", path=folder).train.images)
    assert len(list((root / ".drcl" / "decoded").glob("*.npy"))) == 1
    data.train.images[0] = 77  # the map is copy-on-write, so the kept file is safe
    assert load("folder", path=folder, budget=1000).train.images[0].max() == 100


def test_decoding_happens_once(folder: Path, monkeypatch: pytest.MonkeyPatch, picture: Callable) -> None:
    monkeypatch.setattr(images, "WORTH_KEEPING", 1)
    calls: list[Path] = []
    real = images.decode

    def counted(path: Path, *rest: object) -> np.ndarray:
        calls.append(path)
        return real(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(images, "decode", counted)
    first = load("folder", path=folder)
    assert len(calls) == 8 + 2  # each once, and the first of each part also for its shape
    calls.clear()
    second = load("folder", path=folder)
    assert len(calls) == 2
    np.testing.assert_array_equal(first.train.images, second.train.images)
    picture(folder / "train" / "cats" / "0.png", (255, 255, 255), (9, 9))  # a changed file is noticed
    assert load("folder", path=folder).train.images[0].min() == 255


def test_a_failed_decoding_leaves_nothing(folder: Path, root: Path) -> None:
    (folder / "train" / "dogs" / "5.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"5.png is not a readable picture"):
        load("folder", path=folder, budget=1000)
    assert [path.suffix for path in (root / ".drcl" / "decoded").iterdir()] == [".lock"]


def test_a_read_only_data_folder_uses_the_users_cache(
    folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(images.os, "access", lambda path, mode: Path(path) != root)
    monkeypatch.setattr(images, "default_folder", lambda: tmp_path / "cache" / "drcl" / "data")
    assert isinstance(load("folder", path=folder, budget=1000).train.images, np.memmap)
    assert not (root / ".drcl").exists()
    assert list((tmp_path / "cache").rglob("*.npy"))


def test_pictures_of_different_sizes_need_a_size(folder: Path, picture: Callable) -> None:
    picture(folder / "train" / "cats" / "0.png", (1, 2, 3), (20, 10))
    with pytest.raises(DataError, match=r"is 9x9 but .* is 20x10; give size="):
        load("folder", path=folder)
    assert load("folder", path=folder, size=8).train.images.shape == (6, 3, 8, 8)
    with pytest.raises(DataError, match="size=0 must be at least 1"):
        load("folder", path=folder, size=0)
