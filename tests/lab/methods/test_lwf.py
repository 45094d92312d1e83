"""LwF: the loss against one written by hand, fine-tuning where nothing is to be kept, and a teacher that stays put."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from tests.lab.methods.loop import CNN, KINDS, Walk, assert_resumes, assert_same_weights, toy_stream, weights
from torch.nn import functional as F

from drcl.lab import methods
from drcl.lab.methods.base import Batch
from drcl.lab.methods.lwf import LwF
from drcl.lab.methods.sgd import SGD

SCENARIOS = ("task", "domain", "class")
FORMS = ("li-hoiem", "van-de-ven-2022", "van-de-ven-2019")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("temperature", [0.0, 2.0])
@pytest.mark.parametrize("form", FORMS)
def test_with_weight_0_it_is_fine_tuning_bit_for_bit(kind, scenario, temperature, form):
    stream = toy_stream(scenario)
    ours = Walk(LwF(lam=0.0, temperature=temperature, form=form), stream, kind, weight_decay=0.01).run()
    plain = Walk(SGD(), stream, kind, weight_decay=0.01).run()
    assert_same_weights(ours.model, plain.model)
    assert ours.accuracy == plain.accuracy
    assert ours.losses == plain.losses


def test_the_first_task_is_fine_tuning_bit_for_bit():
    one = toy_stream()[:1]
    assert_same_weights(Walk(LwF(), one).run().model, Walk(SGD(), one).run().model)


def by_hand(method: LwF, model, teacher, batch: Batch, tasks: int, scenario: str) -> float:
    """The loss in double precision, one example and one class at a time."""

    def softmax(z: np.ndarray) -> np.ndarray:
        powers = np.exp(z - z.max())
        return powers / powers.sum()

    T, n = method.temperature, len(batch)
    heads = list(range(tasks)) if scenario == "task" else [0]
    met = {"task": 2, "domain": 6, "class": 2 * (tasks + 1)}[scenario]  # classes a head answers with now
    known = {"task": 2, "domain": 6, "class": 2 * tasks}[scenario]  # and those the teacher answers with
    new, old = 0.0, 0.0
    for i in range(n):
        x = batch.x[i : i + 1]
        z = model(x, batch.head)[0, :met].detach().double().numpy()
        new += -math.log(softmax(z)[int(batch.y[i])]) / n
        for head in heads:
            q = softmax(model(x, head)[0, :met].detach().double().numpy() / T)
            p = softmax(teacher(x, head)[0, :known].detach().double().numpy() / T)
            old += -sum(p[c] * math.log(q[c]) for c in range(known)) / n
    if method.form == "li-hoiem":
        return new + method.lam * old
    mean = T**2 * old / len(heads)
    if method.form == "van-de-ven-2022":
        return new + method.lam * mean * (1 if scenario == "class" else tasks)
    return (new + method.lam * tasks * mean) / (1 + method.lam * tasks)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("temperature", [2.0, 0.7])
def test_the_loss_is_the_one_of_the_papers(kind, scenario, form, temperature):
    method, teachers, checked = LwF(lam=0.8, temperature=temperature, form=form), [], []
    walk = Walk(method, toy_stream(scenario), kind)

    def watch(moment, batch):
        if moment != "backward" or method.at.task == 0 or method.at.step % 3:
            return
        with torch.no_grad():
            expected = by_hand(method, walk.model, teachers[-1], batch, method.at.task, scenario)
            assert float(method.loss(batch)) == pytest.approx(expected, rel=1e-5)
        checked.append(method.at.task)

    walk.run(watch, after_task=lambda walk, task: teachers.append(copy.deepcopy(walk.model).eval()))
    assert set(checked) == {1, 2}


def test_of_one_and_of_all_tasks_in_van_de_vens_first_form():
    """With lam = 1 the current task counts 1 / t, and at every lam the weights add up to one."""
    told, logits = torch.zeros(3, 2), torch.zeros(3, 2)  # K is log 2 then
    for lam in (0.3, 1.0):
        method = LwF(lam=lam, temperature=1.0, form="van-de-ven-2019")
        walk = Walk(method, toy_stream("domain"))
        walk.task(walk.stream[0], 1)
        with torch.no_grad():
            for p in walk.model.parameters():
                p.zero_()  # all answers alike: L is log 6, and so is K of an equal teacher
            method.state["teacher"] = {name: torch.zeros_like(t) for name, t in method.state["teacher"].items()}
            x, y = walk.stream[1].train.take(slice(0, 8))
            assert float(method.loss(Batch(x, y, 0))) == pytest.approx(math.log(6))
    assert float(LwF.divergence(method, told, logits)) == pytest.approx(math.log(2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", ["task", "domain"])
def test_at_the_teacher_itself_there_is_no_pull(kind, scenario):
    """p = q is where K is smallest: the first gradient of a task is the one of plain training."""
    stream = toy_stream(scenario)
    walk = Walk(LwF(lam=50.0), stream, kind)
    walk.task(stream[0], 2)
    x, y = stream[1].train.take(slice(0, 8))
    batch = Batch(x, y, stream[1].head)
    own = list(walk.model.groups()["trunk"].values())
    pulled = torch.autograd.grad(walk.method.loss(batch), own)
    plain = torch.autograd.grad(F.cross_entropy(walk.model(x, batch.head), y), own)
    for a, b in zip(pulled, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_hot_answers_are_matched_as_logits():
    """Hinton, Vinyals, Dean 2015: T^2 times the gradient of K tends to (z - mean z - v + mean v) / classes."""
    rng = torch.Generator().manual_seed(0)
    v, z = (torch.randn(4, 5, generator=rng, dtype=torch.float64) for _ in range(2))
    z.requires_grad_()
    method = LwF(temperature=1e3)
    Walk(method, toy_stream())
    (1e6 * 4 * method.divergence(v, z)).backward()
    gap = z.detach() - v
    torch.testing.assert_close(z.grad, (gap - gap.mean(1, keepdim=True)) / 5, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_more_weight_keeps_old_answers_closer(kind):
    """The divergence from the teacher's soft answers, on the data on which it is asked."""
    stream, gaps = toy_stream(), []
    for lam in (0.0, 1.0, 30.0):
        walk = Walk(LwF(lam=lam), stream, kind, epochs=10, lr=0.02)
        walk.task(stream[0], 4)
        x = stream[1].train.take(slice(None))[0]
        with torch.no_grad():
            before = (walk.model(x, 0) / 2).log_softmax(1)
        walk.task(stream[1], 10)
        with torch.no_grad():
            after = (walk.model(x, 0) / 2).log_softmax(1)
            gaps.append(float(F.kl_div(after, before, reduction="batchmean", log_target=True)))
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 0.3 * gaps[0]


def test_the_teacher_stays_as_it_was_and_old_heads_learn():
    method, kept = LwF(lam=5.0), []
    walk = Walk(method, toy_stream())

    def watch(moment, batch):
        if moment == "backward" and method.at.task == 2:
            kept.append({name: t.clone() for name, t in method.state["teacher"].items()})

    start = []
    walk.run(watch, after_task=lambda walk, task: start.append(weights(walk.model)))
    assert all(torch.equal(kept[0][name], kept[-1][name]) for name in kept[0])
    for name, t in kept[0].items():
        assert torch.equal(t, start[1][name])
    assert "heads.layers.2.weight" not in kept[0]  # a head the teacher has not trained
    head = "heads.layers.0.weight"
    assert not torch.equal(start[1][head], start[2][head])


def test_later_heads_are_not_kept():
    method, bytes_ = LwF(), []
    walk = Walk(method, toy_stream())
    walk.run(after_task=lambda walk, task: bytes_.append(method.state_bytes()))
    trunk = 64 * 12 + 12 + 12 * 10 + 10
    assert bytes_ == [4 * (trunk + tasks * (10 * 2 + 2)) for tasks in (1, 2, 3)]


def test_statistics_of_earlier_tasks_are_final():
    stream, seen = toy_stream(), []
    walk = Walk(LwF(), stream, CNN | {"norm": "per-task"})
    walk.run(after_task=lambda walk, task: seen.append(walk.model.trunk.conv_norm1.task_mean.clone()))
    assert not torch.equal(seen[0][1], seen[1][1])  # learned in its own task
    for task in range(3):
        assert torch.equal(seen[task][task], seen[2][task])  # and never again
    assert walk.model.trunk.conv_norm1.training is False  # as the evaluation left it


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_resume(kind, scenario):
    assert_resumes(LwF, kind, scenario)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lam": -1.0}, "lwf: lam=-1.0: give a finite number of at least 0"),
        ({"lam": float("inf")}, "lwf: lam=inf"),
        ({"temperature": 0.0}, "lwf: temperature=0.0: give a finite number above 0"),
        ({"temperature": -2.0, "lam": 0.0}, "lwf: temperature=-2.0"),
        ({"temperature": float("nan")}, "lwf: temperature=nan"),
    ],
)
def test_bad_values_are_named(wrong, said):
    with pytest.raises(ValueError, match=said):
        methods.get("lwf")(**wrong)
