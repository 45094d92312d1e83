"""CUBER: GPM without trust, TRGP without positive correlation; what it releases, and what that does to old tasks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.lab.methods.loop import KINDS, MLP, Walk, assert_resumes, assert_same_weights, toy_stream
from torch import Tensor

from drcl.lab.methods import _bases
from drcl.lab.methods.cuber import CUBER
from drcl.lab.methods.gpm import GPM
from drcl.lab.methods.trgp import TRGP

LOW: dict[str, Any] = {"threshold": 0.9, "increase": 0.003, "samples": 20}
ALWAYS: dict[str, Any] = {"epsilon": 0.0, "correlation": -1.0}  # every old task is positively correlated


class Named(CUBER):
    """The name decides which images are looked at."""

    name = "gpm"


class NamedTRGP(TRGP):
    name = "gpm"


@pytest.mark.parametrize("kind", KINDS)
def test_with_empty_trust_regions_it_is_gpm(kind: str) -> None:
    found = Walk(Named(epsilon=1.0, correlation=-1.0, **LOW), toy_stream(), kind).run()
    wanted = Walk(GPM(**LOW), toy_stream(), kind).run()
    assert found.accuracy == wanted.accuracy
    assert_same_weights(found.model, wanted.model)
    for name, basis in wanted.method.state["bases"].items():
        assert torch.equal(found.method.state["bases"][name], basis)


@pytest.mark.parametrize("kind", KINDS)
def test_without_positive_correlation_it_is_trgp(kind: str) -> None:
    found = Walk(Named(epsilon=0.0, correlation=1.0, **LOW), toy_stream(), kind).run()
    wanted = Walk(NamedTRGP(epsilon=0.0, **LOW), toy_stream(), kind).run()
    assert len(wanted.method.scales)
    assert_same_weights(found.model, wanted.model)


def prepared(correlation: float, cosines: list[float], spaces: list[list[int]], **options: Any) -> tuple[Walk, Tensor]:
    """A first layer with a memory e1 ... e4 of old tasks, whose gradients have these cosines with the new one G."""
    walk = Walk(CUBER(epsilon=0.1, correlation=correlation, **options), toy_stream(), MLP)
    method, name = walk.method, "trunk.fc1"
    method.layers = {name: method.layers[name]}
    gradient = torch.zeros(12, 65)
    gradient[0, :4] = 1.0
    across = torch.zeros(12, 65)
    across[1, 0] = 2.0
    old = [c * gradient / 2 + (1 - c * c) ** 0.5 * across / 2 for c in cosines]
    method.state = {
        "bases": {name: torch.eye(65)[:, :4]},
        "spaces": {name: [torch.tensor(s) for s in spaces]},
        "gradients": {name: old},
        "trusted": {},
    }
    method.gradient = lambda task, word: {name: gradient}
    return walk, gradient


def test_the_three_regimes() -> None:
    """Tasks in e1 e2 (cosine .8), e3 (.8), e2 e4 (-.5): the first two are helped, the third is scaled. It needs e2 as
    well, which is held; e1 and e3 are released."""
    walk, _ = prepared(0.5, [0.8, 0.8, -0.5], [[0, 1], [2], [1, 3]])
    walk.method.before_task(walk.stream[1])
    assert walk.method.state["trusted"]["1"] == {"trunk.fc1": [2]}
    assert walk.method.state["released"]["trunk.fc1"].tolist() == [1, 0, 1, 0]
    assert walk.method.importance("trunk.fc1").tolist() == [0, 1, 0, 1]
    assert torch.equal(walk.method.state["start"]["trunk.fc1"], _bases.weights(walk.method.layers["trunk.fc1"]))
    walk, _ = prepared(0.9, [0.8, 0.8, -0.5], [[0, 1], [2], [1, 3]])
    walk.method.before_task(walk.stream[1])
    assert "released" not in walk.method.state
    assert walk.method.importance("trunk.fc1") is None
    assert len(walk.method.state["trusted"]["1"]["trunk.fc1"]) == 2  # no more are scaled than `related`


def test_what_another_task_scales_stays_held() -> None:
    """The second task has e4 for itself and scales the space e1 e2 of the first one: with it held, nothing is left."""
    walk, _ = prepared(0.5, [0.8, -0.5], [[0, 1], [3]])
    walk.method.state["trusted"] = {"1": {"trunk.fc1": [0]}}
    walk.method.before_task(walk.stream[2])
    assert "released" not in walk.method.state
    walk, _ = prepared(0.5, [0.8, -0.5], [[0, 1], [3]])
    walk.method.state["trusted"] = {"1": {"trunk.fc1": []}}
    walk.method.before_task(walk.stream[2])
    assert walk.method.state["released"]["trunk.fc1"].tolist() == [1, 1, 0, 0]


def test_the_edited_gradient_by_hand() -> None:
    """G plus the gradient of lam/2 * sum over helped j of |(W - W_0) B_j|^2, which autograd gives, without the columns
    that are held. The first two tasks share e1, so it counts twice."""
    walk, _ = prepared(0.5, [0.8, 0.9, -0.5], [[0, 1], [0, 2], [1, 3]], lam=3.0)
    method, layer = walk.method, walk.method.layers["trunk.fc1"]
    method.before_task(walk.stream[1])
    start = _bases.weights(layer).detach().clone()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        layer.weight.add_(torch.randn(layer.weight.shape, generator=generator))
    layer.weight.grad, layer.bias.grad = torch.randn(12, 64, generator=generator), torch.randn(12, generator=generator)
    raw = _bases.gradient(layer)
    now = _bases.weights(layer).detach().requires_grad_()
    penalty = sum(((now - start)[:, space].square().sum() for space in ([0, 1], [0, 2])), torch.zeros(()))
    wanted = raw + torch.autograd.grad(1.5 * penalty, now)[0]
    wanted[:, [1, 3]] = 0.0
    method.after_backward()
    torch.testing.assert_close(_bases.gradient(layer), wanted)


def test_a_released_step_helps_the_old_task_in_first_order() -> None:
    """<G_j, step> < 0 for the projected gradient as well, where the old gradient lies in what was released."""
    walk, gradient = prepared(0.5, [0.8], [[0, 1, 2, 3]])
    method, layer = walk.method, walk.method.layers["trunk.fc1"]
    method.before_task(walk.stream[1])
    layer.weight.grad, layer.bias.grad = gradient[:, :-1].clone(), gradient[:, -1].clone()
    method.after_backward()
    (old,) = method.state["gradients"]["trunk.fc1"]
    assert float((old * -_bases.gradient(layer)).sum()) < 0
    held, _ = prepared(0.9, [0.8], [[0, 1, 2, 3]])
    layer = held.method.layers["trunk.fc1"]
    held.method.before_task(held.stream[1])
    layer.weight.grad, layer.bias.grad = gradient[:, :-1].clone(), gradient[:, -1].clone()
    held.method.after_backward()
    assert not _bases.gradient(layer).any()  # GPM and TRGP leave it nothing


@pytest.mark.parametrize("kind", KINDS)
def test_held_columns_stay_and_released_ones_move(kind: str) -> None:
    start: dict[str, Tensor] = {}
    counted = {"held": 0, "released": 0}

    def after_step(walk: Walk) -> None:
        method = walk.method
        for name, layer in method.layers.items() if walk.method.at.task else ():
            basis, importance = method.state["bases"][name], method.importance(name)
            if walk.method.at.step == 0:  # from after the first step
                start[name] = _bases.weights(layer).detach().clone()
                continue
            change = ((_bases.weights(layer).detach() - start[name]) @ basis).abs().amax(0)
            held = torch.ones(basis.shape[1]) if importance is None else importance
            assert (change[held == 1] <= 1e-5).all()
            assert (change[held == 0] > 0).all()
            counted["held"] += int((held == 1).sum())
            counted["released"] += int((held == 0).sum())

    Walk(CUBER(epsilon=0.0, correlation=0.0, **LOW), toy_stream(tasks=4), kind).run(after_step=after_step)
    assert counted["held"]
    assert counted["released"]


def test_a_stronger_penalty_keeps_released_weights_nearer() -> None:
    tasks = toy_stream(tasks=2)

    def way(lam: float) -> float:
        walk = Walk(CUBER(lam=lam, **ALWAYS, **LOW), tasks, MLP, momentum=0.0)
        walk.task(tasks[0], 2)
        kept = {n: _bases.weights(walk.method.layers[n]).detach() @ m for n, m in walk.method.state["bases"].items()}
        walk.task(tasks[1], 4)
        ends = {n: walk.method.state["bases"][n][:, : then.shape[1]] for n, then in kept.items()}
        now = {n: _bases.weights(walk.method.layers[n]).detach() @ m for n, m in ends.items()}
        return sum(float((now[n] - kept[n]).norm()) for n in kept)

    lengths = [way(lam) for lam in (0.0, 1.0, 10.0)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < 0.5 * lengths[0]


def test_what_it_keeps_is_counted() -> None:
    """As TRGP, and a gradient of each layer for every task; what belongs to one task is dropped with it."""
    walk = Walk(CUBER(**ALWAYS, **LOW), toy_stream(), MLP, epochs=1).run()
    state = walk.method.state
    assert set(state) == {"bases", "spaces", "trusted", "gradients"}
    bases = sum(m.numel() for m in state["bases"].values())
    columns = sum(len(own) for each in state["spaces"].values() for own in each)
    gradients = 3 * (12 * 65 + 10 * 13)
    assert not len(walk.method.scales)
    assert walk.method.state_bytes() == 4 * bases + 8 * columns + 4 * gradients


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"epsilon": 0.1, "correlation": 0.0}, ALWAYS], ids=str)
def test_it_resumes_bit_for_bit(kind: str, options: dict[str, Any]) -> None:
    assert_resumes(lambda: CUBER(**options, **LOW), kind)


@pytest.mark.parametrize("wrong", [{"lam": -1.0}, {"correlation": 1.5}, {"epsilon": 2.0}, {"related": -1}], ids=str)
def test_bad_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"cuber: {next(iter(wrong))}="):
        CUBER(**wrong)


def test_a_hidden_task_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cuber: .*told the task"):
        Walk(CUBER(), toy_stream("class"), MLP)
