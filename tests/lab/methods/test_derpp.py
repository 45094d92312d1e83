"""DER++: the reservoir is uniform, logits lie beside their examples, and the loss is the paper's."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from scipy import stats
from tests.lab.methods.loop import CNN, KINDS, Walk, assert_resumes, assert_same_weights, toy_stream
from torch.nn import functional as F

from drcl.lab import methods
from drcl.lab.methods import _memory
from drcl.lab.methods.base import Batch
from drcl.lab.methods.derpp import DERPlusPlus, squared_distance
from drcl.lab.methods.er import ER
from drcl.lab.methods.sgd import SGD

SCENARIOS = ("task", "domain", "class")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_with_both_weights_0_it_is_fine_tuning_bit_for_bit(kind, scenario):
    stream = toy_stream(scenario)
    ours = Walk(DERPlusPlus(alpha=0.0, beta=0.0), stream, kind, weight_decay=0.01).run()
    plain = Walk(SGD(), stream, kind, weight_decay=0.01).run()
    assert_same_weights(ours.model, plain.model)
    assert ours.accuracy == plain.accuracy
    assert ours.losses == plain.losses


@pytest.mark.parametrize("size", [1, 7, 40])
def test_the_reservoir_is_uniform_and_logits_lie_beside_their_examples(size):
    """Chi-square over how often each of 40 examples is among the 8 kept, in 600 independent fillings."""
    count, rows, trials = 40, 8, 600
    kept, numbers = np.zeros(count), torch.arange(count)
    for trial in range(trials):
        memory = _memory.empty(rows, (1, 1, 1)) | {"z": torch.full((rows, 2), torch.nan)}
        generator = torch.Generator().manual_seed(trial)
        for part in numbers.split(size):
            z = torch.stack([part.float(), -part.float()], 1)
            _memory.offer(memory, Batch(part.reshape(-1, 1, 1, 1).float(), part, 3), generator, z=z)
        assert memory["offered"] == count
        assert torch.equal(memory["z"][:, 0].long(), memory["y"])
        assert torch.equal(memory["z"][:, 1], -memory["z"][:, 0])
        found = memory["y"].tolist()
        assert len(set(found)) == rows
        kept[found] += 1
    expected = trials * rows / count
    # Drawn without replacement the counts vary less than multinomial ones, by (1 - rows/count) * count/(count-1).
    statistic = ((kept - expected) ** 2 / expected).sum() / ((1 - rows / count) * count / (count - 1))
    assert 1e-3 < stats.chi2.sf(statistic, count - 1) < 1 - 1e-3


def test_the_method_itself_fills_the_memory_uniformly():
    """Over 400 seeds, how often each example of one epoch is among the five kept."""
    stream = toy_stream(tasks=1, per_class=10)  # 20 examples
    images = stream[0].train.take(slice(None))[0]
    numbers = {image.numpy().tobytes(): i for i, image in enumerate(images)}
    kept = np.zeros(len(numbers))
    trials = 400
    for seed in range(trials):
        method = DERPlusPlus(memory=5, alpha=0.0, beta=0.0)
        Walk(method, stream, {"kind": "mlp", "hidden": [2]}, epochs=1, seed=seed).run()
        for image in method.state["memory"]["x"]:
            kept[numbers[image.numpy().tobytes()]] += 1
    expected = trials * 5 / 20
    statistic = ((kept - expected) ** 2 / expected).sum() / ((1 - 5 / 20) * 20 / 19)
    assert 1e-3 < stats.chi2.sf(statistic, 19) < 1 - 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_logits_stored_are_those_of_the_step(kind, scenario):
    """All are kept here, so the last rows are the last batch; outputs that its head does not have are NaN."""
    method, told, checked = DERPlusPlus(memory=1000), [], []
    walk = Walk(method, toy_stream(scenario), kind)

    def watch(moment, batch):
        n, task = len(method._offered) if moment == "backward" else 0, method.at.task
        if moment == "backward":
            with torch.no_grad():
                told.append(walk.model(batch.x[:n], task if scenario == "task" else 0))
        if moment == "stepped":
            held, last = _memory.filled(method.state["memory"]), told.pop()
            z = method.state["memory"]["z"][held - len(last) : held]
            met = {"task": 2, "domain": 6, "class": 2 * (task + 1)}[scenario]
            assert z.shape[1] == (2 if scenario == "task" else 6)
            torch.testing.assert_close(z[:, :met], last[:, :met])
            assert z[:, met:].isnan().all()
            checked.append(task)

    walk.run(watch)
    assert set(checked) == {0, 1, 2}
    # Two epochs: each example is there twice, with the logits of either moment.
    assert method.state["memory"]["offered"] == 2 * sum(len(task.train) for task in walk.stream)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 0.7), (0.3, 0.0), (0.0, 0.7)])
def test_the_loss_is_the_one_of_the_paper(kind, scenario, alpha, beta):
    method = DERPlusPlus(memory=30, replay=5, alpha=alpha, beta=beta)
    # One epoch: no image is in the memory twice, so it tells which logits are its own.
    walk, checked, before = Walk(method, toy_stream(scenario), kind, epochs=1), [], []
    memory_of = method.before_step

    def before_step(batch):
        before[:] = [copy.deepcopy(method.state["memory"])]  # as it is when the draws are made
        return memory_of(batch)

    method.before_step = before_step  # type: ignore[method-assign]

    def watch(moment, batch):
        if moment != "backward" or method.at.task != 2:
            return
        memory, n = before[0], len(method._offered)
        k, m = 5 * (alpha > 0), 5 * (beta > 0)
        assert len(batch) == n + k + m
        rows = [
            next(
                row
                for row in range(_memory.filled(memory))
                if torch.equal(memory["x"][row], batch.x[i]) and int(memory["y"][row]) == int(batch.y[i])
            )
            for i in range(n, len(batch))
        ]
        with torch.no_grad():
            one = [walk.model(batch.x[i : i + 1], int(batch.heads()[i])) for i in range(len(batch))]
            total = sum(float(F.cross_entropy(one[i], batch.y[i : i + 1])) for i in range(n)) / n
            for i in range(n, n + k):
                z = memory["z"][rows[i - n]]
                known = [c for c in range(len(z)) if not torch.isnan(z[c])]
                square = sum((float(one[i][0, c]) - float(z[c])) ** 2 for c in known) / len(known)
                total += alpha * square / k
            for i in range(n + k, len(batch)):
                total += beta * float(F.cross_entropy(one[i], batch.y[i : i + 1])) / m
            assert float(method.loss(batch)) == pytest.approx(total, rel=1e-4)
        checked.append(batch.heads()[n:].tolist())

    walk.run(watch)
    assert len(checked) == len(walk.stream[2].train) // 8
    if scenario == "task":
        assert {head for heads in checked for head in heads} == {0, 1, 2}


def test_both_draws_are_independent_and_the_first_is_ers():
    stream = toy_stream()
    ours, theirs = DERPlusPlus(memory=40, replay=6, alpha=1.0, beta=1.0), ER(memory=40, replay=6)
    for method in (ours, theirs):
        walk = Walk(method, stream, epochs=1)
        walk.task(stream[0], 1)
        method.at.task, method.at.step = 1, 3
    x, y = stream[1].train.take(slice(0, 8))
    a, b = ours.before_step(Batch(x, y, 1)), theirs.before_step(Batch(x, y, 1))
    assert torch.equal(a.x[8:14], b.x[8:14])
    assert not torch.equal(a.x[8:14], a.x[14:20])


def test_distance_over_what_is_there():
    nan = float("nan")
    z = torch.tensor([[1.0, nan, nan], [0.0, 2.0, nan], [nan, nan, nan]])
    logits = torch.tensor([[3.0, 9.0], [1.0, -1.0], [5.0, 5.0]], requires_grad=True)
    found = squared_distance(logits, z)
    assert found.tolist() == [4.0, (1 + 9) / 2, 0.0]
    found.sum().backward()
    assert logits.grad.tolist() == [[4.0, 0.0], [1.0, -3.0], [0.0, 0.0]]


@pytest.mark.parametrize("kind", KINDS)
def test_it_remembers(kind):
    stream = toy_stream()
    with_replay = Walk(DERPlusPlus(memory=60, alpha=1.0, beta=1.0), stream, kind, epochs=6).run()
    assert with_replay.accuracy[-1][0] >= 0.9


def test_statistics_of_earlier_tasks_are_final():
    seen = []
    walk = Walk(DERPlusPlus(memory=30), toy_stream(), CNN | {"norm": "per-task"})
    walk.run(after_task=lambda walk, task: seen.append(walk.model.trunk.conv_norm1.task_mean.clone()))
    assert not torch.equal(seen[0][1], seen[1][1])
    for task in range(3):
        assert torch.equal(seen[task][task], seen[2][task])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_resume(kind, scenario):
    assert_resumes(lambda: DERPlusPlus(memory=12), kind, scenario)


def test_state_is_the_memory():
    method = DERPlusPlus(memory=20)
    Walk(method, toy_stream(), epochs=1).run()
    assert method.state_bytes() == 20 * (64 * 4 + 8 + 8 + 2 * 4)


@pytest.mark.parametrize("wrong", [{"memory": 0}, {"replay": 0}, {"alpha": -0.1}, {"beta": float("inf")}])
def test_bad_values_are_named(wrong):
    (key,) = wrong
    with pytest.raises(ValueError, match=rf"der\+\+: {key}="):
        methods.get("der++")(**wrong)
