"""Fashion-MNIST: 60,000 + 10,000 pictures of clothes, a drop-in for MNIST (Zalando Research)."""

from __future__ import annotations

from pathlib import Path

from drcl.lab.data.base import DataSet
from drcl.lab.data.formats import mnist_like
from drcl.lab.data.registry import data_set
from drcl.lab.data.sources import Debian, Download

LAYOUTS = ("raw", "FashionMNIST/raw")
ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


@data_set(
    "fashion-mnist",
    "clothes",
    classes="10",
    images="70,000",
    size="28x28",
    present=lambda root: mnist_like.present(root, "fashion-mnist", *LAYOUTS),
    sources=(
        Download({f"{file}.gz": f"{ADDRESS}/{file}.gz" for file in mnist_like.FILES}),
        Debian("dataset-fashion-mnist", keep="usr/share/datasets/fashion-mnist"),
    ),
    hashes={
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    counts={"train": 60_000, "test": 10_000},
    wanted="get train-images-idx3-ubyte.gz and its three companions from "
    "https://github.com/zalandoresearch/fashion-mnist",
)
def fashion_mnist(root: Path) -> DataSet:
    """Images [N, 1, 28, 28], clothes bright on black."""
    return mnist_like.read(root, "fashion-mnist", CLASSES, *LAYOUTS)
