"""Any torch Dataset of pictures and labels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from drcl.lab.data import DataError, load


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
