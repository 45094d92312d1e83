"""CIFAR-100: 50,000 + 10,000 colour pictures of 32x32, 100 fine classes in 20 coarse ones (Krizhevsky)."""

from __future__ import annotations

from pathlib import Path

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.errors import DataError
from drcl.lab.data.files import read_lines
from drcl.lab.data.folder import find, need, places
from drcl.lab.data.formats.cifar import PICKLED, check_labels, read_batches
from drcl.lab.data.registry import data_set
from drcl.lab.data.sources import Download

LAYOUT = "cifar-100-binary"
ARCHIVE = "cifar-100-binary.tar.gz"
COARSE = (
    "aquatic_mammals",
    "fish",
    "flowers",
    "food_containers",
    "fruit_and_vegetables",
    "household_electrical_devices",
    "household_furniture",
    "insects",
    "large_carnivores",
    "large_man-made_outdoor_things",
    "large_natural_outdoor_scenes",
    "large_omnivores_and_herbivores",
    "medium_mammals",
    "non-insect_invertebrates",
    "people",
    "reptiles",
    "small_mammals",
    "trees",
    "vehicles_1",
    "vehicles_2",
)
SIZES = {"coarse": 20, "fine": 100}  # the order of the two label bytes of a row


def present(root: Path) -> bool:
    folders = places(root, "cifar100", LAYOUT)
    return all(find(folders, file) for file in ("train.bin", "test.bin"))


@data_set(
    "cifar100",
    "things, two levels",
    classes="100, 20",
    images="60,000",
    size="32x32",
    present=present,
    sources=(
        Download(
            {ARCHIVE: f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"},
            md5={ARCHIVE: "03b5dce01913d631647c71ecec9e9cb8"},
        ),
    ),
    archives={ARCHIVE: ""},
    refused={"cifar-100-python.tar.gz": PICKLED, "cifar-100-python": PICKLED},
    counts={"train": 50_000, "test": 10_000},
    wanted=f"get {ARCHIVE} (the binary version) from https://www.cs.toronto.edu/~kriz/cifar.html",
)
def cifar100(root: Path, labels: str = "fine") -> DataSet:
    """Images [N, 3, 32, 32] with ``labels="fine"`` (100 classes) or ``"coarse"`` (20 superclasses)."""
    if labels not in SIZES:
        raise DataError(f"labels={labels!r} is not one of cifar100's: fine, coarse.")
    folders = places(root, "cifar100", LAYOUT)
    column = list(SIZES).index(labels)
    splits = []
    for file in ("train.bin", "test.bin"):
        path = need(folders, "cifar100", file)
        images, both = read_batches([path], label_bytes=2)
        levels = [check_labels(both[:, i], count, path) for i, count in enumerate(SIZES.values())]
        splits.append(Split(images, levels[column]))
    return DataSet("cifar100", splits[0], splits[1], _names(folders, labels))


def _names(folders: list[Path], labels: str) -> tuple[str, ...]:
    path = find(folders, f"{labels}_label_names.txt")
    if path is None:
        return COARSE if labels == "coarse" else tuple(f"fine {i}" for i in range(SIZES[labels]))
    names = tuple(read_lines(path))
    if len(names) != SIZES[labels]:
        raise DataError(f"{path} has {len(names)} names, cifar100 has {SIZES[labels]} {labels} classes.")
    return names
