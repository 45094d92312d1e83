"""Drawing: the right number, each once, uniformly, from every kind of feeder, and nothing else touched."""

import weakref
from collections import Counter, namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import data

from drcl.per_sample.draw import batch_length, draw, join, map_tensors, take, tensors


class Counting(data.Dataset):
    """Says which samples were asked for."""

    def __init__(self, size):
        self.size, self.asked = size, []

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        self.asked.append(i)
        return torch.tensor([float(i)]), i


def numbers(batches):
    return [int(i) for batch in batches for i in tensors(batch)[-1].flatten()]


def stream(size, batch):
    return [(n.float()[:, None], n) for n in torch.arange(size).split(batch)]


@given(size=st.integers(1, 60), batch=st.integers(1, 17), samples=st.integers(1, 70), seed=st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_every_feeder_gives_the_number_asked_for_each_once(size, batch, samples, seed):
    wanted = min(size, samples)
    feeders = [
        data.DataLoader(Counting(size), batch_size=batch, shuffle=True),
        stream(size, batch),
        iter(stream(size, batch)),
    ]
    for feeder in feeders:
        found = numbers(draw(feeder, samples, seed))
        assert len(found) == len(set(found)) == wanted
        assert set(found) <= set(range(size))


def test_indexable_data_is_asked_for_the_drawn_samples_only():
    dataset = Counting(5000)
    found = numbers(draw(data.DataLoader(dataset, batch_size=32, shuffle=True), 40))
    assert sorted(dataset.asked) == sorted(found)
    assert len(dataset.asked) == 40


@pytest.mark.parametrize("kind", ["loader", "list", "generator"])
def test_draws_are_uniform(kind):
    """3 out of 12, 2000 times: each sample 500 times in the mean, with standard deviation 19.4."""
    times: Counter[int] = Counter()
    for seed in range(2000):
        batches = stream(12, 5)
        if kind == "loader" and seed >= 600:
            break
        feeder = {
            "loader": lambda: data.DataLoader(data.TensorDataset(torch.arange(12)), batch_size=5),
            "list": lambda b=batches: b,
            "generator": lambda b=batches: iter(b),
        }[kind]()
        times.update(numbers(draw(feeder, 3, seed)))
    draws = 600 if kind == "loader" else 2000
    mean, deviation = draws / 4, (draws * 3 / 16) ** 0.5
    assert all(abs(times[i] - mean) < 5 * deviation for i in range(12))


def test_same_seed_same_draw_another_seed_another():
    batches = stream(200, 10)
    assert numbers(draw(batches, 20, 3)) == numbers(draw(batches, 20, 3))
    assert numbers(draw(batches, 20, 3)) != numbers(draw(batches, 20, 4))


def test_memory_of_a_stream_is_bounded_by_the_samples():
    alive = []

    def feeder():
        for s in range(0, 4000, 50):
            batch = torch.arange(s, s + 50)
            alive.append(weakref.ref(batch))
            yield (batch,)
            del batch
            assert sum(ref() is not None for ref in alive) <= 2

    assert len(numbers(draw(feeder(), 10))) == 10


def test_batches_filled_anew_by_the_generator_are_copied():
    def feeder():
        buffer = torch.empty(4, dtype=torch.long)
        for s in range(0, 20, 4):
            buffer.copy_(torch.arange(s, s + 4))
            yield (buffer,)

    assert sorted(numbers(draw(feeder(), 100))) == list(range(20))


def test_a_subset_sampler_stays_within_its_subset():
    inside = [3, 5, 8, 13, 21, 34]
    loader = data.DataLoader(Counting(50), batch_size=2, sampler=data.SubsetRandomSampler(inside))
    assert sorted(numbers(draw(loader, 100))) == inside
    assert set(numbers(draw(loader, 4))) < set(inside)


def test_a_weighted_sampler_gives_each_sample_once():
    weights = torch.tensor([0.0] * 5 + [1.0] * 5)
    loader = data.DataLoader(Counting(10), batch_size=2, sampler=data.WeightedRandomSampler(weights, 30))
    found = numbers(draw(loader, 100))
    assert sorted(found) == [5, 6, 7, 8, 9]


def test_batch_samplers_iterable_sets_and_custom_loaders_are_streamed():
    class Endless(data.IterableDataset):
        def __iter__(self):
            return iter(torch.arange(23))

    batches = data.BatchSampler(data.SequentialSampler(range(23)), 4, drop_last=False)
    by_batches = data.DataLoader(Counting(23), batch_sampler=batches)
    assert sorted(numbers(draw(by_batches, 100))) == list(range(23))
    assert sorted(numbers(draw(data.DataLoader(Endless(), batch_size=5), 100))) == list(range(23))
    assert len(numbers(draw(data.DataLoader(Endless(), batch_size=5), 9))) == 9


def test_the_loaders_own_generator_is_left_alone():
    for dataset in (Counting(30), [torch.tensor(i) for i in range(30)]):
        loader = data.DataLoader(dataset, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))
        before = loader.generator.get_state()
        list(draw(loader, 5))
        assert torch.equal(loader.generator.get_state(), before)
    sampler = data.SubsetRandomSampler(range(9), generator=torch.Generator().manual_seed(1))
    loader = data.DataLoader(Counting(9), batch_size=4, sampler=sampler)
    before = sampler.generator.get_state()
    list(draw(loader, 5))
    assert torch.equal(sampler.generator.get_state(), before)


def test_collate_function_and_batch_size():
    loader = data.DataLoader(
        Counting(40), batch_size=8, collate_fn=lambda rows: {"x": torch.stack([r[0] for r in rows])}
    )
    batches = list(draw(loader, 20))
    assert [len(b["x"]) for b in batches] == [8, 8, 4]
    assert [len(b["x"]) for b in draw(loader, 20, batch_size=5)] == [5, 5, 5, 5]
    assert [batch_length(b) for b in draw(stream(20, 8), 20, batch_size=6)] == [6, 6, 6, 2]


Pair = namedtuple("Pair", "image label")


def test_nests_of_all_kinds_keep_their_structure_and_their_rows_together():
    def batch(start):
        n = torch.arange(start, start + 6)
        return {
            "pair": Pair(n[:, None].float() * torch.ones(2), [n, {"deep": n * 10}]),
            "names": [f"s{i}" for i in n.tolist()],
            "array": n.numpy() * 3,
            "scalar": torch.tensor(7),
            "flag": True,
        }

    seen = []
    for found in draw([batch(0), batch(6), batch(12)], 10, batch_size=4):
        assert isinstance(found["pair"], Pair)
        n = found["pair"].label[0]
        assert torch.equal(found["pair"].image[:, 1], n.float())
        assert torch.equal(found["pair"].label[1]["deep"], n * 10)
        assert found["names"] == [f"s{i}" for i in n.tolist()]
        assert np.array_equal(found["array"], n.numpy() * 3)
        assert found["scalar"] == 7
        assert found["flag"] is True
        seen += n.tolist()
    assert len(seen) == len(set(seen)) == 10


def test_batches_of_different_lengths_are_not_mixed():
    batches = [torch.full((3, length), length) for length in (4, 7, 4, 5)]
    found = list(draw(batches, 100, batch_size=4))
    assert sum(len(b) for b in found) == 12
    assert all((b == b.shape[1]).all() for b in found)


def test_take_join_and_map():
    batch = (torch.arange(5), {"a": torch.arange(10).view(5, 2)})
    parts = [take(batch, [0, 1]), take(batch, slice(2, 5))]
    whole = join(parts)
    assert torch.equal(whole[0], batch[0])
    assert torch.equal(whole[1]["a"], batch[1]["a"])
    assert torch.equal(map_tensors(lambda t: t + 1, batch)[1]["a"], batch[1]["a"] + 1)


@pytest.mark.parametrize("feeder", [torch.ones(4, 2), {"x": torch.ones(3)}, 5, None, "data"])
def test_what_is_not_a_feeder_is_refused(feeder):
    with pytest.raises(TypeError, match="batches must be a DataLoader or an iterable of batches"):
        list(draw(feeder, 3))


def test_a_data_set_in_place_of_a_loader_is_refused():
    with pytest.raises(TypeError, match="wrap it in a torch"):
        list(draw(Counting(4), 3))


def test_batches_without_samples_are_refused():
    with pytest.raises(TypeError, match="a batch must hold tensors"):
        list(draw(["ab", "cd"], 3))
    with pytest.raises(ValueError, match="disagree on the number of samples"):
        list(draw([(torch.ones(3), torch.ones(4))], 3))


def test_nothing_comes_of_nothing():
    assert list(draw([], 3)) == []
    assert list(draw(iter(()), 3)) == []
    assert list(draw(data.DataLoader(Counting(0), batch_size=2), 3)) == []
