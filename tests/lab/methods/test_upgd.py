"""UPGD: bounds of the gate, what it reduces to, the size of the noise, and utility against a loss difference."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.methods.loop import KINDS, Walk, assert_resumes, assert_same_weights, network, toy_stream, weights

from drcl.lab import methods
from drcl.lab.methods import upgd
from drcl.lab.methods.base import Setting, Where
from drcl.lab.methods.upgd import UPGD, scaled

SCALINGS = ("global", "local")


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_global_scaling_by_hand():
    out = scaled({"a": torch.tensor([4.0, 0.0, -8.0]), "b": torch.tensor([[2.0], [-4.0]])}, "global")
    expected = [sigmoid(v) for v in (1, 0, -2, 0.5, -1)]
    assert torch.cat([out["a"], out["b"].flatten()]).tolist() == pytest.approx(expected, rel=1e-6)


def test_local_scaling_by_hand():
    out = scaled({"a": torch.tensor([[3.0, -4.0], [0.0, 0.0]])}, "local")
    assert out["a"].flatten().tolist() == pytest.approx([sigmoid(0.6), sigmoid(-0.8), 0.5, 0.5], rel=1e-6)


def test_no_useful_weight_keeps_the_order():
    out = scaled({"a": torch.tensor([-1.0, -2.0, 0.0])}, "global")["a"]
    assert out.tolist() == pytest.approx([sigmoid(-0.5), sigmoid(-1), 0.5], rel=1e-6)
    assert scaled({"a": torch.zeros(3)}, "global")["a"].tolist() == [0.5] * 3


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(SCALINGS), st.floats(1e-6, 1e6))
def test_gate_lies_between_zero_and_one_and_ignores_the_scale_of_the_loss(seed, scaling, scale):
    generator = torch.Generator().manual_seed(seed)
    utilities = {n: torch.randn(s, generator=generator) for n, s in (("a", (4, 3)), ("b", (5,)), ("c", (2, 1, 3, 3)))}
    a = scaled(utilities, scaling)
    b = scaled({n: u * scale for n, u in utilities.items()}, scaling)
    for name, share in a.items():
        assert ((share > 0) & (share < 1)).all()
        torch.testing.assert_close(share, b[name], rtol=1e-4, atol=1e-6)
        if scaling == "global":
            assert (1 - share).min() >= 1 - sigmoid(1) - 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["noise", "no utility"])
def test_reduces_to_sgd(kind, how, monkeypatch):
    """Without noise: where only the noise is gated, and where all utilities are set to none."""
    stream = toy_stream()
    plain = Walk(methods.get("sgd")(), stream, kind, momentum=0.0).run()
    if how == "no utility":
        monkeypatch.setattr(upgd, "scaled", lambda u, scaling: {n: torch.zeros_like(t) for n, t in u.items()})
        method = UPGD(sigma=0.0, decay=0.0)
    else:
        method = UPGD(sigma=0.0, decay=0.0, protect="noise")
    assert_same_weights(plain.model, Walk(method, stream, kind).run().model)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_step_by_the_equations(kind, scaling):
    """The second step of a task, worked out from weights and gradients seen from outside."""
    beta, decay, lr = 0.7, 0.01, 0.05
    method = UPGD(scaling=scaling, sigma=0.0, beta=beta, decay=decay)
    walk = Walk(method, toy_stream(), kind, lr=lr)
    seen: list[tuple[dict, dict]] = []
    checked = []

    def watch(moment, batch):
        if method.at.task or method.at.step > 1:
            return
        if moment == "backward":
            own = {n: p for n, p in walk.model.named_parameters() if p.grad is not None}
            seen.append(({n: p.detach().clone() for n, p in own.items()}, {n: p.grad.clone() for n, p in own.items()}))
        if moment == "stepped" and method.at.step == 1:
            (w0, g0), (w1, g1) = seen
            trace = {n: beta * (1 - beta) * -g0[n] * w0[n] + (1 - beta) * -g1[n] * w1[n] for n in w1}
            utility = {n: t / (1 - beta**2) for n, t in trace.items()}
            best = max(float(u.max()) for u in utility.values())
            for n, u in utility.items():
                ratio = u / best if scaling == "global" else torch.nn.functional.normalize(u, dim=-1)
                expected = (1 - lr * decay) * w1[n] - lr * g1[n] * (1 - torch.sigmoid(ratio))
                torch.testing.assert_close(
                    dict(walk.model.named_parameters())[n].detach(), expected, rtol=1e-4, atol=1e-6
                )
                checked.append(n)

    walk.run(watch)
    assert len(checked) == len(walk.model.groups()["trunk"]) + 2


def test_utility_is_the_loss_of_zeroing_a_weight():
    """For a loss linear in a weight the first order is exact: the last bias-free logit difference of one example."""
    stream = toy_stream()
    model = network("mlp", stream).double()
    method = UPGD(beta=0.0)
    method.build(model, Setting("task", 3, stream.heads, stream.shape, 0, 0.1, 0.0, 8))
    x, _ = stream[0].train.take(slice(0, 1))
    model(x.double(), 0)[0, 0].backward()
    method.after_backward()
    head = model.heads.layers[0]
    value = model(x.double(), 0)[0, 0].item()
    with torch.no_grad():
        for column in range(head.in_features):
            kept = head.weight[0, column].item()
            head.weight[0, column] = 0.0
            rise = model(x.double(), 0)[0, 0].item() - value
            head.weight[0, column] = kept
            assert method.state["utility"]["heads.layers.0.weight"][0, column].item() == pytest.approx(rise, abs=1e-12)


@pytest.mark.parametrize("protect", ["gradient", "noise"])
def test_size_of_the_noise(protect):
    """Zero weights have no utility, so the noise of a step has the variance (lr sigma / 2)^2."""
    stream, sigma, lr = toy_stream(), 3.0, 0.1
    model = network("mlp", stream)
    method = UPGD(sigma=sigma, protect=protect, decay=0.0)
    method.build(model, Setting("task", 3, stream.heads, stream.shape, 0, lr, 0.0, 8))
    steps = []
    for step in range(20):
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        for p in method.parameters(stream[0]).values():
            p.grad = torch.zeros_like(p)
        method.at = Where(step=step)
        method.after_backward()
        method.optimizer(stream[0]).step()
        steps.append(torch.cat([p.detach().flatten() for p in method.parameters(stream[0]).values()]))
    noise = torch.stack(steps)
    count = noise.numel()
    assert noise.std().item() == pytest.approx(lr * sigma / 2, rel=4 / math.sqrt(2 * count))
    assert abs(noise.mean().item()) < 4 * lr * sigma / 2 / math.sqrt(count)
    assert len({row.sum().item() for row in noise}) == 20  # other noise at every step


def test_other_heads_stay():
    stream = toy_stream()
    method = UPGD(sigma=0.1)
    walk = Walk(method, stream)
    before = weights(walk.model)
    marks = {}

    def watch(moment, batch):
        marks[method.at.task] = weights(walk.model)

    walk.run(watch)
    for head in (1, 2):
        name = f"heads.layers.{head}.weight"
        assert torch.equal(before[name], marks[0][name])
    assert torch.equal(marks[0]["heads.layers.0.weight"], marks[2]["heads.layers.0.weight"])
    assert [len(row) for row in walk.accuracy] == [1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_resume(kind, scaling):
    assert_resumes(lambda: UPGD(scaling=scaling, sigma=0.05), kind, "domain")


def test_state_is_one_number_a_weight():
    method = UPGD()
    walk = Walk(method, toy_stream("domain"), epochs=1).run()
    assert method.state_bytes() == 4 * sum(p.numel() for p in walk.model.parameters())


@pytest.mark.parametrize("wrong", [{"sigma": -1.0}, {"beta": 1.0}, {"beta": -0.1}, {"decay": float("nan")}])
def test_bad_values_are_named(wrong):
    (key,) = wrong
    with pytest.raises(ValueError, match=f"upgd: {key}="):
        methods.get("upgd")(**wrong)
