"""Data sets whose fetching and unpacking is killed: miniatures behind addresses, or as archives put there by hand."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.attack import data_miniatures as miniatures
from tests.attack.data_worker import fingerprint
from tests.attack.kill_points import Points

from drcl.lab.data import DataSet
from drcl.lab.data.sources import Download, Source


@dataclass(frozen=True)
class Case:
    """A data set, what its publisher offers, and where someone has put the archive by hand."""

    name: str
    build: Callable[[Path], None]
    sources: tuple[Source, ...] = ()
    by_hand: str | None = None  # a folder of the data folder


def packed(build: Callable[[Path], None], **archives: str) -> Callable[[Path], None]:
    """A folder with archives; each holds what lies in one folder of the miniature, under its name."""

    def make(folder: Path) -> None:
        build(folder)
        contents = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
        miniatures.clear(folder)
        for archive, home in archives.items():
            top = (folder / home).parent
            inside = {p.relative_to(top).as_posix(): c for p, c in contents.items() if p.is_relative_to(folder / home)}
            miniatures.write(folder / archive, miniatures.PACKERS["zip" if archive.endswith("zip") else "gz"](inside))

    return make


def mnist(folder: Path) -> None:
    miniatures.idx_set(folder, "", miniatures.MNIST, packed=True)


def cifar10(folder: Path) -> None:
    miniatures.cifar10(folder)
    (folder / "cifar10").rename(folder / "cifar-10-batches-bin")


def at(*files: str) -> tuple[Source, ...]:
    return (Download({file: f"http://address.test/{file}" for file in files}),)


TINY = packed(miniatures.tinyimagenet, **{"tiny-imagenet-200.zip": "tiny-imagenet-200"})
PARTS = ("images_background", "images_evaluation")
OMNIGLOT = packed(miniatures.omniglot, **{f"{part}.zip": f"omniglot/{part}" for part in PARTS})
CIFAR = packed(cifar10, **{"cifar-10-binary.tar.gz": "cifar-10-batches-bin"})
CASES = {
    "four files": Case("mnist", mnist, at(*(f"{name}.gz" for name in miniatures.MNIST))),
    "a tar file": Case("cifar10", CIFAR, at("cifar-10-binary.tar.gz")),
    "a zip file": Case("tinyimagenet", TINY, at("tiny-imagenet-200.zip")),
    "two zip files": Case("omniglot", OMNIGLOT, at(*(f"{part}.zip" for part in PARTS))),
    "a tar file by hand": Case("cifar10", CIFAR, by_hand="cifar10"),
    "a zip file by hand": Case("tinyimagenet", TINY, by_hand=""),
    "a zip file by hand inside": Case("tinyimagenet", TINY, by_hand="tinyimagenet"),
    "two zip files by hand inside": Case("omniglot", OMNIGLOT, by_hand="omniglot"),
}


class Answer(io.BytesIO):
    """What an address answers, in small pieces; every piece is a place to be killed at."""

    def __init__(self, path: Path, points: Points) -> None:
        super().__init__(path.read_bytes())
        self.headers = {"Content-Length": str(path.stat().st_size)}
        self.points = points

    def read(self, size: int | None = -1) -> bytes:
        return self.points.passing("read a piece", lambda: super(Answer, self).read(max(1, len(self.getbuffer()) // 3)))


def seen(data: DataSet) -> dict[str, Any]:
    """What a caller gets, as a sum."""
    return {"fingerprint": fingerprint(data)}
