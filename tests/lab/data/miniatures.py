"""Miniatures of official files, and what stands in for web servers and package managers."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import numpy as np

from drcl.lab.data.sources import Download


def cifar_rows(labels: np.ndarray, images: np.ndarray) -> bytes:
    """Label bytes, then 1,024 red values, then green, then blue."""
    return b"".join(bytes(np.atleast_1d(y).tolist()) + x.tobytes() for y, x in zip(labels, images, strict=True))


def write_cifar10(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    folder.mkdir(parents=True)
    for i in range(5):
        part = slice(2 * i, 2 * i + 2)
        (folder / f"data_batch_{i + 1}.bin").write_bytes(cifar_rows(labels[part], images[part]))
    (folder / "test_batch.bin").write_bytes(cifar_rows(labels[10:], images[10:]))


FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def check(data: object, arrays: list[np.ndarray]) -> None:
    np.testing.assert_array_equal(data.train.images, arrays[0][:, None])  # type: ignore[attr-defined]
    np.testing.assert_array_equal(data.train.labels, arrays[1])  # type: ignore[attr-defined]
    np.testing.assert_array_equal(data.test.images, arrays[2][:, None])  # type: ignore[attr-defined]
    np.testing.assert_array_equal(data.test.labels, arrays[3])  # type: ignore[attr-defined]


def leaf_json(users: dict[str, tuple[list, list]]) -> str:
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    return json.dumps({"users": list(users), "num_samples": [len(y) for _, y in users.values()], "user_data": data})


def downloads(address: str) -> Download:
    return Download({f"{name}.gz": f"{address}/{name}.gz" for name in FILES})


def package(content: dict[str, bytes], path: Path, folder: str = "package/data") -> str:
    """Write an npm package with these files; return its SHA-256."""
    with tarfile.open(path, "w:gz") as archive:
        for name, data in {**{f"{folder}/{k}": v for k, v in content.items()}, "package/x.js": b"1"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fake(folder: Path, program: str, script: str) -> None:
    """An executable ``program`` in ``folder``."""
    folder.mkdir(exist_ok=True)
    path = folder / program
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def nothing_left(root: Path) -> bool:
    return not (root / "mnist").exists() and not list((root / ".drcl" / "staging").iterdir())


def colours(images: np.ndarray) -> list[tuple[int, ...]]:
    """The colour of each one-coloured picture."""
    return [tuple(int(v) for v in image[:, 0, 0]) for image in images]
