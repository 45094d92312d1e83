"""Miniature data sets in the data folder, and sources to fetch one from."""

from __future__ import annotations

import gzip
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from tests.lab.data.miniatures import FILES, leaf_json

from drcl.lab.data import registry
from drcl.lab.data.registry import entry
from drcl.lab.data.sources import Debian, Download, Npm


@pytest.fixture
def mnist(root: Path, idx: Callable, pixels: Callable) -> tuple[Path, list[np.ndarray]]:
    arrays = [pixels(7, 28, 28), np.arange(7) % 10, pixels(3, 28, 28, seed=1), np.array([9, 0, 5])]
    (root / "mnist").mkdir()
    for name, array in zip(FILES, arrays, strict=True):
        (root / "mnist" / name).write_bytes(idx(array))
    return root / "mnist", arrays


@pytest.fixture
def femnist(root: Path) -> Path:
    home = root / "leaf-femnist"
    (home / "train").mkdir(parents=True)
    (home / "test").mkdir()
    white = [1.0] * 784
    inked = [0.0, 128 / 255] + [1.0] * 782
    (home / "train" / "all_data_0.json").write_text(leaf_json({"f0002_33": ([white, inked], [0, 61])}))
    (home / "train" / "all_data_1.json").write_text(leaf_json({"f0001_12": ([inked], [10])}))
    (home / "test" / "all_data_0.json").write_text(leaf_json({"f0002_33": ([white], [36])}))
    return home


@pytest.fixture
def arrays(pixels: Callable) -> dict[str, np.ndarray]:
    return {
        "train_images": pixels(6, 12, 10, 3),
        "train_labels": np.array([0, 1, 2, 0, 1, 2], np.uint8),
        "test_images": pixels(3, 12, 10, 3, seed=1),
        "test_labels": np.array([2, 1, 0], np.int16),
        "classes": np.array(["ant", "bee", "cat"]),
    }


@pytest.fixture
def folder(root: Path, picture: Callable) -> Path:
    for part, count in (("train", 6), ("test", 2)):
        for i in range(count):
            picture(root / "own" / part / ("cats", "dogs")[i % 2] / f"{i}.png", (i, 10 * i, 100), (9, 9))
    return root / "own"


@pytest.fixture
def content(idx: Callable, pixels: Callable) -> dict[str, bytes]:
    arrays = (pixels(5, 28, 28), np.arange(5), pixels(2, 28, 28, seed=1), np.arange(2))
    return {name: idx(array) for name, array in zip(FILES, arrays, strict=True)}


@pytest.fixture
def small(content: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Callable:
    """MNIST with other sources and the miniature's own sums."""
    entry("mnist")
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}

    def use(*sources: Download | Npm | Debian) -> None:
        changed = replace(entry("mnist"), sources=sources, hashes=sums, counts={"train": 5, "test": 2})
        monkeypatch.setitem(registry.ENTRIES.ours, "mnist", changed)

    return use


@pytest.fixture
def site(tmp_path: Path, content: dict[str, bytes]) -> Iterator[tuple[str, Path]]:
    """A web server with the four gzipped files."""
    folder = tmp_path / "site"
    folder.mkdir()
    for name, data in content.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(data))

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that comes first in PATH, for programs that stand in for npm and apt-get."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder
