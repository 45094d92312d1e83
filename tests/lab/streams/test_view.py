"""How pixels become what a network sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from tests.lab.streams.toys import examples

from drcl.lab import streams
from drcl.lab.common import seeds
from drcl.lab.data.base import DataSet, Split
from drcl.lab.streams.view import View, augment, resize, rotate


def test_rotation_agrees_with_scipy_inside_the_image():
    from scipy import ndimage

    ramp = np.add.outer(np.arange(28) * 3, np.arange(28) * 4).astype(np.uint8)  # at most 189
    images = ramp[None, None]
    data = DataSet("ramp", Split(images, np.zeros(1, np.int64)), Split(images, np.zeros(1, np.int64)), ("one",))
    task = streams.rotated_inputs(data, seed=0, tasks=10)[1]  # 18 degrees
    expected = ndimage.rotate(ramp.astype(float), 18, reshape=False, order=1)
    inner = slice(6, 22)
    difference = task.train.images[0, 0].astype(float) - expected
    assert np.abs(difference[inner, inner]).max() <= 1.0


def test_normalisation_is_that_of_the_textbook():
    view = View(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    found = examples(view=view)
    x, y = found.take(slice(None))
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    scaled = found.source[found.rows].astype(np.float64) / 255
    mean, std = np.reshape(view.mean, (3, 1, 1)), np.reshape(view.std, (3, 1, 1))
    np.testing.assert_allclose(x.numpy(), (scaled - mean) / std, rtol=0, atol=1e-6)


def test_augmentation_is_some_crop_of_the_padded_image_maybe_flipped():
    rng = np.random.default_rng(1)
    images = rng.integers(1, 256, (300, 2, 5, 7), dtype=np.uint8)
    draws = seeds.words(300, 0, "test")
    out = augment(images, draws, crop=2, flip=True)
    found: dict[tuple[int, int, bool], int] = {}
    for image, result in zip(images, out):
        padded = np.pad(image, ((0, 0), (2, 2), (2, 2)))
        fits = [
            (y, x, flipped)
            for y in range(5)
            for x in range(5)
            for flipped in (False, True)
            if np.array_equal(padded[:, y : y + 5, x : x + 7][..., :: -1 if flipped else 1], result)
        ]
        assert len(fits) == 1
        found[fits[0]] = found.get(fits[0], 0) + 1
    # 50 possibilities, 300 draws of them: each expected six times; missing even three has probability
    # below 1e-3.
    assert len(found) >= 48
    flips = sum(count for (_, _, flipped), count in found.items() if flipped)
    assert abs(flips - 150) < 4 * np.sqrt(75)
    assert np.array_equal(augment(images, draws, crop=0, flip=False), images)


@pytest.mark.parametrize(("old", "new"), [(64, 32), (28, 32), (8, 32), (50, 21), (32, 32)])
def test_resize_agrees_with_pillow(old, new):
    rng = np.random.default_rng(0)
    smooth = np.asarray(Image.fromarray(rng.integers(0, 256, (5, 5), dtype=np.uint8)).resize((old, old)))
    noise = rng.integers(0, 256, (old, old), dtype=np.uint8)
    for image in (smooth, noise):
        expected = np.asarray(Image.fromarray(image).resize((new, new), Image.Resampling.BICUBIC))
        found = resize(image[None, None], new)[0, 0]
        assert np.abs(found.astype(int) - expected).max() <= 2
        assert np.abs(found.astype(int) - expected).mean() < 0.2


def test_resize_keeps_flat_areas_flat():
    for level in (0, 1, 127, 254, 255):
        flat = np.full((2, 3, 50, 50), level, np.uint8)
        assert np.array_equal(resize(flat, 21), np.full((2, 3, 21, 21), level, np.uint8))


def test_rotation_fills_with_zeros_and_keeps_the_centre():
    image = np.full((1, 1, 9, 9), 200, np.uint8)
    turned = rotate(image, 45.0)[0, 0]
    assert turned[4, 4] == 200
    assert turned[0, 0] == turned[0, 8] == turned[8, 0] == turned[8, 8] == 0


def test_channels_are_repeated_and_colour_is_not():
    grey = examples(shape=(1, 6, 6), view=View(channels=3))
    x, _ = grey.take([0, 1])
    assert x.shape == (2, 3, 6, 6)
    assert torch.equal(x[:, 0], x[:, 2])
    with pytest.raises(ValueError, match="channels=4"):
        examples(view=View(channels=4)).take([0])


def test_each_value_is_normalised_by_the_channel_it_comes_from():
    order = np.random.default_rng(3).permutation(108)
    plain = View(mean=(0.1, 0.5, 0.9), std=(0.1, 0.2, 0.3))
    mixed = View(mean=plain.mean, std=plain.std, permutation=order)
    straight, _ = examples(view=plain).take(slice(None))
    permuted, _ = examples(view=mixed).take(slice(None))
    assert torch.equal(permuted.flatten(1), straight.flatten(1)[:, torch.from_numpy(order)])


def test_padding_puts_zeros_around_the_image():
    image = np.full((1, 1, 2, 2), 255, np.uint8)
    seen = View(pad=1).tensor(image)
    assert seen.shape == (1, 1, 4, 4)
    assert View(pad=1).shape((1, 2, 2)) == (1, 4, 4)
    assert seen[0, 0].tolist() == [[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    with pytest.raises(ValueError, match="pad=-1"):
        View(pad=-1)
