"""Estimators on several processes, told by hand which one of them they are; whole runs are in `test_parallel`."""

from __future__ import annotations

import pytest
import torch

from drcl import MAS, Fisher, Kronecker
from drcl.lab.common import parallel
from drcl.lab.common.parallel import World
from drcl.lab.methods._estimators import FromTheFirst, Reduced


def batches(count: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    lengths = (5, 2, 4)[:count]
    return [(torch.randn(n, 3, generator=generator).double(), torch.arange(n) % 2) for n in lengths]


def layer() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2).double()


def on_each(monkeypatch, size, work):
    """What `work` returns on each of `size` processes. They take turns; a sum is of what all said the turn before.

    What is summed first does not depend on any sum, and everything later on that one only: the third turn is right.
    """
    said: list[list[torch.Tensor]] = []
    for _ in range(3):
        answers, before, said = [], said, []
        for rank in range(size):
            own: list[torch.Tensor] = []

            def total(value, own=own, before=before):
                own.append(value)
                return sum(told[len(own) - 1] for told in before) if before else value + 1

            monkeypatch.setattr(parallel, "world", lambda rank=rank: World(rank, size))
            monkeypatch.setattr(parallel, "total", total)
            answers.append(work())
            said.append(own)
    return answers


@pytest.mark.parametrize("estimator", [MAS(), Fisher(labels="exact"), Fisher(labels="signs")], ids=repr)
@pytest.mark.parametrize("count", [3, 1])
def test_processes_share_the_samples_and_agree_on_the_mean(monkeypatch, estimator, count):
    """Three batches of unlike length on two processes; a single one leaves the second process without any."""
    model, data = layer(), batches(count)
    named = dict(model.named_parameters())
    alone = estimator.estimate(model, data, named)
    for found in on_each(monkeypatch, 2, lambda: Reduced(estimator).estimate(model, data, named)):
        for name, value in alone.items():
            torch.testing.assert_close(found[name], value)
    assert Reduced(estimator).describe() == estimator.describe()


def test_directions_of_the_first_process_are_those_of_all(monkeypatch):
    sent = []

    def broadcast(values, source):
        if parallel.world().rank == 0:
            sent.append(values[0])
        values[0] = sent[0]

    monkeypatch.setattr(parallel.dist, "broadcast_object_list", broadcast)
    model = layer()
    named = dict(model.named_parameters())
    alone = Kronecker().measure(model, batches(), named)
    for rank in (0, 1):
        monkeypatch.setattr(parallel, "world", lambda rank=rank: World(rank, 2))
        found = FromTheFirst().measure(model, batches(), named)
        assert (found.in_unit, found.with_earlier) == (alone.in_unit, alone.with_earlier)
        assert all(torch.equal(t, found.importance[n]) for n, t in alone.importance.items())
        for name, basis in alone.bases.items():
            assert all(torch.equal(t, found.bases[name].tensors()[k]) for k, t in basis.tensors().items())
    assert len(sent) == 1


def test_what_the_first_process_cannot_measure_ends_all(monkeypatch):
    sent = []

    def broadcast(values, source):
        if parallel.world().rank == 0:
            sent.append(values[0])
        values[0] = sent[0]

    monkeypatch.setattr(parallel.dist, "broadcast_object_list", broadcast)
    layer = torch.nn.Linear(2, 2)
    for rank in (0, 1):
        monkeypatch.setattr(parallel, "world", lambda rank=rank: World(rank, 2))
        with pytest.raises(ValueError, match="no samples"):
            FromTheFirst().measure(layer, [], dict(layer.named_parameters()))
    assert len(sent) == 1
