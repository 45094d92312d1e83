"""The user's own data: arrays in an .npz, torch Datasets, Hugging Face datasets objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from drcl.lab.data import DataError, MissingData, data_folder, load, names


@pytest.fixture
def arrays(pixels: Callable) -> dict[str, np.ndarray]:
    return {
        "train_images": pixels(6, 12, 10, 3),
        "train_labels": np.array([0, 1, 2, 0, 1, 2], np.uint8),
        "test_images": pixels(3, 12, 10, 3, seed=1),
        "test_labels": np.array([2, 1, 0], np.int16),
        "classes": np.array(["ant", "bee", "cat"]),
    }


def test_npz_channels_last(root: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(root / "mine.npz", **arrays)
    data = load("npz", path=root / "mine.npz")
    np.testing.assert_array_equal(data.train.images, arrays["train_images"].transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(data.test.labels, [2, 1, 0])
    assert data.train.labels.dtype == np.int64
    assert data.classes == ("ant", "bee", "cat")
    assert data.name == "mine"
    assert data.train.images.flags.c_contiguous


def test_npz_other_layouts(root: Path, arrays: dict[str, np.ndarray], pixels: Callable) -> None:
    first = {k: v.transpose(0, 3, 1, 2) if v.ndim == 4 else v for k, v in arrays.items()}
    np.savez(root / "first.npz", **first)
    np.savez(root / "last.npz", **arrays)
    np.testing.assert_array_equal(load("npz", path="first.npz").train.images, load("npz", path="last.npz").train.images)
    grey = {k: v[..., 0] if v.ndim == 4 else v for k, v in arrays.items() if k != "classes"}
    np.savez_compressed(root / "grey.npz", **grey)
    data = load("npz", path="grey.npz")
    np.testing.assert_array_equal(data.test.images[:, 0], arrays["test_images"][..., 0])
    assert data.classes == ("0", "1", "2")
    tiny = dict(arrays, train_images=pixels(6, 3, 5, 3), test_images=pixels(3, 3, 5, 3))
    np.savez(root / "tiny.npz", **tiny)
    with pytest.raises(DataError, match="could be NHWC or NCHW; say layout="):
        load("npz", path="tiny.npz")
    assert load("npz", path="tiny.npz", layout="NCHW").train.images.shape == (6, 3, 5, 3)
    assert load("npz", path="tiny.npz", layout="NHWC").train.images.shape == (6, 3, 3, 5)


def test_any_npz_in_the_data_folder_has_a_name(root: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(root / "birds.npz", **arrays)
    data = load("birds")
    assert data.name == "birds"
    assert len(data.train) == 6
    with pytest.raises(DataError, match="birds has no option 'size'; it has layout"):
        load("birds", size=3)


def test_arrays_stand_in_for_a_set_that_is_not_there(root: Path, pixels: Callable) -> None:
    parts = {"train_images": pixels(4, 28, 28), "test_images": pixels(2, 28, 28)}
    parts |= {"train_labels": np.zeros(4, int), "test_labels": np.zeros(2, int)}
    np.savez(root / "omniglot28.npz", **parts)
    assert load("omniglot").train.images.shape == (4, 1, 28, 28)
    with pytest.raises(MissingData, match=r"omniglot28.npz has smaller images than size=32"):
        load("omniglot", size=32)
    small = load("omniglot", size=14).train.images
    expected = Image.fromarray(parts["train_images"][3]).resize((14, 14), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(small[3, 0], np.asarray(expected))
    np.savez(root / "cub200_64.npz", **parts)
    with pytest.raises(DataError, match="fit='crop' needs cub200's official files"):
        load("cub200", fit="crop")
    np.savez(root / "cifar100.npz", **parts)
    with pytest.raises(MissingData):
        load("cifar10")  # another set whose name only begins the same
    assert load("cifar100").train.images.shape == (4, 1, 28, 28)


def test_float_values_are_scaled(root: Path, arrays: dict[str, np.ndarray]) -> None:
    scaled = {k: v / 255.0 if v.ndim == 4 else v for k, v in arrays.items()}
    np.savez(root / "float.npz", **scaled)
    np.testing.assert_array_equal(load("float").train.images, arrays["train_images"].transpose(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"train_labels": None}, "has no array 'train_labels'; it has classes, test_images"),
        ({"train_labels": np.array([0, 1])}, r"shape \(2,\) for 6 images"),
        ({"train_labels": np.full(6, -1)}, "has the label -1; labels count from 0"),
        ({"train_labels": np.full(6, 0.5)}, "labels are whole numbers"),
        ({"train_labels": np.full(6, 3)}, "names 3 classes but its labels go up to 3"),
        ({"train_images": np.zeros((6, 7))}, r"shape \(6, 7\); wanted NHW, NHWC or NCHW"),
        ({"train_images": np.full((6, 12, 10, 3), -1.5)}, "floats must lie in 0..1 .undo any normalisation."),
        ({"train_images": np.full((6, 12, 10, 3), 256)}, "int64 values from 256 to 256"),
        ({"train_images": np.zeros((6, 9, 9, 3), np.uint8)}, "both parts need one shape"),
    ],
)
def test_npz_faults(root: Path, arrays: dict[str, np.ndarray], change: dict, sentence: str) -> None:
    np.savez(root / "bad.npz", **{k: v for k, v in (arrays | change).items() if v is not None})
    with pytest.raises(DataError, match=sentence):
        load("npz", path=root / "bad.npz")


def test_an_npz_with_a_pickle_is_not_opened(root: Path, arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "exploded",))

    np.savez(root / "bad.npz", **arrays | {"classes": np.array([Bomb()], object)})
    with pytest.raises(DataError, match="holds a pickle, and opening a pickle can run code"):
        load("bad")
    assert not (tmp_path / "exploded").exists()


def test_npz_damaged_or_absent(root: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(root / "cut.npz", **arrays)
    (root / "cut.npz").write_bytes((root / "cut.npz").read_bytes()[:-200])
    with pytest.raises(DataError, match=r"is not a readable .npz file"):
        load("cut")
    with pytest.raises(MissingData, match="there is no such file"):
        load("npz", path="absent.npz")


class Pairs(torch.utils.data.Dataset):
    """A torch Dataset over a list."""

    def __init__(self, items: list[tuple[Any, Any]], classes: list[str] | None = None) -> None:
        self.items = items
        if classes:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.items[index]


def test_torch_datasets_of_every_kind_agree(root: Path, pixels: Callable) -> None:
    raw = pixels(4, 8, 6, 3)
    labels = [1, 0, 1, 2]
    forms = {
        "PIL": [Image.fromarray(x) for x in raw],
        "uint8 tensor": [torch.from_numpy(x.transpose(2, 0, 1).copy()) for x in raw],
        "float tensor": [torch.from_numpy(x.transpose(2, 0, 1) / np.float32(255)) for x in raw],
        "array": list(raw),
    }
    for form, images in forms.items():
        items = list(zip(images, labels, strict=True))
        data = load("torch", train=Pairs(items, ["a", "b", "c"]), test=Pairs(items[:2]))
        np.testing.assert_array_equal(data.train.images, raw.transpose(0, 3, 1, 2), err_msg=form)
        assert data.train.labels.tolist() == labels
        assert data.classes == ("a", "b", "c")
        assert len(data.test) == 2


def test_torch_grey_pictures_tensor_labels_and_tensor_dataset(root: Path, pixels: Callable) -> None:
    raw = pixels(3, 5, 5)
    items = [(Image.fromarray(x), torch.tensor(i)) for i, x in enumerate(raw)]
    data = load("torch", train=Pairs(items), test=Pairs(items), valid=Pairs(items[:1]), name="mine")
    np.testing.assert_array_equal(data.train.images[:, 0], raw)
    assert data.valid is not None
    assert len(data.valid) == 1
    assert data.name == "mine"
    tensors = torch.utils.data.TensorDataset(torch.from_numpy(raw)[:, None], torch.eye(3, dtype=torch.int64))
    data = load("torch", train=tensors, test=tensors, classes=["x", "y", "z"])
    np.testing.assert_array_equal(data.train.labels, np.eye(3))  # attributes


def test_torch_faults(root: Path) -> None:
    good = Pairs([(torch.zeros(1, 4, 4), 0)])
    with pytest.raises(DataError, match="train, sample 0 has float values from -1 to -1"):
        load("torch", train=Pairs([(torch.full((1, 4, 4), -1.0), 0)]), test=good)
    with pytest.raises(DataError, match=r"sample 1 has shape \(1, 5, 4\) but the first has \(1, 4, 4\)"):
        load("torch", train=Pairs([(torch.zeros(1, 4, 4), 0), (torch.zeros(1, 5, 4), 0)]), test=good)
    with pytest.raises(DataError, match="test has no samples"):
        load("torch", train=good, test=Pairs([]))
    with pytest.raises(DataError, match=r"train\[0\] is not a pair"):
        load("torch", train=Pairs([torch.zeros(1, 4, 4)]), test=good)  # type: ignore[list-item]
    with pytest.raises(DataError, match="train is a int; wanted a Dataset"):
        load("torch", train=3, test=good)
    with pytest.raises(DataError, match="torch needs the option 'test'"):
        load("torch", train=good)
    with pytest.raises(DataError, match=r"shape \(5, 4, 4\); wanted a picture"):
        load("torch", train=Pairs([(torch.zeros(5, 4, 4), 0)]), test=good)
    with pytest.raises(DataError, match="different shapes"):
        load("torch", train=Pairs([(torch.zeros(1, 5, 5), 0)]), test=good)
    with pytest.raises(DataError, match="torch names 1 classes but its labels go up to 1"):
        load("torch", train=Pairs([(torch.zeros(1, 4, 4), 1)]), test=good, classes=["a"])


class ClassLabel:
    names = ("no", "yes")


class Table:
    """What of a ``datasets.Dataset`` is used: column_names, features and iteration over rows."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.column_names = list(rows[0])
        self.features = {"label": ClassLabel()} if "label" in rows[0] else {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


def test_huggingface_objects(root: Path, pixels: Callable) -> None:
    raw = pixels(3, 6, 6, 3)
    table = Table([{"img": Image.fromarray(x), "label": i % 2} for i, x in enumerate(raw)])
    data = load("huggingface", data={"train": table, "test": table, "validation": table})
    np.testing.assert_array_equal(data.train.images, raw.transpose(0, 3, 1, 2))
    assert data.train.labels.tolist() == [0, 1, 0]
    assert data.classes == ("no", "yes")
    assert data.valid is not None
    other = Table([{"scan": Image.fromarray(x), "kind": 1, "label": 0} for x in raw])
    data = load("huggingface", train=other, test=other, image="scan", label="kind")
    assert data.test.labels.tolist() == [1, 1, 1]
    with pytest.raises(DataError, match="none of the columns scan, kind, label is a usual image column"):
        load("huggingface", train=other, test=other)
    with pytest.raises(DataError, match="image='photo' is not a column; there are scan, kind, label"):
        load("huggingface", train=other, test=other, image="photo")
    with pytest.raises(DataError, match="it needs test or validation beside train"):
        load("huggingface", data={"train": other})
    with pytest.raises(DataError, match="needs data=, or both train= and test="):
        load("huggingface", train=other)


def test_unknown_names(root: Path) -> None:
    with pytest.raises(DataError, match=r"no data set 'minst'; did you mean 'mnist'\? Known: casia-hwdb, celeba"):
        load("minst")


def test_every_promised_data_set_is_registered() -> None:
    wanted = "mnist fashion-mnist emnist cifar10 cifar100 tinyimagenet imagenet celeba cub200 casia-hwdb omniglot"
    wanted += " quickdraw leaf-femnist leaf-celeba digits hanzi folder npz huggingface torch"
    assert set(wanted.split()) <= set(names())
    assert names() == sorted(names())


def test_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRCL_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    assert data_folder("/elsewhere") == Path("/elsewhere")
    monkeypatch.delenv("DRCL_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder().name == "data"
    assert "drcl" in data_folder().parts
