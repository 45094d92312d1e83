"""UCL: its penalty by hand, nothing but plain training with everything off, and means that answer."""

from __future__ import annotations

import pytest
import torch
from tests.lab.methods.loop import CNN, KINDS, MLP, Walk, assert_trains_as_sgd_does, toy_stream
from torch.distributions import Normal, kl_divergence

from drcl.lab.methods.ucl import UCL, spread

OFF = {"beta": 0.0, "alpha": 0.0, "strength": 0.0, "noise": False, "adam_lr": None}


@pytest.mark.parametrize("kind", KINDS)
def test_with_noise_and_penalty_off_it_trains_as_sgd_does(kind: str) -> None:
    assert_trains_as_sgd_does(UCL(**OFF), kind, momentum=0.9)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_deterministic_and_the_old_model_is_left_alone(kind: str) -> None:
    old: list[torch.Tensor] = []

    def after_task(walk: Walk, task: object) -> None:
        assert torch.equal(walk.logits(task), walk.logits(task))
        old[:] = [t.clone() for layer in walk.method.state["old"].values() for t in layer.values()]

    def after_step(walk: Walk) -> None:
        now = [t for layer in walk.method.state["old"].values() for t in layer.values()]
        assert all(torch.equal(a, b) for a, b in zip(old, now))

    walk = Walk(UCL(), toy_stream(), kind, epochs=1).run(after_step=after_step, after_task=after_task)
    assert [len(row) for row in walk.accuracy] == [1, 2, 3]
    assert all((layer.sigma()[0] > 0).all() for layer in walk.method.layers.values())
    means = sum(p.numel() for layer in walk.method.layers.values() for p in (layer.weight, layer.bias))
    units = sum(layer.weight_scale.numel() for layer in walk.method.layers.values())
    assert walk.method.state_bytes() == 4 * (means + 2 * units)


def test_the_penalty_by_hand() -> None:
    """Two units feeding one, a step later: every factor is written out with plain numbers."""
    walk = Walk(UCL(beta=0.5, strength=1.0), toy_stream(), {"kind": "mlp", "hidden": [2, 1]})
    method = walk.method
    method.before_task(walk.stream[0])
    method.at.task = 1
    one, two = method.layers.values()
    method.first = {name: torch.full((n,), 0.4) for name, n in zip(method.layers, (2, 1))}
    old_one, old_two = method.state["old"].values()
    old_one["weight_sigma"] = torch.tensor([[0.1], [0.2]])  # ties 4 and 2
    old_two["weight_sigma"] = torch.tensor([[0.8 / 6]])  # tie 3
    old_two["weight"] = torch.tensor([[0.5, -1.0]])
    old_two["bias"] = torch.tensor([0.25])
    inverse = lambda v: float(torch.log(torch.expm1(torch.tensor(v))))  # noqa: E731
    with torch.no_grad():
        one.weight.copy_(old_one["weight"])
        one.bias.copy_(old_one["bias"])
        one.bias[0] += 0.1
        two.weight.copy_(torch.tensor([[0.6, -1.2]]))  # moved by .1 and -.2
        two.bias.copy_(torch.tensor([0.35]))  # moved by .1
        one.weight_scale.copy_(torch.tensor([[inverse(0.1)], [inverse(0.2)]]))
        two.weight_scale.copy_(torch.tensor([[inverse(0.4)]]))  # r = 9
    quadratic = (4 * 0.1) ** 2 + (max(3, 4) * 0.1) ** 2 + (max(3, 2) * 0.2) ** 2 + (3 * 0.1) ** 2
    precision = 1 / (0.8 / 6) ** 2
    linear = 0.16 * precision * (0.5**2 * 0.1 + 1.0**2 * 0.2 + 0.25**2 * 0.1)  # the first layer's old bias is 0
    log = lambda v: float(torch.tensor(v, dtype=torch.float64).log())  # noqa: E731
    widths = (1 + 0.01 - log(0.01)) + (1 + 0.04 - log(0.04)) + (9 - log(9.0) + 0.16 - log(0.16))
    wanted = 0.5 * quadratic + linear + 0.25 * widths
    assert method.penalty().item() == pytest.approx(wanted, rel=1e-4)
    method.at.task = 0
    assert method.penalty().item() == pytest.approx(0.5 * 0.01 * quadratic + 0.25 * widths, rel=1e-4)


def test_flattened_channels_pass_their_ties_on_to_their_own_inputs() -> None:
    walk = Walk(UCL(beta=0.0), toy_stream(), {"kind": "cnn", "channels": [2], "hidden": 3})
    method = walk.method
    method.before_task(walk.stream[0])
    method.at.task = 1
    conv, wide = method.layers.values()
    state = list(method.state["old"].values())
    state[0]["weight_sigma"] = conv.sigma()[0].detach() / torch.tensor([5.0, 1.0]).view(2, 1, 1, 1)
    state[1]["weight"] = torch.zeros_like(wide.weight)
    with torch.no_grad():
        wide.weight.zero_()
        wide.weight[0, 15] = 1.0  # the last input of channel 0: a 4x4 map each
    assert method.penalty().item() == pytest.approx(0.5 * 25)
    with torch.no_grad():
        wide.weight.zero_()
        wide.weight[0, 16] = 1.0  # the first of channel 1
    assert method.penalty().item() == pytest.approx(0.5)


def test_the_term_of_sigma() -> None:
    """It is twice a KL up to terms without r, and its gradient vanishes where it should."""
    old = torch.tensor([0.3, 1.5], dtype=torch.float64)
    best = (2 * old**2 / (1 + old**2)).sqrt().requires_grad_()
    spread(best, old).backward()
    torch.testing.assert_close(best.grad, torch.zeros_like(old), atol=1e-12, rtol=0)
    sigma = torch.tensor([0.2, 0.7], dtype=torch.float64)
    twice = 2 * kl_divergence(Normal(0.0, sigma), Normal(0.0, old)).sum() + 2
    torch.testing.assert_close(spread(sigma, old), twice + (sigma**2 - (sigma**2).log()).sum())


def test_it_starts_with_the_stated_variances() -> None:
    walk = Walk(UCL(ratio=0.25), toy_stream(), {"kind": "mlp", "hidden": [400, 10]})
    first = walk.method.layers["trunk.fc1"]
    total = 2 / 64
    torch.testing.assert_close(first.sigma()[0] ** 2, torch.full((400, 1), 0.25 * total))
    assert float(first.weight.detach().var()) == pytest.approx(0.75 * total, rel=0.05)


def test_a_shared_head_is_one_more_layer() -> None:
    walk = Walk(UCL(), toy_stream("domain"), MLP, epochs=1).run()
    assert list(walk.method.layers)[-1] == "heads.layers.0"


def test_two_learning_rates() -> None:
    walk = Walk(UCL(rho_lr=0.02, adam_lr=0.01), toy_stream(), MLP)
    groups = walk.method.optimizer(walk.stream[0]).param_groups
    assert [(g["lr"], len(g["params"])) for g in groups] == [(0.01, 6), (0.02, 2)]


def test_what_it_cannot_do_is_refused() -> None:
    for wrong in ({"ratio": 1.0}, {"ratio": 0.0}, {"beta": -1.0}, {"adam_lr": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            UCL(**wrong)
    with pytest.raises(ValueError, match="norm layers"):
        Walk(UCL(), toy_stream(), CNN | {"norm": "group"})
    with pytest.raises(ValueError, match="weight_decay"):
        Walk(UCL(), toy_stream(), MLP, weight_decay=0.1)
