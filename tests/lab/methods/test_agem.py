"""A-GEM: never against the reference, untouched without a conflict, never longer; memory of earlier tasks only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.methods.loop import KINDS, Walk, assert_resumes, assert_same_weights, toy_stream
from torch import nn

from drcl.lab import methods, networks
from drcl.lab.methods.agem import AGEM, project
from drcl.lab.methods.base import Batch, Setting


def flat(tensors) -> np.ndarray:
    return np.concatenate([t.double().flatten().numpy() for t in tensors])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-3, 1e3))
def test_projection_by_formula(seed, scale):
    """Against the formula on one flat vector in numpy; missing gradients are zeros there."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(3, 4), (5,), (2, 3)]
    own = [nn.Parameter(torch.randn(s, generator=generator)) for s in shapes]
    grads = [scale * torch.randn(s, generator=generator) for s in shapes[:2]] + [None]
    refs = [None, *(torch.randn(s, generator=generator) for s in shapes[1:])]
    for p, g in zip(own, grads, strict=True):
        p.grad = None if g is None else g.clone()
    g = flat([torch.zeros(s) if t is None else t for t, s in zip(grads, shapes, strict=True)])
    r = flat([torch.zeros(s) if t is None else t for t, s in zip(refs, shapes, strict=True)])
    conflict = project(own, refs)
    assert conflict == (g @ r < 0)
    if not conflict:
        assert own[2].grad is None
        assert all(torch.equal(p.grad, t) for p, t in zip(own[:2], grads[:2], strict=True))
        return
    after = flat([p.grad for p in own])
    np.testing.assert_allclose(after, g - (g @ r) / (r @ r) * r, rtol=1e-4, atol=1e-5 * scale)
    assert after @ r >= -1e-6 * np.linalg.norm(g) * np.linalg.norm(r)
    assert np.linalg.norm(after) <= np.linalg.norm(g) * (1 + 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_never_points_against_the_memory(kind, monkeypatch):
    method = AGEM(per_class=4, reference=6)
    references, before = [], {}
    original = AGEM.reference_gradient

    def kept(self, examples, own):
        assert (examples.head < self.at.task).all()  # never the current task's own
        assert len(examples) == 6
        references.append(original(self, examples, own))
        return references[-1]

    monkeypatch.setattr(AGEM, "reference_gradient", kept)
    conflicts = []

    def watch(moment, batch):
        own = method.parameters(stream[method.at.task])
        if moment == "backward":
            references.clear()
            before.clear()
            before.update({n: None if p.grad is None else p.grad.clone() for n, p in own.items()})
        if moment != "edited":
            return
        if not references:
            assert method.at.task == 0
        else:
            (reference,) = references
            zero = [torch.zeros_like(p) for p in own.values()]
            r = flat([z if t is None else t for t, z in zip(reference, zero, strict=True)])
            g = flat([z if t is None else t for t, z in zip(before.values(), zero, strict=True)])
            after = flat([z if p.grad is None else p.grad for p, z in zip(own.values(), zero, strict=True)])
            size = np.linalg.norm(g) * np.linalg.norm(r)
            assert after @ r >= -1e-6 * size
            conflicts.append(bool(g @ r < 0))
            if conflicts[-1]:
                assert np.linalg.norm(after) <= np.linalg.norm(g)
                return
        for name, p in own.items():
            assert (p.grad is None) == (before[name] is None)
            assert p.grad is None or torch.equal(p.grad, before[name])

    stream = toy_stream()
    walk = Walk(method, stream, kind, epochs=3).run(watch)
    assert any(conflicts)
    assert not all(conflicts)
    assert [len(row) for row in walk.accuracy] == [1, 2, 3]
    assert method.gradients == len(conflicts)


def test_reference_is_the_mean_over_each_examples_own_head():
    method = AGEM(per_class=3, reference=100)
    walk = Walk(method, toy_stream(), epochs=1).run()
    memory, model = method.state["memory"], walk.model
    own = list(model.parameters())
    found = method.reference_gradient(Batch(memory["x"], memory["y"], memory["head"]), own)
    single = [
        torch.nn.functional.cross_entropy(model(memory["x"][i : i + 1], int(h)), memory["y"][i : i + 1])
        for i, h in enumerate(memory["head"])
    ]
    expected = torch.autograd.grad(torch.stack(single).mean(), own)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_memory_holds_so_many_of_each_class_with_label_and_head():
    stream = toy_stream()
    method = AGEM(per_class=5)
    Walk(method, stream, epochs=1).run()
    memory = method.state["memory"]
    assert len(memory["y"]) == 3 * 2 * 5
    for task in stream:
        rows = memory["head"] == task.head
        assert torch.bincount(memory["y"][rows]).tolist() == [5, 5]
        x, y = task.train.take(slice(None))
        known = {(image.numpy().tobytes(), int(label)) for image, label in zip(x, y, strict=True)}
        mine = {(i.numpy().tobytes(), int(n)) for i, n in zip(memory["x"][rows], memory["y"][rows], strict=True)}
        assert len(mine) == 10
        assert mine <= known
    assert method.state_bytes() == 30 * (64 * 4 + 8 + 8)


def test_the_first_task_is_fine_tuning():
    stream = toy_stream()[:1]
    assert_same_weights(Walk(AGEM(), stream).run().model, Walk(methods.get("sgd")(), stream).run().model)


def test_the_reference_leaves_norm_statistics_alone():
    stream = toy_stream()
    model = networks.build({"kind": "mlp", "hidden": [6], "norm": "shared"}, stream)
    method = AGEM()
    method.build(model, Setting("task", 3, stream.heads, stream.shape, 0, 0.1, 0.0, 8))
    method.before_task(stream[0])
    method.after_task(stream[0])
    model.train()
    kept = {n: b.clone() for n, b in model.named_buffers()}
    method.at.task = 1
    method.after_backward()
    assert model.trunk.norm1.training
    assert all(torch.equal(b, kept[n]) for n, b in model.named_buffers())


def test_the_reference_leaves_the_answers_to_the_batch_alone():
    """Online accuracy is read from them after the reference gradient was taken."""
    method = AGEM(per_class=3)
    walk = Walk(method, toy_stream("domain"), epochs=1).run()
    x, y = walk.stream[0].train.take(slice(0, 8))
    method.loss(Batch(x, y, 0)).backward()
    before = method.logits
    method.after_backward()
    assert method.logits is before is not None


@pytest.mark.parametrize("scenario", ["domain", "class"])
def test_shared_heads(scenario):
    walk = Walk(AGEM(per_class=3), toy_stream(scenario)).run()
    assert len(walk.accuracy[-1]) == 3
    classes = 6 if scenario == "domain" else 2
    assert len(walk.method.state["memory"]["y"]) == 3 * classes * 3


@pytest.mark.parametrize("kind", KINDS)
def test_resume(kind):
    assert_resumes(lambda: AGEM(per_class=4, reference=6), kind)


@pytest.mark.parametrize("wrong", [{"per_class": 0}, {"reference": -1}])
def test_bad_values_are_named(wrong):
    (key,) = wrong
    with pytest.raises(ValueError, match=f"agem: {key}="):
        methods.get("agem")(**wrong)
