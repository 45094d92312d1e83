"""Remembered examples: the reservoir is uniform, and draws do not repeat."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from tests.lab.methods.loop import toy_stream

from drcl.lab import networks
from drcl.lab.methods import _memory
from drcl.lab.methods._memory import Remembering
from drcl.lab.methods.base import Batch, Setting


def fill(count: int, rows: int, size: int, seed: int) -> list[int]:
    """Offer the numbers 0 .. count-1 in batches of `size`; which are kept."""
    memory = _memory.empty(rows, (1, 1, 1))
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.arange(count)
    for part in numbers.split(size):
        _memory.offer(memory, Batch(part.reshape(-1, 1, 1, 1).float(), part, 3), generator)
    assert memory["offered"] == count
    assert torch.equal(memory["x"].flatten().long(), memory["y"])
    assert (memory["head"][: _memory.filled(memory)] == 3).all()
    return memory["y"][: _memory.filled(memory)].tolist()


@pytest.mark.parametrize("size", [1, 7, 40])
def test_reservoir_is_uniform(size):
    """Chi-square over how often each of 40 examples is among the 8 kept, in 600 independent fillings."""
    count, rows, trials = 40, 8, 600
    kept = np.zeros(count)
    for trial in range(trials):
        found = fill(count, rows, size, seed=trial)
        assert len(set(found)) == rows
        kept[found] += 1
    expected = trials * rows / count
    # Drawn without replacement the counts vary less than multinomial ones, by (1 - rows/count) * count/(count-1).
    statistic = ((kept - expected) ** 2 / expected).sum() / ((1 - rows / count) * count / (count - 1))
    p = stats.chi2.sf(statistic, count - 1)
    assert 1e-3 < p < 1 - 1e-3


def test_pairs_are_uniform_too():
    """Each of the 15 pairs of 6 examples is equally likely to be the memory of 2."""
    trials, found = 1500, {}
    for trial in range(trials):
        pair = tuple(sorted(fill(6, 2, 4, seed=10_000 + trial)))
        found[pair] = found.get(pair, 0) + 1
    assert len(found) == 15
    assert stats.chisquare(list(found.values())).pvalue > 1e-3


def test_a_memory_that_is_not_full_keeps_everything():
    assert fill(5, 8, 2, seed=0) == [0, 1, 2, 3, 4]
    assert fill(8, 8, 3, seed=0) == list(range(8))


def test_draw_without_repetition():
    memory = _memory.empty(10, (1, 1, 1))
    generator = torch.Generator().manual_seed(0)
    assert _memory.draw(memory, 3, generator) is None
    numbers = torch.arange(6)
    _memory.offer(memory, Batch(numbers.reshape(-1, 1, 1, 1).float(), numbers, numbers % 2), generator)
    drawn = _memory.draw(memory, 4, generator)
    assert len(set(drawn.y.tolist())) == 4
    assert torch.equal(drawn.head, drawn.y % 2)
    assert sorted(_memory.draw(memory, 99, generator).y.tolist()) == list(range(6))


def test_what_remembered_examples_teach_grows_with_the_tasks():
    stream = toy_stream()
    model = networks.build({"kind": "mlp", "hidden": [6]}, stream)
    method = Remembering()
    method.build(model, Setting("task", 3, stream.heads, stream.shape, 0, 0.1, 0.0, 8))
    assert method.remembered(4, torch.Generator()) is None
    for task in (stream[2], stream[0], stream[2]):
        method.before_task(task)
    assert method.state["heads"] == [2, 0]
    trunk, heads = model.groups()["trunk"], {**model.head_parameters(2), **model.head_parameters(0)}
    assert method.parameters(stream[0]) == trunk | heads
