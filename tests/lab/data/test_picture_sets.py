"""Sets made of picture files: TinyImageNet, ImageNet, CelebA, CUB-200, Omniglot."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from drcl.lab.data import DataError, MissingData, load

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def colours(images: np.ndarray) -> list[tuple[int, ...]]:
    """The colour of each one-coloured picture."""
    return [tuple(int(v) for v in image[:, 0, 0]) for image in images]


@pytest.fixture
def tiny(root: Path, picture: Callable) -> Path:
    home = root / "tiny-imagenet-200"
    for name, colour in (("n02", GREEN), ("n01", RED)):
        for i in range(2):
            picture(home / "train" / name / "images" / f"{name}_{i}.png", colour)
    picture(home / "val" / "images" / "val_0.png", GREEN)
    picture(home / "val" / "images" / "val_1.png", RED)
    picture(home / "test" / "images" / "test_0.png", BLUE)
    (home / "val" / "val_annotations.txt").write_text("val_0.png\tn02\t0\t0\t1\t1\nval_1.png\tn01\t0\t0\t1\t1\n")
    (home / "words.txt").write_text("n01\tgoldfish, Carassius\nn02\ttoad\n")
    return home


def test_tinyimagenet_takes_val_as_test(tiny: Path) -> None:
    data = load("tinyimagenet")
    assert data.train.images.shape == (4, 3, 64, 64)
    assert colours(data.train.images) == [RED, RED, GREEN, GREEN]
    assert data.train.labels.tolist() == [0, 0, 1, 1]
    assert colours(data.test.images) == [GREEN, RED]
    assert data.test.labels.tolist() == [1, 0]
    assert data.classes == ("goldfish", "toad")


def test_tinyimagenet_shrinks_bicubically(tiny: Path, pixels: Callable) -> None:
    original = Image.fromarray(pixels(64, 64, 3))
    original.save(tiny / "train" / "n01" / "images" / "n01_0.png")
    shrunk = load("tinyimagenet", size=32).train.images[0]
    expected = np.asarray(original.resize((32, 32), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    np.testing.assert_array_equal(shrunk, expected)


def test_tinyimagenet_with_val_sorted_into_classes(tiny: Path) -> None:
    for name, file in (("n02", "val_0.png"), ("n01", "val_1.png")):
        (tiny / "val" / name).mkdir()
        (tiny / "val" / "images" / file).rename(tiny / "val" / name / file)
    (tiny / "val" / "val_annotations.txt").unlink()
    assert load("tinyimagenet").test.labels.tolist() == [0, 1]


def test_tinyimagenet_from_its_zip(tiny: Path, root: Path) -> None:
    with zipfile.ZipFile(root / "tiny-imagenet-200.zip", "w") as archive:
        for path in tiny.rglob("*"):
            archive.write(path, path.relative_to(root))
    tiny.rename(root.parent / "aside")
    assert colours(load("tinyimagenet").test.images) == [GREEN, RED]


def test_tinyimagenet_faults(tiny: Path) -> None:
    notes = tiny / "val" / "val_annotations.txt"
    notes.write_text("val_0.png\tn09\t0\t0\t1\t1\n")
    with pytest.raises(DataError, match=r"line 1: .* does not name a picture and a known class"):
        load("tinyimagenet")
    notes.write_text("val_7.png\tn01\t0\t0\t1\t1\n")
    with pytest.raises(DataError, match=r"names val_7.png, which is not in"):
        load("tinyimagenet")
    notes.write_text("val_0.png\tn02\n")
    (tiny / "train" / "n01" / "images" / "n01_1.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    with pytest.raises(DataError, match=r"n01_1.png is not a readable picture"):
        load("tinyimagenet")


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


@pytest.fixture
def celeba(root: Path, picture: Callable) -> Path:
    home = root / "celeba"
    for i, colour in enumerate((RED, GREEN, BLUE, RED), 1):
        picture(home / "img_align_celeba" / f"{i:06}.jpg", colour, (178, 218))
    lines = ["4", " ".join(f"Attribute_{i}" for i in range(40))]
    for i in range(1, 5):
        lines.append(f"{i:06}.jpg " + " ".join("1" if j % i == 0 else "-1" for j in range(40)))
    (home / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    (home / "list_eval_partition.txt").write_text("000001.jpg 0\n000002.jpg 1\n000003.jpg 2\n000004.jpg 0\n")
    return home


def test_celeba_partition_and_attributes(celeba: Path) -> None:
    data = load("celeba", size=16)
    assert data.train.images.shape == (2, 3, 16, 16)
    assert data.valid is not None
    assert len(data.valid) == len(data.test) == 1
    assert data.train.labels.shape == (2, 40)
    assert data.train.labels[1].tolist() == [int(j % 4 == 0) for j in range(40)]
    assert data.test.labels[0].tolist() == [int(j % 3 == 0) for j in range(40)]
    assert data.test.images[0, 2].min() > 250  # picture 3 is blue
    assert data.classes[39] == "Attribute_39"
    assert data.train.groups is None
    (celeba / "identity_CelebA.txt").write_text("".join(f"{i:06}.jpg {70 + i}\n" for i in range(1, 5)))
    groups = load("celeba", size=16).train.groups
    assert groups is not None
    assert groups.tolist() == [71, 74]


def test_celeba_whole_pictures(celeba: Path) -> None:
    assert load("celeba", size=None).train.images.shape == (2, 3, 218, 178)


def test_celeba_faults(celeba: Path) -> None:
    attributes = celeba / "list_attr_celeba.txt"
    good = attributes.read_text()
    attributes.write_text(good.replace("4\n", "5\n", 1))
    with pytest.raises(DataError, match="announces 5 pictures but lists 4; it is truncated"):
        load("celeba")
    attributes.write_text(good.replace("000002.jpg 1 -1", "000002.jpg 2 -1"))
    with pytest.raises(DataError, match="line 4: wanted 40 values of 1 or -1"):
        load("celeba")
    attributes.write_text(good)
    (celeba / "img_align_celeba" / "000003.jpg").unlink()
    with pytest.raises(DataError, match=r"000003.jpg is in the attribute list but not in the folder"):
        load("celeba")
    (celeba / "list_eval_partition.txt").unlink()
    with pytest.raises(MissingData, match=r"lacks the file list_eval_partition.txt"):
        load("celeba")


@pytest.fixture
def cub(root: Path, picture: Callable) -> Path:
    home = root / "cub200" / "CUB_200_2011"
    files = {1: ("001.Black_footed_Albatross/a.jpg", RED), 2: ("001.Black_footed_Albatross/b.jpg", GREEN)}
    files |= {10: ("002.Laysan_Albatross/c.jpg", BLUE), 3: ("002.Laysan_Albatross/d.jpg", RED)}
    for name, colour in files.values():
        picture(home / "images" / name, colour, (40, 20))
    (home / "images.txt").write_text("".join(f"{i} {name}\n" for i, (name, _) in files.items()))
    (home / "image_class_labels.txt").write_text("1 1\n2 1\n10 2\n3 2\n")
    (home / "train_test_split.txt").write_text("1 1\n2 0\n10 1\n3 0\n")
    (home / "classes.txt").write_text("1 001.Black_footed_Albatross\n2 002.Laysan_Albatross\n")
    return home


def test_cub200_by_its_text_files(cub: Path) -> None:
    data = load("cub200", size=8)
    assert data.train.images.shape == (2, 3, 8, 8)
    assert data.train.labels.tolist() == [0, 1]
    assert data.test.labels.tolist() == [0, 1]
    assert data.train.images[1, 2].min() > 250  # picture 10 is blue and comes after picture 1
    assert data.classes == ("Black footed Albatross", "Laysan Albatross")


def test_cub200_faults(cub: Path) -> None:
    (cub / "train_test_split.txt").write_text("1 1\n2 0\n")
    with pytest.raises(DataError, match="do not list the same pictures"):
        load("cub200")
    (cub / "train_test_split.txt").write_text("1 1\n2 0\n10 1\n3 0\n")
    (cub / "image_class_labels.txt").write_text("1 1\n2 1\n10 7\n3 2\n")
    with pytest.raises(DataError, match="gives picture 10 the unknown class 7"):
        load("cub200")
    (cub / "images.txt").write_text("one a.jpg\n")
    with pytest.raises(DataError, match=r"line 1: 'one a.jpg' is not a number and a value"):
        load("cub200")


def test_omniglot_by_drawer(root: Path) -> None:
    for part, alphabet in (("images_background", "Greek"), ("images_evaluation", "Tengwar")):
        for character in ("character01", "character02"):
            folder = root / "omniglot" / part / alphabet / character
            folder.mkdir(parents=True)
            for drawer in (1, 15, 16, 20):
                page = Image.new("1", (105, 105), 1)
                page.paste(0, (0, 0, drawer, 105))  # a black bar as wide as the drawer's number
                page.save(folder / f"0001_{drawer:02}.png")
    data = load("omniglot", size=105)
    assert len(data.train) == len(data.test) == 8
    assert data.train.groups is not None
    assert data.train.groups.tolist() == [1, 15] * 4
    assert data.test.groups is not None
    assert data.test.groups.tolist() == [16, 20] * 4
    assert data.test.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    np.testing.assert_array_equal((data.train.images[1, 0] == 255).sum(1), 15)  # ink is bright
    assert data.classes[2] == "Tengwar/character01"
    (root / "omniglot" / "images_background" / "Greek" / "character01" / "x.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"is not named like 0001_01.png"):
        load("omniglot")
