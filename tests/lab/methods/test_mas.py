"""MAS: importance against plain autograd, the penalty's gradient against autograd, and how tasks add up."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.lab.methods.loop import KINDS, Walk, assert_resumes, toy_stream, weights

from drcl.lab import methods, networks
from drcl.lab.methods.base import Setting
from drcl.lab.methods.mas import MAS


def by_hand(model, task, names) -> dict[str, torch.Tensor]:
    """The definition, sample by sample."""
    x, _ = task.train.take(slice(None))
    model.eval()
    own = dict(model.named_parameters())
    total = {name: torch.zeros_like(own[name]) for name in names}
    for image in x:
        squared = (model(image[None], task.head) ** 2).sum()
        for name, g in zip(names, torch.autograd.grad(squared, [own[n] for n in names]), strict=True):
            total[name] += g.abs() / len(x)
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_importance_is_the_mean_sensitivity_and_adds_up(kind):
    stream = toy_stream()
    method = MAS(decay=0.5)
    walk = Walk(method, stream[:1], kind).run()
    names = list(method.protected())
    first = by_hand(walk.model, stream[0], names)
    for name in names:
        torch.testing.assert_close(method.state["importance"][name], first[name], rtol=1e-4, atol=1e-6)
    method.after_task(stream[1])
    second = by_hand(walk.model, stream[1], names)
    for name in names:
        expected = 0.5 * first[name] + second[name]
        torch.testing.assert_close(method.state["importance"][name], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_of_the_penalty_is_autograds(kind):
    method = MAS(lam=0.7, samples=10)
    plain: dict[str, torch.Tensor] = {}
    starts, largest = [], []

    def watch(moment, batch):
        if moment == "backward":
            if method.at.step == 0:
                starts.append(method.penalty().item())
            plain.update({n: p.grad.clone() for n, p in method.protected().items()})
        if moment == "edited" and method.at.task == 2 and method.at.step == 4:
            own = method.protected()
            pull = torch.autograd.grad(method.penalty(), list(own.values()))
            for (name, p), expected in zip(own.items(), pull, strict=True):
                torch.testing.assert_close(p.grad - plain[name], expected, rtol=1e-3, atol=1e-6)
                largest.append(expected.abs().max().item())

    walk = Walk(method, toy_stream(), kind, lr=0.01).run(watch)
    assert starts == [0.0, 0.0, 0.0]
    assert max(largest) > 0
    assert all(torch.equal(a, weights(walk.model)[n]) for n, a in method.state["anchor"].items())
    assert [len(row) for row in walk.accuracy] == [1, 2, 3]


def test_classes_to_come_do_not_count():
    method = MAS()
    walk = Walk(method, toy_stream("class")[:2], lr=0.01).run()
    last = method.state["importance"]["heads.layers.0.weight"]
    assert torch.isfinite(last).all()
    assert last[:4].any()
    assert not last[4:].any()
    assert len(walk.accuracy[-1]) == 2


def test_strength_zero_is_fine_tuning():
    stream = toy_stream()
    a = Walk(MAS(lam=0.0), stream).run().model
    b = Walk(methods.get("sgd")(), stream).run().model
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0)


def test_estimating_leaves_the_model_alone():
    method = MAS()
    walk = Walk(method, toy_stream(), "cnn", epochs=1).run()
    before, state = weights(walk.model), torch.get_rng_state()
    kept = copy.deepcopy(walk.model.state_dict())
    method.importance(walk.stream[0])
    assert all(torch.equal(before[n], p) for n, p in walk.model.named_parameters())
    assert all(torch.equal(kept[n], t) for n, t in walk.model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("kind", KINDS)
def test_resume(kind):
    assert_resumes(lambda: MAS(samples=8), kind, lr=0.01)


def test_state_is_two_numbers_a_weight():
    method = MAS()
    walk = Walk(method, toy_stream(), epochs=1, lr=0.01).run()
    assert method.state_bytes() == 2 * 4 * sum(p.numel() for p in walk.model.groups()["trunk"].values())


def test_with_batch_statistics_an_image_is_normalised_by_those_of_the_sample():
    stream = toy_stream()
    setting = Setting("task", 3, stream.heads, stream.shape, 0, 0.1, 0.0, 8)
    method, task = MAS(), stream[0]
    model = method.build(networks.build({"kind": "mlp", "hidden": [4], "norm": "batch"}, stream), setting)
    # The same network with running statistics, set by hand to those of the one norm layer's inputs.
    twin = networks.build({"kind": "mlp", "hidden": [4], "norm": "shared"}, stream)
    twin.load_state_dict(model.state_dict(), strict=False)
    x, _ = task.train.take(slice(None))
    inputs = (x.flatten(1) @ model.trunk.fc1.weight.T + model.trunk.fc1.bias).detach()
    twin.trunk.norm1.running_mean.copy_(inputs.mean(0))
    twin.trunk.norm1.running_var.copy_(inputs.var(0, correction=0))
    names = list(method.protected())
    model.eval()
    for name, found in method.importance(task).items():
        torch.testing.assert_close(found, by_hand(twin, task, names)[name], rtol=1e-4, atol=1e-6)
    assert model.state_dict().keys() == twin.state_dict().keys() - {
        f"trunk.norm1.{word}" for word in ("running_mean", "running_var", "num_batches_tracked")
    }


@pytest.mark.parametrize("wrong", [{"lam": -1.0}, {"decay": 1.5}, {"samples": 0}])
def test_bad_values_are_named(wrong):
    (key,) = wrong
    with pytest.raises(ValueError, match=f"mas: {key}="):
        methods.get("mas")(**wrong)
