"""IBPCL: its sticks and their divergence against integrals, its masks, its temperature and its prior as stated. What
it shares with BAN is in test_structure.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from tests.lab.methods.loop import Walk, toy_stream
from torch.nn import functional as F

from drcl.lab.methods._structure import key
from drcl.lab.methods.base import Batch
from drcl.lab.methods.ibpcl import IBPCL, kumaraswamy_kl, log_kumaraswamy
from drcl.lab.streams import Task

MLP = {"kind": "mlp", "hidden": [30, 24]}
CNN = {"kind": "cnn", "channels": [10, 12], "hidden": 24}
kinds = pytest.mark.parametrize("kind", [MLP, CNN], ids=["mlp", "cnn"])


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (4.5, 1.0), (2.0, 3.0), (0.7, 0.4)])
@pytest.mark.parametrize("alpha", [1.0, 4.5, 0.6])
def test_divergence_of_a_stick_against_an_integral(a, b, alpha):
    def integrand(v: float) -> float:
        log_q = np.log(a * b) + (a - 1) * np.log(v) + (b - 1) * np.log1p(-(v**a))
        return np.exp(log_q) * (log_q - np.log(alpha) - (alpha - 1) * np.log(v))

    wanted = sum(integrate.quad(integrand, *ends, limit=400)[0] for ends in ((0, 0.01), (0.01, 0.99), (0.99, 1)))
    given = (torch.tensor(v, dtype=torch.float64) for v in (a, b, alpha))
    assert kumaraswamy_kl(*given).item() == pytest.approx(wanted, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (19.0, 1.0), (2.0, 3.0)])
def test_sticks_are_drawn_from_their_distribution(a, b):
    u = torch.rand(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = log_kumaraswamy(torch.tensor(a), torch.tensor(b), u).exp().numpy()
    assert stats.kstest(drawn, lambda v: 1 - (1 - v**a) ** b).pvalue > 1e-3


def test_the_mean_stick_is_the_mean():
    walk = Walk(IBPCL(), toy_stream(), {"kind": "mlp", "hidden": [5]})
    method = walk.method
    with torch.no_grad():
        for word, value in (("a", 3.0), ("b", 1.7)):
            method.structure[key("trunk.fc1", word)].normal_(value, 0.3, generator=torch.Generator().manual_seed(1))
    a, b = (t.detach().double().numpy() for t in method.shape("trunk.fc1"))
    means = [integrate.quad(lambda v, a=a, b=b: (1 - v**a) ** b, 0, 1)[0] for a, b in zip(a, b)]  # 1 - its distribution
    found = method.log_sticks(None)["trunk.fc1"].detach().flatten().exp()
    np.testing.assert_allclose(found, np.cumprod(means), rtol=1e-5)


def test_as_many_units_are_expected_as_alpha_says():
    """Without offsets the chances of all units add up to about alpha: sum of (alpha / (alpha + 1))^k over the units."""
    walk = Walk(IBPCL(alpha=0.1), toy_stream(), {"kind": "mlp", "hidden": [100, 6]})
    pi = walk.method.log_sticks(None)["trunk.fc1"].detach().flatten().exp()
    torch.testing.assert_close(pi, (10 / 11) ** torch.arange(1, 101.0))
    assert pi.sum().item() == pytest.approx(10, rel=1e-3)
    assert walk.method.prior("trunk.fc2").tolist() == [1.0] * 6  # at least one unit


@kinds
def test_prior_and_sticks_over_three_tasks(kind):
    alphas: list[dict[str, torch.Tensor]] = []

    def after_step(walk: Walk) -> None:
        method = walk.method
        assert all((p > 0).all() for layer in method.layers for p in method.shape(layer))

    def after_task(walk: Walk, task: Task) -> None:
        method = walk.method
        for layer in method.layers:
            before = alphas[-1][layer] if alphas else torch.full((len(method.layers[layer].weight),), float("nan"))
            learned, now = method.shape(layer)[0].detach(), method.state["alpha"][layer]
            if alphas:
                assert torch.equal(now, torch.maximum(before, learned))
            assert (now >= learned).all()
        alphas.append({n: t.clone() for n, t in method.state["alpha"].items()})

    walk = Walk(IBPCL(test_samples=2, alpha=0.3), toy_stream(), kind, epochs=2)
    walk.run(after_step=after_step, after_task=after_task)
    assert any((alphas[2][n] > alphas[0][n]).any() for n in alphas[0])
    walk.method.at.task = 3
    walk.method.before_task(walk.stream[0])
    for layer in walk.method.layers:
        a, b = walk.method.shape(layer)
        torch.testing.assert_close(a.detach(), alphas[2][layer])
        torch.testing.assert_close(b.detach(), torch.ones_like(b))


def test_temperature_falls_by_the_same_factor_each_step():
    method = IBPCL(hot=8.0, cold=0.5)
    method.at.steps = 5
    found = []
    for method.at.step in range(5):
        found.append(method.temperature())
    assert found == pytest.approx([8, 4, 2, 1, 0.5])
    method.at.steps, method.at.step = 1, 0
    assert method.temperature() == 8.0


@kinds
def test_the_mask_is_the_rounded_mean_of_draws(kind):
    """With many draws: 1 where the chance, the sticks drawn too, is above a half."""
    walk = Walk(IBPCL(mask_samples=300), toy_stream(), kind)
    method, generator = walk.method, torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in method.layers:
            method.offset(layer).normal_(0, 4, generator=generator)
        mask = method.current()
        chances = {layer: 0.0 for layer in method.layers}
        for number in range(300):
            for layer, prior in method.odds(torch.Generator().manual_seed(1000 + number)).items():
                chances[layer] = chances[layer] + torch.sigmoid(method.offset(layer) + prior) / 300
    for layer, chance in chances.items():
        clear = (chance - 0.5).abs() > 0.15
        assert clear.float().mean() > 0.5
        assert torch.equal(mask[layer][clear], (chance > 0.5).float()[clear])


def test_the_loss_by_hand():
    """Both stages, with one draw and weights that are almost certain: cross-entropy, and divergences over n."""
    method = IBPCL(samples=1, kl=0.5, stick_kl=7.0, sigma_start=1e-7, cold=10.0)
    walk = Walk(method, toy_stream(), MLP)
    task = walk.stream[0]
    method.before_task(task)
    method.at.steps = 10
    with torch.no_grad():
        for p in method.structure.values():
            p.add_(0.3)
    x, y = task.train.take(slice(0, 8))
    found = method.loss(Batch(x, y, 0))
    masks, divergence = method.draw(method.generator("draws"), 10.0)
    h = x.flatten(1)
    for name, layer in method.layers.items():
        h = torch.relu(F.linear(h, layer.weight * masks[name], layer.bias * masks[name].amax(1)))
    head = walk.model.heads.layers[0]
    fit = F.cross_entropy(head(h), y)
    sticks = sum(kumaraswamy_kl(*method.shape(n), method.prior(n)).sum() for n in method.layers)
    wanted = fit + 0.5 / len(task.train) * (7.0 * sticks + divergence)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-4)

    method.at.stage = 1
    method.before_stage(task, 1)
    found = method.loss(Batch(x, y, 0))
    fixed, h = method.fixed(), x.flatten(1)
    for name, layer in method.layers.items():
        h = torch.relu(F.linear(h, layer.weight * fixed[name], layer.bias * fixed[name].amax(1)))
    assert found.item() == pytest.approx(F.cross_entropy(head(h), y).item(), rel=1e-4)


def test_it_learns_three_tasks_and_forgets_none():
    for kind in (MLP, CNN):
        walk = Walk(IBPCL(test_samples=4, alpha=0.4), toy_stream(per_class=24), kind, epochs=10).run()
        assert min(walk.accuracy[-1]) >= 0.9


def test_state_is_counted_by_hand():
    walk = Walk(IBPCL(test_samples=0), toy_stream(), MLP, epochs=1).run()
    entries, units = 64 * 30 + 30 * 24, 30 + 24
    numbers = 3 * (entries + units) + entries + 3 * units  # sigma and the old mean and sigma; offsets; a, b, alpha
    assert walk.method.state_bytes() == 4 * numbers + 3 * entries // 8


def test_bad_values_are_named():
    for wrong in ({"alpha": 0.0}, {"stick_kl": -1.0}, {"cold": 0.0}, {"hot": 0.1}, {"mask_samples": 0}):
        with pytest.raises(ValueError, match=f"ibpcl: {next(iter(wrong))}="):
            IBPCL(**wrong)
