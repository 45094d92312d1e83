"""EVCL: the bound and the penalty are the ones it names, and both reach the gradients."""

from __future__ import annotations

import pytest
import torch
from tests.lab.methods.loop import CNN, KINDS, MLP, Walk, assert_trains_as_sgd_does, toy_stream
from torch.distributions import Normal, kl_divergence

from drcl.lab.methods.evcl import EVCL


def quick(**more: object) -> EVCL:
    options = {"fisher_samples": 12, "test_samples": 2, "adam_lr": 0.01} | more
    return EVCL(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_with_noise_and_penalties_off_it_trains_as_sgd_does(kind: str) -> None:
    assert_trains_as_sgd_does(quick(lam=0.0, kl=0.0, noise=False, adam_lr=None), kind, momentum=0.9)


@pytest.mark.parametrize("kind", KINDS)
def test_prior_penalty_and_fisher_over_three_tasks(kind: str) -> None:
    def after_task(walk: Walk, task: object) -> None:
        method = walk.method
        assert method.divergence().item() == 0  # the posterior has become the prior
        assert method.penalty().item() == 0
        assert any((f > 0).any() for f in method.state["fisher"].values())
        assert all((s > 0).all() for _, _, _, s in method._normals())
        assert torch.equal(walk.logits(task), walk.logits(task))

    def after_step(walk: Walk) -> None:
        method = walk.method
        if method.at.task == 0 or method.at.step != 0:
            return
        grads = torch.autograd.grad(method.penalty(), [m for _, _, m, _ in method._normals()])
        assert sum(float(g.norm()) for g in grads) > 0

    walk = Walk(quick(), toy_stream(), kind, epochs=1).run(after_step=after_step, after_task=after_task)
    assert [len(row) for row in walk.accuracy] == [1, 2, 3]
    count = sum(m.numel() for _, _, m, _ in walk.method._normals())
    assert walk.method.state_bytes() == 4 * (count + 2 * count + count)  # scales; old means and sigmas; Fisher


def test_divergence_matches_torch_distributions() -> None:
    walk = Walk(quick(prior_sigma=0.7, sigma_start=0.05), toy_stream(), MLP)
    wanted = sum(kl_divergence(Normal(m, s), Normal(0.0, 0.7)).sum() for _, _, m, s in walk.method._normals())
    torch.testing.assert_close(walk.method.divergence(), wanted)
    walk.task(walk.stream[0], 1)
    old = walk.method.state["old"]
    with torch.no_grad():
        for p in walk.method.model.parameters():
            p.add_(0.01)
    wanted = torch.zeros(())
    for name, word, m, s in walk.method._normals():
        wanted = wanted + kl_divergence(Normal(m, s), Normal(old[name][word], old[name][f"{word}_sigma"])).sum()
    torch.testing.assert_close(walk.method.divergence(), wanted, rtol=1e-4, atol=1e-4)


def test_the_penalty_by_hand() -> None:
    walk = Walk(quick(lam=3.0), toy_stream(), {"kind": "mlp", "hidden": [1]})
    walk.task(walk.stream[0], 1)
    method = walk.method
    for fisher in method.state["fisher"].values():
        fisher.fill_(2.0)
    layer = method.layers["trunk.fc1"]
    with torch.no_grad():
        layer.weight[0, :3] += 0.5
        layer.bias_scale.fill_(1.0)
    sigma = torch.nn.functional.softplus(torch.tensor(1.0)).item()
    old = method.state["old"]["trunk.fc1"]["bias_sigma"].item()
    assert method.penalty().item() == pytest.approx(0.5 * 2 * (3 * 0.25 + (sigma**2 - old**2) ** 2), rel=1e-5)


def test_lam_zero_is_vcl_and_keeps_no_fisher() -> None:
    walk = Walk(quick(lam=0.0), toy_stream(), MLP, epochs=1).run()
    assert "fisher" not in walk.method.state
    assert walk.method.gradients == 0


def test_fisher_adds_up_with_its_decay() -> None:
    found = {}
    for gamma in (0.0, 1.0):
        walk = Walk(quick(gamma=gamma, noise=False), toy_stream(), MLP)
        seen: list[torch.Tensor] = []
        for task in walk.stream[:2]:
            walk.task(task, 1)
            seen.append(walk.method.state["fisher"]["trunk.fc2.weight"].clone())
        found[gamma] = seen
    torch.testing.assert_close(found[1.0][0], found[0.0][0])
    torch.testing.assert_close(found[1.0][1], found[0.0][1] + found[0.0][0])


def test_heads_of_tasks_are_plain_and_shared_ones_are_not() -> None:
    assert list(Walk(quick(), toy_stream(), MLP).method.layers) == ["trunk.fc1", "trunk.fc2"]
    shared = Walk(quick(), toy_stream("domain"), MLP, epochs=1).run()
    assert "heads.layers.0" in shared.method.layers


def test_what_it_cannot_do_is_refused() -> None:
    for wrong in ({"lam": -1.0}, {"gamma": 1.5}, {"prior_sigma": 0.0}, {"fisher_samples": 0}, {"adam_lr": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            EVCL(**wrong)
    with pytest.raises(ValueError, match="norm layers"):
        Walk(EVCL(), toy_stream(), CNN | {"norm": "batch"})
    with pytest.raises(ValueError, match="weight_decay"):
        Walk(EVCL(), toy_stream(), MLP, weight_decay=0.1)
