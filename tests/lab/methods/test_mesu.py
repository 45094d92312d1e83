"""MESU: its rule, its fixed points, and plain descent with the noise off."""

from __future__ import annotations

import pytest
import torch
from tests.lab.methods.loop import CNN, KINDS, MLP, Walk, toy_stream, weights
from torch import nn
from torch.nn import functional as F

from drcl.lab.methods.base import Batch, Method
from drcl.lab.methods.mesu import MESU, Metaplastic

RULE = {"c_mu": 1.0, "c_sigma": 0.5, "memory": 100.0, "prior_sigma": 0.5, "ratio_max": 1e9, "sigma_range": (1e-6, 9.0)}


def pair(mu: float, sigma: float, **changes: object) -> tuple[nn.Parameter, nn.Parameter, Metaplastic]:
    m, s = (nn.Parameter(torch.tensor([v], dtype=torch.float64)) for v in (mu, sigma))
    return m, s, Metaplastic([(m, s)], **(RULE | changes))  # type: ignore[arg-type]


def test_one_step_by_hand() -> None:
    """mu 2, sigma .1, gradients 3 and 5, N 100, prior .5: variance .01, 1/(N prior^2) = .04."""
    m, s, rule = pair(2.0, 0.1)
    m.grad, s.grad = torch.tensor([3.0], dtype=torch.float64), torch.tensor([5.0], dtype=torch.float64)
    rule.step()
    assert m.item() == pytest.approx(2 - (0.01 * 3 + 0.01 * 2 * 0.04))
    assert s.item() == pytest.approx(0.1 - 0.5 * (0.01 * 5 + 0.1 * (0.01 - 0.25) * 0.04))


def test_without_gradients_it_returns_to_the_prior() -> None:
    m, s, rule = pair(2.0, 0.1, memory=1.0)
    for _ in range(2000):
        m.grad, s.grad = torch.zeros_like(m), torch.zeros_like(s)
        rule.step()
    assert m.item() == pytest.approx(0.0, abs=1e-6)
    assert s.item() == pytest.approx(0.5, abs=1e-6)


def test_a_quadratic_settles_at_prior_precision_plus_n_times_curvature() -> None:
    """For C = h (w - c)^2 / 2 the expected gradients are h (mu - c) and h sigma."""
    h, c = 3.0, 0.7
    m, s, rule = pair(0.0, 0.5, c_mu=5.0, c_sigma=5.0)
    for _ in range(1500):
        m.grad, s.grad = (h * (m - c)).detach(), (h * s).detach()
        rule.step()
    assert 1 / s.item() ** 2 == pytest.approx(1 / 0.25 + 100 * h, rel=1e-3)
    assert m.item() == pytest.approx(100 * h * c / (1 / 0.25 + 100 * h), rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_with_noise_off_and_endless_memory_it_is_sgd_at_the_rate_of_the_variance(kind: str) -> None:
    options = {"noise": False, "memory": float("inf"), "c_sigma": 0.0, "c_mu": 1.0, "ratio_max": 1e9}
    walk = Walk(MESU(**options), toy_stream(), kind, epochs=1)
    start = weights(walk.model)
    walk.run()
    plain = Walk(SGDByLayer(), toy_stream(), kind, epochs=1)
    with torch.no_grad():
        for name, p in plain.model.named_parameters():
            p.copy_(start[name])
    plain.method.sigma = {n: start[f"{n}_scale"] for n, _ in plain.model.named_parameters()}
    plain.run()
    now = weights(walk.model)
    for name, p in plain.model.named_parameters():
        torch.testing.assert_close(now[name], p, atol=1e-5, rtol=1e-4)
        assert torch.equal(now[f"{name}_scale"], start[f"{name}_scale"])
        assert not torch.equal(start[name], now[name])


class SGDByLayer(Method):
    """torch's SGD on the summed loss, with the variance of each tensor as its learning rate."""

    def optimizer(self, task: object) -> torch.optim.Optimizer:
        groups = [
            {"params": [p], "lr": float(self.sigma[n].flatten()[0] ** 2)} for n, p in self.parameters(task).items()
        ]
        return torch.optim.SGD(groups, lr=1.0)

    def loss(self, batch: Batch) -> torch.Tensor:
        return F.cross_entropy(self.model(batch.x, batch.head), batch.y, reduction="sum")


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_bounded_and_sigma_stays_in_range(kind: str) -> None:
    before: dict[str, torch.Tensor] = {}

    def after_step(walk: Walk) -> None:
        now = weights(walk.model)
        for name, p in now.items():
            if before and f"{name}_scale" in now:
                assert ((p - before[name]).abs() <= 0.02 * before[f"{name}_scale"] * 1.001 + 1e-7).all()
            if name.endswith("_scale"):
                assert (p >= 1e-6).all()
                assert (p <= 1).all()
        before.update(now)

    walk = Walk(MESU(samples=2, test_samples=2), toy_stream(), kind, epochs=1)
    before.update(weights(walk.model))
    walk.run(after_step=after_step)
    assert [len(row) for row in walk.accuracy] == [1, 2, 3]
    assert walk.method.gradients == walk.stream[0].train.rows.size // 8 * 3  # one draw more than SGD a step
    means = sum(p.numel() for n, p in walk.model.named_parameters() if not n.endswith("_scale"))
    assert walk.method.state_bytes() == 4 * means


def test_answers_are_deterministic_with_draws_and_with_means() -> None:
    for count in (0, 3):
        walk = Walk(MESU(samples=1, test_samples=count), toy_stream(), MLP)
        task = walk.stream[0]
        assert torch.equal(walk.logits(task), walk.logits(task))
    means = Walk(MESU(test_samples=0), toy_stream(), MLP)
    x, _ = means.stream[0].test.take(slice(None))
    assert torch.equal(means.logits(means.stream[0]), means.model(x, 0))


def test_other_heads_and_shared_ones() -> None:
    walk = Walk(MESU(samples=1), toy_stream(), MLP)
    before = weights(walk.model)
    walk.task(walk.stream[0], 1)
    now = weights(walk.model)
    assert all(torch.equal(before[n], now[n]) for n in now if n.startswith(("heads.layers.1", "heads.layers.2")))
    assert not torch.equal(before["heads.layers.0.weight_scale"], now["heads.layers.0.weight_scale"])
    Walk(MESU(samples=1, test_samples=1), toy_stream("domain"), MLP, epochs=1).run()


def test_what_it_cannot_do_is_refused() -> None:
    for wrong in ({"samples": 0}, {"memory": 0.0}, {"prior_sigma": 0.0}, {"ratio_max": 0.0}, {"sigma_max": 1e-9}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            MESU(**wrong)
    with pytest.raises(ValueError, match="norm layers"):
        Walk(MESU(), toy_stream(), CNN | {"norm": "group"})
