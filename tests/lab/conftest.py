"""Writers of miniature files in official formats, and a data folder of their own for every test."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from drcl.lab.common import plugins


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder that ``load`` and ``fetch`` use."""
    folder = tmp_path / "data folder"  # with a space, as users' folders have
    folder.mkdir()
    monkeypatch.setenv("DRCL_DATA", str(folder))
    return folder


@pytest.fixture
def idx() -> Callable[[np.ndarray], bytes]:
    """An array as the bytes of an IDX file."""

    def make(array: np.ndarray) -> bytes:
        return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()

    return make


@pytest.fixture
def pixels() -> Callable[..., np.ndarray]:
    """Random bytes of a shape, the same for the same seed."""

    def make(*shape: int, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)

    return make


@pytest.fixture
def picture() -> Callable[..., None]:
    """Write a one-colour picture; PNG keeps its bytes, JPEG nearly."""

    def make(path: Path, colour: tuple[int, int, int] | int, size: tuple[int, int] = (64, 64)) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(path)

    return make


@pytest.fixture
def unregistered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test loads and registers is gone afterwards."""
    for name in ("_digests", "_supplied", "_versions"):
        monkeypatch.setattr(plugins, name, {})
    monkeypatch.setattr(plugins, "_roots", set())
    monkeypatch.setattr(sys, "path", list(sys.path))
    back = [remember() for remember in plugins.SNAPSHOTS]
    yield
    for undo in back:
        undo()
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
