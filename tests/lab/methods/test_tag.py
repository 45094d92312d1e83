"""TAG: the first task is RMSProp, agreement and conflict weigh as stated, and the past never changes."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from tests.lab.methods.loop import KINDS, Walk, assert_resumes, network, toy_stream

from drcl.lab import methods
from drcl.lab.methods.base import Setting
from drcl.lab.methods.tag import TAG, unit

REFERENCES = {
    "rmsprop": lambda p, lr: torch.optim.RMSprop(p, lr=lr, alpha=0.99, eps=1e-8),
    "adagrad": lambda p, lr: torch.optim.Adagrad(p, lr=lr, eps=1e-8),
}


@pytest.mark.parametrize("form", list(REFERENCES))
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_task_is_torchs_own_optimizer(kind, form):
    stream = toy_stream()
    task, lr = stream[0], 2e-3
    a, b = network(kind, stream).double(), network(kind, stream).double()
    method = TAG(form=form, adaptive_lr=lr if form == "rmsprop" else None)  # its own rate, or the run's
    rate = 0.5 if form == "rmsprop" else lr
    method.build(a, Setting("task", 3, stream.heads, stream.shape, 0, rate, 0.9, 8))
    method.before_task(task)
    ours = method.optimizer(task)
    theirs = REFERENCES[form](list(b.groups()["trunk"].values()) + list(b.head_parameters(0).values()), lr)
    for epoch in range(3):
        for x, y in task.train.batches(8, seed=0, epoch=epoch):
            for model in (a, b):
                model.zero_grad(set_to_none=True)
                torch.nn.functional.cross_entropy(model(x.double(), 0), y).backward()
            method.after_backward()
            ours.step()
            theirs.step()
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)


def built(b: float = 5.0, **how) -> tuple[TAG, object]:
    stream = toy_stream()
    method = TAG(b=b, **how)
    method.build(network("mlp", stream), Setting("task", 3, stream.heads, stream.shape, 0, 0.01, 0.0, 8))
    return method, stream


def give(method: TAG, stream, task: int, gradient: float) -> None:
    method.before_task(stream[task])
    for p in method.model.parameters():
        p.grad = None
    for p in method.parameters(stream[task]).values():
        p.grad = torch.full_like(p, gradient)
    method.after_backward()


@pytest.mark.parametrize(("gradient", "cosine"), [(2.0, 1), (-2.0, -1)])
def test_agreement_and_conflict_by_hand(gradient, cosine):
    """Second moments after one step are 0.01 * g^2: those of task 1 count exp(-b cos), the own ones exp(-b)."""
    b = 1.5
    method, stream = built(b)
    give(method, stream, 0, 3.0)
    method.after_task(stream[0])
    give(method, stream, 1, gradient)
    v = math.exp(-b * cosine) * 0.01 * 9 + math.exp(-b) * 0.01 * gradient**2
    for p in method.model.groups()["trunk"].values():
        torch.testing.assert_close(p.grad, torch.full_like(p, gradient / (math.sqrt(v) + 1e-8)), rtol=1e-4, atol=0)
    for p in method.model.head_parameters(1).values():  # no past: the plain rule
        expected = gradient / (math.sqrt(0.01 * gradient**2) + 1e-8)
        torch.testing.assert_close(p.grad, torch.full_like(p, expected), rtol=1e-4, atol=0)


def test_adam_form_divides_the_corrected_moment():
    method, stream = built(form="adam")
    give(method, stream, 0, 3.0)
    for p in method.model.groups()["trunk"].values():
        expected = (0.1 * 3 / (1 - 0.9)) / (math.sqrt(0.001 * 9) + 1e-8)
        torch.testing.assert_close(p.grad, torch.full_like(p, expected), rtol=1e-4, atol=0)


def test_steps_grow_with_agreement():
    method, _ = built(2.0)
    generator = torch.Generator().manual_seed(0)
    m = unit(torch.randn(12, generator=generator))
    other = torch.randn(12, generator=generator)
    across = unit(other - (other @ m) * m)
    sizes = []
    for cosine in np.linspace(-1, 1, 9):
        direction = float(cosine) * m + math.sqrt(max(0, 1 - cosine**2)) * across
        method.state["past"] = [{"direction": {"w": direction}, "second": {"w": torch.ones(12)}}]
        blended = method.blended("w", 7 * m, torch.ones(12))
        assert blended[0].item() == pytest.approx(math.exp(-2) + math.exp(-2 * cosine), rel=1e-4)
        sizes.append(1 / blended[0].sqrt().item())
    assert sizes == sorted(sizes)


def test_tensors_without_a_gradient_do_not_make_nan():
    method, stream = built()
    give(method, stream, 0, 0.0)
    method.after_task(stream[0])
    give(method, stream, 1, 0.0)
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in method.model.groups()["trunk"].values())
    assert all(p.grad is None for p in method.model.head_parameters(0).values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_past_is_constant(kind):
    method = TAG()
    kept: dict[int, list] = {}
    after = method.after_task

    def noted(task):
        before = copy.deepcopy(method.past)
        after(task)
        assert len(method.past) == task.index + 1
        for earlier, now in zip(before, method.past, strict=False):
            assert all(torch.equal(t, now[k][n]) for k, part in earlier.items() for n, t in part.items())
        kept[task.index] = copy.deepcopy(method.past)

    method.after_task = noted
    walk = Walk(method, toy_stream(), kind, lr=1e-3).run()
    for now, then in zip(method.past, kept[0], strict=False):
        assert all(torch.equal(t, now["direction"][n]) for n, t in then["direction"].items())
    for task in method.past:
        for name, direction in task["direction"].items():
            assert direction.norm().item() == pytest.approx(1, rel=1e-4), name
    assert [len(row) for row in walk.accuracy] == [1, 2, 3]


@pytest.mark.parametrize("scenario", ["domain", "class"])
def test_shared_heads(scenario):
    walk = Walk(TAG(), toy_stream(scenario), lr=1e-3).run()
    assert set(walk.method.past[0]["second"]) == {name for name, _ in walk.model.named_parameters()}
    assert all(math.isfinite(loss) for loss in walk.losses)


@pytest.mark.parametrize("kind", KINDS)
def test_resume(kind):
    assert_resumes(TAG, kind, lr=1e-3)


def test_state_is_two_numbers_a_weight_and_task():
    method = TAG()
    walk = Walk(method, toy_stream(), epochs=1, lr=1e-3).run()
    assert method.state_bytes() == 3 * 2 * 4 * sum(p.numel() for p in walk.model.groups()["trunk"].values())


@pytest.mark.parametrize("wrong", [{"b": -1.0}, {"beta1": 1.0}, {"beta2": 1.5}, {"adaptive_lr": 0.0}])
def test_bad_values_are_named(wrong):
    (key,) = wrong
    with pytest.raises(ValueError, match=f"tag: {key}="):
        methods.get("tag")(**wrong)
