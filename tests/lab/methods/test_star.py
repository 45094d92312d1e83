"""STAR: weights come back bit for bit, the perturbation is as large as stated and does harm, lam = 0 is plain ER."""

from __future__ import annotations

import pytest
import torch
from tests.lab.methods.loop import KINDS, Walk, assert_resumes, assert_same_weights, toy_stream, weights

from drcl.lab import methods, networks
from drcl.lab.methods import _memory
from drcl.lab.methods.base import Batch, Setting
from drcl.lab.methods.er import ER
from drcl.lab.methods.star import STAR, perturbed


def trained(kind: str, scenario: str = "task", **how) -> tuple[STAR, Batch, list[torch.Tensor]]:
    """After three tasks: the method, remembered examples answered correctly, and the answers."""
    method = STAR(memory=40, **how)
    walk = Walk(method, toy_stream(scenario), kind, epochs=3).run()
    walk.model.eval()
    memory = method.state["memory"]
    examples, answers = method.correct(Batch(memory["x"], memory["y"], memory["head"]))
    assert len(examples) > 10
    return method, examples, answers


@pytest.mark.parametrize("kind", KINDS)
def test_size_and_harm_of_the_perturbation(kind):
    method, examples, answers = trained(kind, gamma=0.02)
    own = dict(method.model.named_parameters())
    before = weights(method.model)
    delta = method.perturbation(own, examples, answers)
    assert all(torch.equal(before[n], p) for n, p in own.items())
    reached = 0
    for name, p in own.items():
        if p.dim() < 2:
            assert name not in delta  # biases
        elif name in delta:
            assert delta[name].norm().item() == pytest.approx(0.02 * p.detach().norm().item(), rel=1e-4)
            reached += 1
    assert reached >= 3
    calm = method.divergence(examples, answers).item()
    with perturbed(own, delta):
        harmed = method.divergence(examples, answers).item()
    generator = torch.Generator().manual_seed(1)
    random = {n: torch.randn(d.shape, generator=generator) for n, d in delta.items()}
    with perturbed(own, {n: r * delta[n].norm() / r.norm() for n, r in random.items()}):
        shaken = method.divergence(examples, answers).item()
    assert calm == pytest.approx(0, abs=1e-6)
    assert harmed > shaken > calm  # uphill harms more than a random direction of the same length


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_bit_identical_and_the_gradient_is_that_at_the_perturbed_point(kind, monkeypatch):
    method = STAR(memory=30, lam=0.3)
    walk = Walk(method, toy_stream(), kind)
    found, before, plain = [], {}, {}
    original = STAR._gradient
    monkeypatch.setattr(STAR, "_gradient", lambda *given: found.append(original(*given)) or found[-1])

    def watch(moment, batch):
        if moment == "backward":
            found.clear()
            before.update(weights(walk.model))
            plain.update({n: None if p.grad is None else p.grad.clone() for n, p in walk.model.named_parameters()})
        if moment != "edited":
            return
        assert all(torch.equal(before[n], p) for n, p in walk.model.named_parameters())
        assert len(found) in (0, 2)
        if found:
            for name, p in walk.model.named_parameters():
                base = torch.zeros_like(p) if plain[name] is None else plain[name]
                pull = found[1].get(name)
                if pull is not None:
                    torch.testing.assert_close(p.grad, base + 0.3 * pull, rtol=1e-4, atol=1e-7)
        counts.append(len(found))

    counts: list[int] = []
    walk.run(watch)
    assert counts[0] == 0  # nothing remembered yet
    assert 2 in counts
    assert [len(row) for row in walk.accuracy] == [1, 2, 3]
    assert method.gradients == sum(counts)


def test_divergence_by_hand():
    method, examples, answers = trained("mlp")
    own = dict(method.model.named_parameters())
    order = [int(h) for h in torch.unique(examples.heads())]
    with torch.no_grad(), perturbed(own, {n: 0.1 * torch.ones_like(p) for n, p in own.items()}):
        found = method.divergence(examples, answers)
        expected = []
        for head, before in zip(order, answers, strict=True):
            now = method.model(examples.x[examples.heads() == head], head)
            p, q = (torch.distributions.Categorical(logits=v) for v in (before, now))
            expected.append(torch.distributions.kl_divergence(p, q))
    assert found.item() == pytest.approx(torch.cat(expected).mean().item(), rel=1e-4)


def test_only_correct_examples_are_asked():
    method, examples, _ = trained("mlp")
    memory = method.state["memory"]
    held = Batch(memory["x"], memory["y"], memory["head"])
    with torch.no_grad():
        right = [
            bool(method.model(held.x[i : i + 1], int(held.head[i])).argmax() == held.y[i]) for i in range(len(held))
        ]
    assert len(examples) == sum(right)
    wrong = Batch(held.x, 1 - held.y, held.head)
    opposite, answers = method.correct(wrong)
    assert len(opposite) == len(held) - sum(right)
    assert sum(map(len, answers)) == (len(opposite) if len(opposite) > 1 else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_term_it_is_replay(kind):
    stream = toy_stream()
    a, b = Walk(STAR(lam=0.0, memory=20), stream, kind).run(), Walk(ER(memory=20), stream, kind).run()
    assert_same_weights(a.model, b.model)
    assert torch.equal(a.method.state["memory"]["x"], b.method.state["memory"]["x"])


def test_norm_statistics_stay():
    stream = toy_stream()
    model = networks.build({"kind": "mlp", "hidden": [6], "norm": "shared"}, stream)
    method = STAR()
    method.build(model, Setting("task", 3, stream.heads, stream.shape, 0, 0.1, 0.0, 8))
    method.before_task(stream[0])
    x, y = stream[0].train.take(slice(None))
    _memory.offer(method.state["memory"], Batch(x, y, 0), torch.Generator().manual_seed(0))
    model.train()
    kept = {n: b.clone() for n, b in model.named_buffers()}
    method.after_backward()
    assert method.gradients == 2
    assert model.trunk.norm1.training
    assert all(torch.equal(b, kept[n]) for n, b in model.named_buffers())


@pytest.mark.parametrize("scenario", ["domain", "class"])
def test_shared_heads(scenario):
    method, _, _ = trained("mlp", scenario, lam=0.1)
    assert all(torch.isfinite(p).all() for p in method.model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_resume(kind):
    assert_resumes(lambda: STAR(memory=12, lam=0.1), kind)


def test_weights_come_back_after_an_exception():
    method, _, _ = trained("mlp")
    own = dict(method.model.named_parameters())
    before = weights(method.model)

    def fail():
        with perturbed(own, {n: torch.ones_like(p) for n, p in own.items()}):
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert all(torch.equal(before[n], p) for n, p in own.items())


@pytest.mark.parametrize("wrong", [{"lam": -1.0}, {"gamma": 0.0}, {"start": float("nan")}, {"memory": 0}])
def test_bad_values_are_named(wrong):
    (key,) = wrong
    with pytest.raises(ValueError, match=f"star: {key}="):
        methods.get("star")(**wrong)
