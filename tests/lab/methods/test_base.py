"""What every method has: batches, the run's optimizer, a sample of a task, random numbers that a resume repeats."""

from __future__ import annotations

import pytest
import torch
from tests.lab.training.toys import learner, stream
from torch import nn
from torch.nn import functional as F

from drcl.lab.methods.base import Batch, Setting, Where
from drcl.lab.training.mixture import Mixture


def test_a_mixed_batch_is_scored_by_each_examples_own_head():
    on = stream(tasks=3)
    made = learner(on=on)
    batch = next(Mixture(list(on), 16, seed=0).epoch(0))
    singles = [batch.rows(slice(i, i + 1)) for i in range(16)]
    one_by_one = [F.cross_entropy(made.model(b.x, int(b.heads()[0])), b.y).detach() for b in singles]
    found = float(made.method.loss(batch).detach())
    assert found == pytest.approx(float(torch.stack(one_by_one).mean()), rel=1e-5)
    both = Batch(batch.x, batch.y, 1).with_more(Batch(batch.x, batch.y, 2))
    assert both.heads().tolist() == [1] * 16 + [2] * 16
    assert Batch(batch.x, batch.y, 1).with_more(Batch(batch.x, batch.y, 1)).head == 1
    part = both.rows(slice(15, 18))
    assert part.heads().tolist() == [1, 2, 2]
    assert len(part) == 3


def test_rows_of_a_batch_and_two_together():
    x, y = torch.arange(4.0).reshape(4, 1), torch.arange(4)
    batch = Batch(x, y, torch.tensor([0, 1, 0, 1]))
    part = batch.rows(torch.tensor([3, 0]))
    assert (part.y.tolist(), part.heads().tolist(), len(part)) == ([3, 0], [1, 0], 2)
    both = batch.with_more(Batch(x, y, 2))
    assert both.heads().tolist() == [0, 1, 0, 1, 2, 2, 2, 2]
    assert torch.equal(both.x, torch.cat([x, x]))


@pytest.mark.parametrize(("name", "kind"), [("sgd", "SGD"), ("adam", "Adam"), ("adamw", "AdamW")])
def test_the_optimizer_of_the_run(name, kind):
    setting = Setting("task", 1, (2,), (1, 4, 4), 0, 0.1, 0.9, 8, optimizer=name, weight_decay=0.01)
    made = setting.make_optimizer([nn.Parameter(torch.zeros(1))])
    assert type(made).__name__ == kind
    (group,) = made.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.1, 0.01)
    assert group.get("momentum", 0.9) == 0.9
    changed = setting.make_optimizer([nn.Parameter(torch.zeros(1))], lr=0.5, momentum=0.0, weight_decay=0.0)
    assert (changed.param_groups[0]["lr"], changed.param_groups[0]["weight_decay"]) == (0.5, 0.0)


def test_what_a_task_trains_and_what_is_protected():
    for scenario, count in (("task", 2), ("domain", 4), ("class", 4)):
        made = learner(on=stream(scenario))
        assert len(made.method.protected()) == count
        heads = {name for name in made.method.parameters(made.stream[1]) if name.startswith("heads.")}
        head = 1 if scenario == "task" else 0
        assert heads == {f"heads.layers.{head}.weight", f"heads.layers.{head}.bias"}


def test_a_sample_is_drawn_without_repetition_and_again_the_same():
    made = learner()
    task = made.stream[0]

    def drawn(count, word="a"):
        return torch.cat([x.flatten(1) for x, _ in made.method.sample(task, count, word)])

    assert len(drawn(10)) == 10
    assert len(torch.unique(drawn(10), dim=0)) == 10
    assert torch.equal(drawn(10), drawn(10))
    assert not torch.equal(drawn(10), drawn(10, "b"))
    everything = task.train.take(slice(None))[0].flatten(1)
    for count in (None, 10_000):
        assert sorted(drawn(count).tolist()) == sorted(everything.tolist())  # all of them, in a mixed order
        assert torch.equal(drawn(count), drawn(count))


def test_random_numbers_belong_to_a_moment_of_the_run():
    made = learner()

    def number(*path) -> float:
        return torch.rand(1, generator=made.method.generator(*path)).item()

    made.method.at = Where(1, 0, 5)
    first = number("noise")
    assert number("noise") == first
    assert number("other") != first
    made.method.at = Where(1, 0, 6)
    assert number("noise") != first
    made.method.at = Where(1, 0, 5)
    assert number("noise") == first


def test_one_example_is_too_few_where_a_whole_batch_is_looked_at():
    made = learner(model={"norm": "batch"})
    task = made.stream[0]
    made.model.eval()
    x, y = task.train.take(slice(0, 1))
    with pytest.raises(ValueError, match="sgd: one example is too few"), made.method.one_by_one(task, [(x, y)]):
        pass
