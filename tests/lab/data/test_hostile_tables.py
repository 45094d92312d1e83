"""JSON, text tables and options from strangers: every value is looked at before it is used."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from drcl.lab.data import DataError, MissingData, data_folder, fetch, load, registry
from drcl.lab.data.checks import SUMS, check_sums
from drcl.lab.data.loading import check_options
from drcl.lab.data.registry import entry
from drcl.lab.data.sources import Download

DEEP = "[" * 100_000


@pytest.fixture
def femnist(root: Path) -> Path:
    home = root / "leaf-femnist"
    for part in ("train", "test"):
        (home / part).mkdir(parents=True)
        (home / part / "a.json").write_text(leaf([[1.0] * 784], [3]))
    return home / "train" / "a.json"


def leaf(x: Any, y: Any, users: Any = ("a",), data: Any = None, **more: Any) -> str:
    return json.dumps({"users": users, "user_data": {"a": {"x": x, "y": y}} if data is None else data, **more})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (DEEP, "is not JSON; it may be truncated"),
        ('{"users": ' + "1" * 5000 + "}", "is not JSON"),
        ("\ufeff{}", "it is not a LEAF file"),
        ("[]", "it is not a LEAF file"),
        (leaf([], [], users=5), "users must be a list of names"),
        (leaf([], [], users=[["a"]]), "users must be a list of names"),
        (leaf([], [], data=[1]), "users must be a list of names"),
        (leaf([], [], data={"a": 5}), "not lists x and y"),
        (leaf({}, {}), "not lists x and y"),
        (leaf("abc", "abc"), "not lists x and y"),
        (leaf([[1.0] * 784], ["3"]), "has the label '3'; labels are whole numbers"),
        (leaf([[1.0] * 784], [3.5]), "has the label 3.5; labels are whole numbers"),
        (leaf([[1.0] * 784], [True]), "has the label True"),
        (leaf([[1.0] * 784], [None]), "has the label None"),
        (leaf([[1.0] * 784], [[3]]), "has the label [3]"),
        (leaf([[1.0] * 784], [10**30]), "has the label 10000"),
        (leaf([[1.0] * 784], [-1]), "has the label -1"),
        (leaf([[float("nan")] * 784], [3]), "not numbers (NaN)"),
        (leaf([["x"] * 784], [3]), "not numbers in 0..1"),
        (leaf([[[1.0]] * 783 + [1.0]], [3]), "not numbers in 0..1"),
        (leaf([[[1.0, 1.0]] * 784], [3]), "has 2 images but labels"),
        (leaf([[1e400] * 784], [3]), "floats must lie in 0..1"),
        (leaf([7], [3]), "does not have 784 values"),
        (leaf([None], [3]), "does not have 784 values"),
        (leaf([[1.0] * 784], [3], num_samples=[2]), "num_samples does not agree"),
        (leaf([[1.0] * 784], [3], num_samples="x"), "num_samples does not agree"),
    ],
    ids=range(26),
)
def test_leaf(femnist: Path, content: str, sentence: str) -> None:
    femnist.write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as refused:
        load("leaf-femnist")
    assert sentence in str(refused.value)
    assert len(str(refused.value)) < 1000


BAR = [[[100, 388], [924, 388]]]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (DEEP, "is not JSON"),
        ("[]", "is not a table of characters"),
        (json.dumps({"": BAR, "一": BAR}), "is not a table of characters"),
        (json.dumps({"一一": BAR, "十": BAR}), "is not a table of characters"),
        (json.dumps({"\ud800": BAR, "十": BAR}), "is not a table of characters"),
        *(
            (json.dumps({"一": wrong, "十": BAR}), "'一' has no strokes that can be drawn")
            for wrong in (
                None,
                [],
                {},
                "abc",
                [[]],
                [[[1]]],
                [[[1, 2, 3]]],
                [[["a", "b"]]],
                [[[1, None]]],
                [[[1, float("nan")]]],
                [[[1, 1e308]]],
                [[[1, 10**400]]],
                [[[1, True]]],
                [[[5000, 1], [2, 2]]],
                BAR * 201,
                [[[1, 2]] * 1001],
            )
        ),
    ],
    ids=range(21),
)
def test_hanzi(root: Path, content: str, sentence: str) -> None:
    (root / "hanzi").mkdir()
    (root / "hanzi" / "medians.json").write_text(content)
    with pytest.raises(DataError, match=sentence):
        load("hanzi", classes=2, writers=2, test_writers=1)


def test_hanzi_options(root: Path) -> None:
    (root / "hanzi").mkdir()
    (root / "hanzi" / "medians.json").write_text(json.dumps({"一": BAR, "十": BAR}))
    few = {"classes": 2, "writers": 2, "test_writers": 1}
    for option, sentence in (
        ({"writers": 10**9}, "writers=1000000000 must be at most 100,000"),
        ({"size": 10**6}, "size=1000000 must be at most 1,024"),
        ({"seed": -1}, "seed=-1 must be at least 0"),
    ):
        with pytest.raises(DataError, match=sentence):
            load("hanzi", **few | option)


@pytest.fixture
def celeba(root: Path, picture: Callable) -> Path:
    home = root / "celeba"
    for i in (1, 2, 3):
        picture(home / "img_align_celeba" / f"{i:06}.jpg", (i, i, i), (178, 218))
    (home / "list_attr_celeba.txt").write_text("3\nYoung Male\n" + "".join(f"{i:06}.jpg 1 -1\n" for i in (1, 2, 3)))
    (home / "list_eval_partition.txt").write_text("000001.jpg 0\n000002.jpg 1\n000003.jpg 2\n")
    return home


@pytest.mark.parametrize(
    ("file", "old", "new", "sentence"),
    [
        ("list_attr_celeba.txt", "3\n", "²\n", "should start with the number of pictures"),
        ("list_attr_celeba.txt", "3\n", "9" * 5000 + "\n", "should start with the number of pictures"),
        ("list_attr_celeba.txt", "000001", "../../000001", "names '../../000001.jpg', which is not the name of a file"),
        ("list_attr_celeba.txt", "000001", "/000001", "names '/000001.jpg', which is not the name of a file"),
        ("list_attr_celeba.txt", "000001", "\0001", "is in the attribute list but not in the folder"),
        ("list_attr_celeba.txt", "000001", "1" * 5000, "is in the attribute list but not in the folder"),
        ("list_attr_celeba.txt", "Young", "\x1b[2J", "a name with control characters"),
        ("list_eval_partition.txt", "jpg 1", "jpg ³", "line 2: '000002.jpg ³' is not a picture name and a number"),
        ("list_eval_partition.txt", "jpg 1", "jpg 7", "does not put 000002.jpg into part 0, 1 or 2"),
        ("list_eval_partition.txt", "000002", "x" * 9_000, "does not put 000002.jpg into part"),
        ("list_eval_partition.txt", "jpg 1", "jpg " + "1" * 20_000, "...' is not a picture name and a number"),
        ("identity_CelebA.txt", "", "000001.jpg 5\n", "does not say who is on 000002.jpg"),
        ("identity_CelebA.txt", "", "".join(f"00000{i}.jpg 99999999999999999999\n" for i in (1, 2, 3)), "and a number"),
    ],
    ids=range(13),
)
def test_celeba(celeba: Path, file: str, old: str, new: str, sentence: str) -> None:
    path = celeba / file
    text = path.read_text() if path.exists() else ""
    text = text.replace(old, new) if old else new
    if old == "000001":  # listed in both tables, so that it is looked for
        other = celeba / "list_eval_partition.txt"
        other.write_text(other.read_text().replace(old, new))
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as refused:
        load("celeba", size=8)
    assert sentence in str(refused.value)
    assert len(str(refused.value)) < 1000


def test_cub200_and_tinyimagenet_and_imagenet(root: Path, picture: Callable, pixels: Callable) -> None:
    home = root / "cub200"
    picture(home / "images" / "a.jpg", (1, 2, 3))
    picture(home / "images" / "b.jpg", (1, 2, 3))
    tables = {"images.txt": "1 a.jpg\n2 b.jpg\n", "image_class_labels.txt": "1 1\n2 1\n"}
    tables |= {"train_test_split.txt": "1 1\n2 0\n", "classes.txt": "1 001.Bird\n"}
    for file, old, new, sentence in (
        ("train_test_split.txt", "2 0", "2 5", "gives picture 2 '5'; wanted 1 or 0"),
        ("images.txt", "a.jpg", "../a.jpg", "is not the name of a file in"),
        ("images.txt", "a.jpg", "/etc/passwd", "is not the name of a file in"),
        ("classes.txt", "1 0", "¹ 0", "is not a number and a value"),
        ("images.txt", "1 a", "1" * 5000 + " a", "is not a number and a value"),
    ):
        for table, text in tables.items():
            (home / table).write_text(text.replace(old, new) if table == file else text, encoding="utf-8")
        with pytest.raises(DataError, match=sentence):
            load("cub200")
    tiny = root / "tinyimagenet"
    picture(tiny / "train" / "n01" / "a.png", (1, 2, 3))
    picture(tiny / "val" / "images" / "v.png", (1, 2, 3))
    (tiny / "val" / "val_annotations.txt").write_text("../../train/n01/a.png\tn01\n")
    with pytest.raises(DataError, match="is not the name of a file in"):
        load("tinyimagenet")
    for i in range(1, 11):
        (root / "imagenet").mkdir(exist_ok=True)
        np.savez(root / "imagenet" / f"train_data_batch_{i}.npz", data=pixels(1, 3072), labels=np.array([i]))
    np.savez(root / "imagenet" / "val_data.npz", data=pixels(1, 3072), labels=np.array([1]))
    names = root / "imagenet" / "map_clsloc.txt"
    for text in ("n01", "n01 one dog\n", "n01 ² dog\n", "\n".join(f"n{i} 1 dog" for i in range(1000))):
        names.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=r"is not a folder, a number and a name|numbered from 1"):
            load("imagenet")
    names.write_text("\n".join(f"n{i} {i} dog{i}" for i in range(1, 1001)))
    assert load("imagenet").classes[9] == "dog10"


def test_cifar100_looks_at_both_labels(root: Path) -> None:
    (root / "cifar100").mkdir()
    for file in ("train.bin", "test.bin"):
        (root / "cifar100" / file).write_bytes(bytes([20, 5]) + bytes(3072))
    with pytest.raises(DataError, match="has label 20, this set's labels are 0 to 19"):
        load("cifar100", labels="fine")


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("cifar100", {"labels": 3}, "labels=3 does not fit cifar100: give text"),
        ("tinyimagenet", {"size": "abc"}, "size='abc' does not fit tinyimagenet: give a whole number"),
        ("tinyimagenet", {"size": True}, "size=True does not fit tinyimagenet"),
        ("tinyimagenet", {"size": 32.5}, "size=32.5 does not fit tinyimagenet"),
        ("tinyimagenet", {"size": None}, "size=None does not fit tinyimagenet"),
        ("celeba", {"size": [1]}, r"size=\[1\] does not fit celeba: give a whole number or none"),
        ("casia-hwdb", {"version": 1.1}, "version=1.1 does not fit casia-hwdb: give text or none"),
        ("npz", {"path": 5}, "path=5 does not fit npz: give text or a path"),
        ("folder", {"path": "x", "channels": "3"}, "channels='3' does not fit folder"),
        ("npz", {"path": ""}, "path='' is not a path"),
        ("npz", {"path": "a\0b"}, "is not a path"),
        ("npz", {"path": "~nobody-of-this-name/x"}, "there is no such user"),
        ("npz", {"path": "x" * 5000}, "is not a path that can be used"),
        ("folder", {"path": "x" * 5000}, "is not a path that can be used"),
        ("huggingface", {"data": 5}, "has no split 'train'"),
        ("huggingface", {"train": 5, "test": 6}, "train is a int; wanted a datasets object"),
    ],
)
def test_options_of_the_wrong_kind(root: Path, name: str, options: dict, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        load(name, **options)


def test_names_and_roots_of_the_wrong_kind(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.npz").write_bytes(b"")
    for name, sentence in ((5, "the data set's name is 5"), (None, "name is None"), ("../secret", "no data set")):
        with pytest.raises(DataError, match=sentence):
            load(name)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no data set"):
        load("x" * 5000)
    for wrong in (5, "", "a\0b", "~nobody-of-this-name/x", []):
        with pytest.raises(DataError, match="root="):
            load("mnist", root=wrong)  # type: ignore[arg-type]
    check_options("mine", {"layout": "NHW"})
    with pytest.raises(DataError, match="cifar100 has no option 'root'; it has labels"):
        check_options("cifar100", {"root": "/elsewhere"})


def test_a_data_folder_in_the_environment_that_is_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRCL_DATA", "~nobody-of-this-name/x")
    with pytest.raises(DataError, match="DRCL_DATA='~nobody-of-this-name/x' is not a path that can be used"):
        data_folder()


def test_samples_of_the_wrong_kind(root: Path) -> None:
    grey = np.zeros((4, 4), np.uint8)
    good = [(grey, 0)]
    for sample, sentence in (
        ((np.full((4, 4), "x"), 0), "<U1 values; wanted uint8"),
        ((np.array([[object()] * 4] * 4), 0), "object values; wanted uint8"),
        (([[1], [1, 2]], 0), "is not a picture that can be read"),
        ((Image.new("L", (70_000, 1000)), 0), "announces 70000x1000 pixels"),
        ((grey, [[1], [1, 2]]), "has no label that can be read"),
        ((grey, "cat"), "labels are whole numbers"),
        ((grey, 10**7), "label 10,000,000, far more classes than images"),
        ((grey, 10**30), "object values; labels are whole numbers"),
    ):
        with pytest.raises(DataError) as refused:
            load("torch", train=[sample], test=good)
        assert sentence in str(refused.value)
    with pytest.raises(DataError, match="labels of different shapes"):
        load("torch", train=[(grey, 0), (grey, [0, 1])], test=good)


def test_noted_sums_that_are_damaged(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "secret").write_bytes(b"")
    (tmp_path / "data" / "x").write_bytes(b"abc")
    good = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # of abc, from the standard
    for text, sentence in (
        (f"{good}  ../secret\n", "is not the name of a file in"),
        (f"{good}  {tmp_path}/secret\n", "is not the name of a file in"),
        (f"{good}\n", "is not the name of a file in"),
        ("hello\n", "is not a sum and a name"),
        (b"\xff\xfe\n", "is not UTF-8"),
        (f"{good}  {'x' * 5000}\n", "is no longer there"),
        (f"{good[::-1]}  x\n", "has changed since it was fetched"),
    ):
        content = text if isinstance(text, bytes) else text.encode()
        (tmp_path / "data" / SUMS).write_bytes(content)
        with pytest.raises(DataError, match=sentence):
            check_sums(tmp_path / "data")
    (tmp_path / "data" / SUMS).write_text(f"# fetched from: a friend\n{good}  x\n")
    assert check_sums(tmp_path / "data") == 1


@pytest.mark.parametrize("error", [zlib.error("bad"), RecursionError(), KeyError("medians"), UnicodeError("x")])
def test_what_cannot_be_prepared_is_not_fetched(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    def prepare(folder: Path) -> None:
        raise error

    (tmp_path / "a.json").write_text("{}")
    source = Download({"a.json": (tmp_path / "a.json").as_uri()}, prepare=prepare)
    monkeypatch.setitem(registry.ENTRIES.ours, "hanzi", replace(entry("hanzi"), sources=(source,)))
    with pytest.raises(DataError, match="what arrived could not be read"):
        fetch("hanzi")
    with pytest.raises(MissingData):
        load("hanzi")
