"""One picture file to pixels. Damaged and hostile ones are tried in test_hostile_pictures.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from drcl.lab.data import DataError
from drcl.lab.data.decoding import LARGEST_SIDE, check_pixels, check_size, decode, fitted


@pytest.mark.parametrize("kind", ["png", "bmp", "tiff", "ppm"])
def test_pictures_without_loss_are_read_back(tmp_path: Path, pixels, kind: str) -> None:
    colour = pixels(5, 7, 3)
    Image.fromarray(colour).save(tmp_path / f"a.{kind}")
    found = decode(tmp_path / f"a.{kind}", 3, None, "squash")
    np.testing.assert_array_equal(found, colour.transpose(2, 0, 1))


def test_grey_inverted_and_of_sixteen_bits(tmp_path: Path, pixels) -> None:
    grey = pixels(4, 4)
    Image.fromarray(grey).save(tmp_path / "a.png")
    np.testing.assert_array_equal(decode(tmp_path / "a.png", 1, None, "squash", invert=True)[0], 255 - grey)
    deep = grey.astype(np.uint16) * 256 + 77
    Image.fromarray(deep).save(tmp_path / "deep.png")
    np.testing.assert_array_equal(decode(tmp_path / "deep.png", 1, None, "squash")[0], grey)  # the upper eight bits


def test_the_central_square_or_the_whole() -> None:
    wide = Image.new("L", (30, 10))
    wide.paste(255, (10, 0, 20, 10))  # the middle is white
    assert np.asarray(fitted(wide, 10, "crop")).min() == 255
    assert np.asarray(fitted(wide, 10, "squash")).min() == 0
    assert fitted(wide, None) is wide


def test_sizes_that_make_no_sense_are_refused() -> None:
    check_size(None)
    check_size(LARGEST_SIDE)
    with pytest.raises(DataError, match="size=0 must be at least 1"):
        check_size(0)
    with pytest.raises(DataError, match=f"size={LARGEST_SIDE + 1} must be at most"):
        check_size(LARGEST_SIDE + 1)
    check_pixels(2000, 2000, "a.png", held=10)  # one colour packs that small
    with pytest.raises(DataError, match=r"a.png announces 9000x9000 pixels, more than"):
        check_pixels(9000, 9000, "a.png")
    with pytest.raises(DataError, match=r"a.png announces 8000x8000 pixels in 100 bytes"):
        check_pixels(8000, 8000, "a.png", held=100)
    with pytest.raises(DataError, match="it has 0x5 pixels"):
        check_pixels(0, 5, "a.png")
