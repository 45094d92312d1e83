"""R-EWC: rotating changes no output, the Fisher information is that of the rotated weights, and without it is EWC."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tests.lab.methods.loop import KINDS, MLP, Walk, assert_resumes, toy_stream, weights
from torch.nn import functional as F

from drcl.lab.methods import _kronecker
from drcl.lab.methods.ewc import EWC
from drcl.lab.methods.r_ewc import RotatedEWC

FEW = {"samples": 20}
FORMS = [("mlp", "channels"), ("cnn", "channels"), ("cnn", "patches")]


def after_one_task(kind: Any, scenario: str = "task", **options: Any) -> Walk:
    tasks = toy_stream(scenario, per_class=6)
    walk = Walk(RotatedEWC(**FEW | options), tasks, kind)
    walk.task(tasks[0], 1)
    return walk


@pytest.mark.parametrize(("kind", "convolutions"), FORMS)
@pytest.mark.parametrize("scenario", ["task", "domain"])
def test_rotating_changes_no_output(kind: str, convolutions: Any, scenario: str) -> None:
    walk = after_one_task(kind, scenario, convolutions=convolutions)
    method, before = walk.method, weights(walk.model)
    plain = [walk.logits(task) for task in walk.stream]
    method.before_stage(walk.stream[1], 0)
    assert method.rotated
    turned = weights(walk.model)
    for name in method.information.bases:
        assert (turned[name] - before[name]).abs().max() > 0.05
    for task, wanted in zip(walk.stream, plain):
        torch.testing.assert_close(walk.logits(task), wanted, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(method.state["anchor"][n], turned[n]) for n in method.protected())
    method._turn(forth=False)
    for name, p in weights(walk.model).items():
        torch.testing.assert_close(p, before[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kind", "convolutions"), FORMS)
def test_the_fisher_is_that_of_the_rotated_weights(kind: str, convolutions: Any) -> None:
    """One example after the other, by autograd through the rotated network."""
    walk = after_one_task(kind, convolutions=convolutions, samples=None, labels="empirical")
    method, task = walk.method, walk.stream[0]
    method.before_stage(walk.stream[1], 0)
    walk.model.eval()
    own = method.protected()
    x, y = task.train.take(slice(None))
    squares = {name: torch.zeros_like(p) for name, p in own.items()}
    for each in range(len(x)):
        loss = F.cross_entropy(method.forward(x[each : each + 1], task.head), y[each : each + 1])
        for (name, total), g in zip(squares.items(), torch.autograd.grad(loss, list(own.values()))):
            total.add_(g.square() / len(x), alpha=1)
            assert name in method.fisher()
    for name, found in method.fisher().items():
        torch.testing.assert_close(found, squares[name], rtol=1e-3, atol=1e-6 * float(squares[name].max() + 1))


def test_the_rotation_makes_the_moments_diagonal() -> None:
    """Inputs in the rotated coordinates are uncorrelated, and so are derivatives."""
    walk = after_one_task("mlp")
    for basis in walk.method.information.bases.values():
        for directions, factor in ((basis.inputs, basis.input_factor), (basis.outputs, basis.output_factor)):
            turned = directions[0].T.double() @ factor[0].double() @ directions[0].double()
            off = turned - torch.diag(turned.diagonal())
            assert off.abs().max() <= 1e-5 * turned.diagonal().max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_with_identity_rotations_it_is_ewc(kind: str, decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sides longer than `largest` are not rotated: three tasks then end where EWC does. All images and the data's own
    labels, so that both see the same."""
    monkeypatch.setattr(_kronecker, "measure", partial(_kronecker.measure, largest=1))
    given: dict[str, Any] = {"lam": 20.0, "decay": decay, "samples": None, "labels": "empirical"}
    found = Walk(RotatedEWC(**given), toy_stream(), kind).run()
    wanted = Walk(EWC(**given), toy_stream(), kind).run()
    for name, p in wanted.model.named_parameters():
        torch.testing.assert_close(dict(found.model.named_parameters())[name], p, rtol=1e-3, atol=1e-5)
    assert all(
        basis.inputs is None and basis.outputs is None
        for basis in found.method.information.bases.values()
        if basis.bias
    )
    fisher = wanted.method.state["anchors"][0]["fisher"]
    for name, total in found.method.fisher().items():
        torch.testing.assert_close(total, fisher[name], rtol=1e-3, atol=1e-7)


def test_what_earlier_tasks_left_is_carried_over() -> None:
    """The sum of the Fisher information over all directions does not depend on the rotation."""
    walk = Walk(RotatedEWC(lam=0.0, **FEW), toy_stream(), MLP, epochs=1)
    traces = []
    for task in walk.stream:
        before = {n: float(b.eigenvalues.sum()) for n, b in walk.method.information.bases.items()}
        walk.task(task, 1)
        alone = _kronecker.measure(walk.method, task, 20, "sampled", convolutions="channels")
        for name, basis in walk.method.information.bases.items():
            new = float(alone.bases[name].eigenvalues.sum())
            assert float(basis.eigenvalues.sum()) == pytest.approx(before.get(name, 0.0) + new, rel=1e-4)
            traces.append(new)
    assert min(traces) > 0


def test_the_network_is_plain_between_tasks_and_rotated_within() -> None:
    seen: list[bool] = []
    walk = Walk(RotatedEWC(**FEW), toy_stream(), MLP, epochs=1)
    walk.run(
        after_step=lambda walk: seen.append(walk.method.rotated),
        after_task=lambda walk, task: assert_plain(walk),
    )
    first = len(seen) // 3
    assert not any(seen[:first])
    assert all(seen[first:])


def assert_plain(walk: Walk) -> None:
    x, _ = walk.stream[0].test.take(slice(None))
    assert not walk.method.rotated
    assert torch.equal(walk.method.predict(x, walk.stream[0]), walk.model(x, 0))


def test_norm_layers_are_held_by_their_diagonal() -> None:
    walk = Walk(RotatedEWC(**FEW), toy_stream(), MLP | {"norm": "group"}, epochs=1).run()
    assert set(walk.method.information.diagonal) == {n for n in walk.method.protected() if "norm" in n}
    assert set(walk.method.fisher()) == set(walk.method.protected())


def test_what_it_keeps_is_counted() -> None:
    """Channels of two 3x3 convolutions, 1 to 4 and 4 to 6, and a linear layer of 24 + 1 inputs and 12 outputs: factor
    and eigenvectors of each side; the weights twice, as anchor and as Fisher information."""
    walk = after_one_task("cnn")
    weights = 4 * 9 + 4 + 6 * 4 * 9 + 6 + 12 * 24 + 12
    assert weights == sum(p.numel() for p in walk.method.protected().values())
    sides = (1**2 + 4**2) + (4**2 + 6**2) + (25**2 + 12**2)
    assert walk.method.state_bytes() == 4 * (2 * weights + 2 * sides)


@pytest.mark.parametrize("kind", KINDS)
def test_it_resumes_bit_for_bit(kind: str) -> None:
    """In the middle of a task, that is with rotated weights."""
    assert_resumes(lambda: RotatedEWC(**FEW), kind)
    assert_resumes(lambda: RotatedEWC(convolutions="patches", **FEW), kind, "domain")


@pytest.mark.parametrize("wrong", [{"lam": -1.0}, {"decay": 1.5}, {"decay": -0.1}, {"samples": 0}])
def test_bad_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"r-ewc: {next(iter(wrong))}="):
        RotatedEWC(**wrong)
