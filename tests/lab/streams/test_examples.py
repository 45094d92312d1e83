"""Batches: normalised right, restartable to the bit, augmented within bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.streams.toys import examples, same

from drcl.lab.streams import examples as module
from drcl.lab.streams.examples import Examples
from drcl.lab.streams.view import View


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
