"""Batches: normalised right, restartable to the bit, augmented within bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from drcl.lab.common import seeds
from drcl.lab.streams import examples as module
from drcl.lab.streams.examples import Examples
from drcl.lab.streams.view import View, augment, resize, rotate


def examples(count: int = 50, shape=(3, 6, 6), view: View | None = None, key: int = 0) -> Examples:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count + 10, *shape), dtype=np.uint8)
    rows = rng.permutation(count + 10)[:count]
    return Examples(images, rows, np.arange(count), view or View(), key)


def same(left, right) -> bool:
    left, right = list(left), list(right)
    return len(left) == len(right) and all(
        torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(left, right)
    )


def test_normalisation_is_that_of_the_textbook():
    view = View(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    found = examples(view=view)
    x, y = found.take(slice(None))
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    scaled = found.source[found.rows].astype(np.float64) / 255
    mean, std = np.reshape(view.mean, (3, 1, 1)), np.reshape(view.std, (3, 1, 1))
    np.testing.assert_allclose(x.numpy(), (scaled - mean) / std, rtol=0, atol=1e-6)


def test_an_epoch_has_every_example_once_with_its_own_label():
    found = examples()
    everything, _ = found.take(slice(None))
    labels = []
    for x, y in found.batches(8, seed=3, epoch=2):
        assert torch.equal(x, everything[y])
        labels += y.tolist()
    assert sorted(labels) == list(range(50))
    assert labels != list(range(50))
    ordered = [y.tolist() for _, y in found.batches(8, shuffle=False)]
    assert [label for batch in ordered for label in batch] == list(range(50))
    assert [len(y) for y in ordered] == [8] * 6 + [2]


def test_lengths():
    found = examples(50)
    assert len(found.batches(8)) == 7
    assert len(found.batches(8, drop_last=True)) == len(list(found.batches(8, drop_last=True))) == 6
    assert len(found.batches(8, start=5)) == 2
    assert len(found.batches(8, start=9)) == len(list(found.batches(8, start=9))) == 0
    assert found.batches(8, start=5).total == 7
    assert list(examples(0).batches(8)) == []


@settings(max_examples=40, deadline=None)
@given(
    size=st.sampled_from([1, 2, 3, 7, 16, 64, 200]),
    start=st.integers(0, 60),
    epoch=st.integers(0, 3),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
def test_restart_in_the_middle_gives_the_same_bits(size, start, epoch, drop_last, shuffle):
    view = View(mean=(0.3, 0.4, 0.5), std=(0.2, 0.3, 0.1), crop=2, flip=True, rotation=10.0)
    found = examples(150, view=view, key=4)
    how = {"shuffle": shuffle, "seed": 9, "epoch": epoch, "drop_last": drop_last}
    whole = list(found.batches(size, **how))
    torch.rand(3)
    assert same(found.batches(size, start=start, **how), whole[start:])


@pytest.mark.parametrize("block", [1, 16, 4096])
def test_block_size_changes_no_bit(monkeypatch, block):
    view = View(mean=(0.3, 0.4, 0.5), std=(0.2, 0.3, 0.1), crop=1, flip=True)
    found = examples(100, view=view)
    before = list(found.batches(4, seed=1))
    monkeypatch.setattr(module, "BLOCK", block)
    assert same(found.batches(4, seed=1), before)


def test_epochs_seeds_and_tasks_differ_and_iterating_twice_does_not():
    found = examples()
    first = found.batches(8, seed=1)
    assert same(first, first)
    orders = {
        tuple(torch.cat([y for _, y in each]).tolist())
        for each in (
            first,
            found.batches(8, seed=1, epoch=1),
            found.batches(8, seed=2),
            found.with_key(1).batches(8, seed=1),
        )
    }
    assert len(orders) == 4


def test_global_generators_do_not_matter_and_are_not_touched():
    found = examples(view=View(crop=2, flip=True))
    torch.manual_seed(0)
    before = list(found.batches(8, seed=1))
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002 - the global generator is what must not matter
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    assert same(found.batches(8, seed=1), before)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state[1])  # noqa: NPY002


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


def test_flip_alone_leaves_the_source_as_it_was():
    found = examples(view=View(flip=True))
    before = found.source.copy()
    list(found.batches(8))
    assert np.array_equal(found.source, before)
    plain = dict(zip(range(50), found.take(slice(None))[0]))
    flipped = 0
    for x, y in found.batches(8):
        for image, label in zip(x, y.tolist()):
            if not torch.equal(image, plain[label]):
                assert torch.equal(image, plain[label].flip(2))
                flipped += 1
    assert 10 < flipped < 40


def test_augmentation_is_switched_off_on_request():
    found = examples(view=View(crop=2, flip=True))
    plain = found.with_view(View())
    assert same(found.batches(8, augment=False), plain.batches(8))
    assert not same(found.batches(8), plain.batches(8))


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


def test_memory_maps_are_read_in_place(tmp_path):
    found = examples()
    path = tmp_path / "images.npy"
    np.save(path, found.source)
    mapped = Examples(np.load(path, mmap_mode="r"), found.rows, found.labels, found.view)
    assert isinstance(mapped.source, np.memmap)
    assert same(mapped.batches(8, seed=2), found.batches(8, seed=2))


def test_torch_dataset_and_loader_see_the_same_examples():
    found = examples()
    dataset = found.dataset()
    assert len(dataset) == 50
    loader = torch.utils.data.DataLoader(dataset, batch_size=8)
    assert same(loader, found.batches(8, shuffle=False))
    assert len([label for _, label in dataset]) == 50


def test_a_plain_training_loop_learns():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 200)
    images = (rng.integers(0, 100, (200, 1, 4, 4)) + 150 * labels[:, None, None, None]).astype(np.uint8)
    found = Examples(images, np.arange(200), labels, View((0.5,), (0.25,)))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for x, y in found.batches(20, epoch=epoch):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    x, y = found.take(slice(None))
    assert (model(x).argmax(1) == y).float().mean() > 0.99


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="size=0"):
        examples().batches(0)
    with pytest.raises(ValueError, match="start=-1"):
        examples().batches(8, start=-1)
    with pytest.raises(ValueError, match="uint8"):
        Examples(np.zeros((3, 1, 2, 2)), np.arange(3), np.arange(3))
    with pytest.raises(ValueError, match="3 images but 2 labels"):
        Examples(np.zeros((3, 1, 2, 2), np.uint8), np.arange(3), np.arange(2))
    with pytest.raises(ValueError, match="std="):
        View(std=(0.0,))
    with pytest.raises(ValueError, match="2 entries and std 1"):
        View(mean=(0.1, 0.2))
    with pytest.raises(ValueError, match="crop=-1"):
        View(crop=-1)


def test_padding_puts_zeros_around_the_image():
    image = np.full((1, 1, 2, 2), 255, np.uint8)
    seen = View(pad=1).tensor(image)
    assert seen.shape == (1, 1, 4, 4)
    assert View(pad=1).shape((1, 2, 2)) == (1, 4, 4)
    assert seen[0, 0].tolist() == [[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    with pytest.raises(ValueError, match="pad=-1"):
        View(pad=-1)
