"""One sample at a time: every form of a picture becomes the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from drcl.lab.data import DataError
from drcl.lab.data.formats.samples import as_picture, as_split


def test_every_form_gives_the_same_bytes(pixels) -> None:
    raw = pixels(5, 4, 3)  # height, width, channels
    expected = raw.transpose(2, 0, 1)
    tensor = torch.from_numpy(np.ascontiguousarray(expected))
    for form in (Image.fromarray(raw), raw, tensor, tensor.float() / 255):
        np.testing.assert_array_equal(as_picture(form, "x"), expected)
    np.testing.assert_array_equal(as_picture(raw[..., 0], "x"), raw[None, ..., 0])
    assert as_picture(Image.fromarray(raw[..., 0] > 127), "x").shape == (1, 5, 4)  # one bit a pixel


def test_a_tensor_is_never_read_channels_last() -> None:
    with pytest.raises(DataError, match=r"x has shape \(5, 4, 3\); wanted a picture with 1, 3 or 4 channels"):
        as_picture(torch.zeros(5, 4, 3, dtype=torch.uint8), "x")


def test_a_split_keeps_order_and_names_the_odd_one(pixels) -> None:
    raw = pixels(3, 4, 4)
    split = as_split(zip(raw, [2, 0, 1]), "train")
    np.testing.assert_array_equal(split.images[:, 0], raw)
    assert split.labels.tolist() == [2, 0, 1]
    assert split.labels.dtype == np.int64
    with pytest.raises(DataError, match=r"train, sample 1 has shape \(1, 3, 4\) but the first has \(1, 4, 4\)"):
        as_split([(raw[0], 0), (raw[1][:3], 0)], "train")
    with pytest.raises(DataError, match="train has no samples"):
        as_split([], "train")
