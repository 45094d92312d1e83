"""ImageNet: class folders, official archives, and the 32x32 release."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.lab.data.miniatures import BLUE, GREEN, RED, colours

from drcl.lab.data import DataError, MissingData, load


def test_imagenet_class_folders(root: Path, picture: Callable) -> None:
    home = root / "imagenet"
    picture(home / "train" / "n02" / "a.JPEG", BLUE, (50, 40))
    picture(home / "train" / "n01" / "b.JPEG", RED, (40, 60))
    picture(home / "val" / "n01" / "ILSVRC2012_val_00000001.JPEG", RED, (80, 80))
    data = load("imagenet", size=16)
    assert data.train.images.shape == (2, 3, 16, 16)
    assert data.train.labels.tolist() == [0, 1]
    assert data.train.images[0, 0].min() > 250
    assert data.classes == ("n01", "n02")


def test_imagenet_cuts_the_central_square(root: Path) -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255
    for part in ("train", "val"):
        (root / "imagenet" / part / "n01").mkdir(parents=True)
        Image.fromarray(wide).save(root / "imagenet" / part / "n01" / "a.png")
    assert load("imagenet", size=10).train.images.min() == 255
    assert load("imagenet", size=10, fit="squash").train.images.min() == 0
    with pytest.raises(DataError, match="fit='stretch' is not one of squash, crop"):
        load("imagenet", size=10, fit="stretch")


def test_imagenet_flat_validation_with_its_table(root: Path, picture: Callable) -> None:
    home = root / "imagenet"
    picture(home / "train" / "n01" / "a.png", RED)
    picture(home / "train" / "n02" / "a.png", GREEN)
    picture(home / "val" / "ILSVRC2012_val_00000001.png", GREEN)
    with pytest.raises(DataError, match="sort its pictures into folders named by class"):
        load("imagenet")
    table = home / "LOC_val_solution.csv"
    table.write_text("ImageId,PredictionString\nILSVRC2012_val_00000001,n02 1 2 3 4 \n")
    assert load("imagenet").test.labels.tolist() == [1]
    table.write_text("ImageId,PredictionString\nILSVRC2012_val_00000009,n02 1 2 3 4 \n")
    with pytest.raises(DataError, match="does not say which class"):
        load("imagenet")


def test_imagenet_official_tar_of_tars(root: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), RED).save(buffer, "PNG")

    def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))

    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as archive:
        add(archive, "n01_1.png", buffer.getvalue())
    with tarfile.open(root / "ILSVRC2012_img_train.tar", "w") as archive:
        add(archive, "n01.tar", inner.getvalue())
    with tarfile.open(root / "ILSVRC2012_img_val.tar", "w") as archive:
        add(archive, "n01/v.png", buffer.getvalue())
    data = load("imagenet", size=8)
    assert colours(data.train.images) == [RED]
    assert colours(data.test.images) == [RED]


def write_release(root: Path, pixels: Callable, first: int = 1) -> np.ndarray:
    rows = pixels(12, 3072)
    folder = root / "imagenet"
    folder.mkdir(exist_ok=True)
    for i in range(10):
        np.savez(folder / f"train_data_batch_{i + 1}.npz", data=rows[i : i + 1], labels=np.array([first + i]))
    np.savez(folder / "val_data.npz", data=rows[10:], labels=np.array([first, 1000]), mean=np.zeros(3072))
    return rows


def test_the_32x32_release_stores_colour_planes_and_counts_from_one(root: Path, pixels: Callable) -> None:
    rows = write_release(root, pixels)
    data = load("imagenet")
    assert data.train.images.shape == (10, 3, 32, 32)
    # Value 1024 + 32 + 5 of a row is green, row 1, column 5.
    assert data.train.images[3, 1, 1, 5] == rows[3, 1024 + 32 + 5]
    assert data.train.labels.tolist() == list(range(10))
    assert data.test.labels.tolist() == [0, 999]
    assert len(data.classes) == 1000
    with pytest.raises(DataError, match="only the 32x32 release"):
        load("imagenet", size=64)


def test_the_32x32_release_with_wrong_content(root: Path, pixels: Callable) -> None:
    write_release(root, pixels, first=0)
    with pytest.raises(DataError, match="labels 0 to 0; the release counts from 1 to 1000"):
        load("imagenet")
    path = root / "imagenet" / "train_data_batch_1.npz"
    write_release(root, pixels)
    np.savez(path, data=np.zeros((1, 3000), np.uint8), labels=np.array([1]))
    with pytest.raises(DataError, match=r"wanted uint8 \[N, 3072\]"):
        load("imagenet")
    np.savez(path, data=np.array([{"a": 1}], object), labels=np.array([1]))
    with pytest.raises(DataError, match="is not a batch of the 32x32 release"):
        load("imagenet")


def test_the_pickled_32x32_release_is_refused(root: Path) -> None:
    (root / "imagenet").mkdir()
    (root / "imagenet" / "train_data_batch_1").write_bytes(b"\x80\x02}q\0.")
    with pytest.raises(MissingData, match="opening a pickle can run code hidden in it; take the npz form"):
        load("imagenet")


def test_imagenet_missing_says_where_to_get_it(root: Path) -> None:
    with pytest.raises(MissingData, match=r"cannot be fetched by a program: sign in at https://image-net.org"):
        load("imagenet")
