"""SI: the path integral is the loss it saved, importance is never negative, and the penalty begins at zero."""

from __future__ import annotations

import pytest
import torch
from tests.lab.methods.loop import KINDS, Walk, assert_resumes, network, toy_stream, weights

from drcl.lab import methods
from drcl.lab.methods.base import Setting, Where
from drcl.lab.methods.si import SI


def descend(kind: str, lr: float, steps: int) -> tuple[float, float, float]:
    """Full-batch gradient descent with a small step: the path's sum, the loss saved, lr * sum of g^2."""
    stream = toy_stream()
    task = stream[0]
    model = network(kind, stream).double()
    method = SI()
    method.build(model, Setting(stream.scenario, 3, stream.heads, stream.shape, 0, lr, 0.0, 8))
    method.at = Where()
    method.before_task(task)
    # Only the trunk: the head's share of the loss is not in the path integral of what SI protects.
    optimizer = torch.optim.SGD(model.groups()["trunk"].values(), lr=lr)
    x, y = task.train.take(slice(None))
    x = x.double()

    def loss() -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(x, task.head), y)

    begin, squares = loss().item(), 0.0
    for _ in range(steps):
        model.zero_grad(set_to_none=True)
        loss().backward()
        squares += lr * sum(float((p.grad**2).sum()) for p in model.groups()["trunk"].values())
        method.after_backward()
        optimizer.step()
        method.after_step()
    path = sum(float(w.sum()) for w in method.state["path"].values())
    return path, begin - loss().item(), squares


@pytest.mark.parametrize("kind", KINDS)
def test_path_integral_is_the_loss_it_saved(kind):
    errors = []
    for lr, steps in ((0.2, 10), (0.02, 100)):
        path, saved, squares = descend(kind, lr, steps)
        assert path == pytest.approx(squares, rel=1e-9)  # plain descent moves by -lr * g
        assert saved > 0
        errors.append(abs(path - saved) / saved)
    assert errors[1] < 0.05
    assert errors[1] < errors[0] / 2  # the error of the sum is of first order in lr


@pytest.mark.parametrize("kind", KINDS)
def test_importance_and_penalty_over_three_tasks(kind):
    stream = toy_stream()
    method = SI(c=0.5)
    starts, seen = [], []

    def watch(moment, batch):
        if moment == "backward":
            if method.at.step == 0:
                starts.append(method.penalty().item())
            grads.update({n: p.grad.clone() for n, p in method.protected().items()})
        if moment == "edited" and method.at.task == 1 and method.at.step == 5:
            for name, p in method.protected().items():
                expected = 2 * 0.5 * method.state["importance"][name] * (p - method.state["anchor"][name])
                torch.testing.assert_close(p.grad - grads[name], expected, rtol=1e-3, atol=1e-7)
                seen.append(expected.abs().max().item())

    grads: dict[str, torch.Tensor] = {}
    walk = Walk(method, stream, kind).run(watch)
    assert starts == [0.0, 0.0, 0.0]
    assert max(seen) > 0
    for name, importance in method.state["importance"].items():
        assert (importance >= 0).all(), name
    assert any(importance.any() for importance in method.state["importance"].values())
    assert not any(path.any() for path in method.state["path"].values())
    assert all(torch.equal(a, weights(walk.model)[n]) for n, a in method.state["anchor"].items())
    assert [len(row) for row in walk.accuracy] == [1, 2, 3]


def test_momentum_counts_as_motion():
    """Two steps of momentum 0.5 by hand on one weight with gradients 1 and 3: motion -0.1, then -0.35."""
    stream = toy_stream()
    method = SI()
    model = network("mlp", stream)
    method.build(model, Setting(stream.scenario, 3, stream.heads, stream.shape, 0, 0.1, 0.5, 8))
    method.before_task(stream[0])
    optimizer = torch.optim.SGD(method.parameters(stream[0]).values(), lr=0.1, momentum=0.5)
    for gradient in (1.0, 3.0):
        for p in method.protected().values():
            p.grad = torch.full_like(p, gradient)
        method.after_backward()
        optimizer.step()
        method.after_step()
    for path in method.state["path"].values():
        torch.testing.assert_close(path, torch.full_like(path, 1 * 0.1 + 3 * 0.35), rtol=1e-4, atol=0)


@pytest.mark.parametrize("scenario", ["domain", "class"])
def test_a_shared_head_is_protected_too(scenario):
    method = SI()
    walk = Walk(method, toy_stream(scenario)).run()
    assert set(method.state["importance"]) == {name for name, _ in walk.model.named_parameters()}
    assert len(walk.accuracy[-1]) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_resume(kind):
    assert_resumes(lambda: SI(c=1.0), kind)


def test_state_is_three_numbers_a_weight():
    method = SI()
    walk = Walk(method, toy_stream(), epochs=1).run()
    assert method.state_bytes() == 3 * 4 * sum(p.numel() for p in walk.model.groups()["trunk"].values())


@pytest.mark.parametrize("wrong", [{"c": -1.0}, {"c": float("nan")}, {"xi": 0.0}, {"xi": float("inf")}])
def test_bad_values_are_named(wrong):
    (key,) = wrong
    with pytest.raises(ValueError, match=f"si: {key}="):
        methods.get("si")(**wrong)
