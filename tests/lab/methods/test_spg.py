"""SPG: masks between 0 and 1 that only grow, gradients scaled by them, and a first task without any."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.lab.methods.loop import KINDS, Walk, assert_resumes, assert_same_weights, toy_stream, weights

from drcl.lab.methods.sgd import SGD
from drcl.lab.methods.spg import SPG, soft_mask, standardised


def by_hand(model, task, heads, names) -> dict[str, np.ndarray]:
    """The definition in float64, one backward pass over all data at once."""
    x, y = task.train.take(slice(None))
    model.eval()
    own = dict(model.named_parameters())
    best = {name: np.zeros(own[name].shape) for name in names}
    for head in heads:
        logits = model(x, head)
        value = -torch.log_softmax(logits, 1)[range(len(y)), y].sum() if head == task.head else logits.sum()
        for name, g in zip(names, torch.autograd.grad(value, [own[n] for n in names]), strict=True):
            values = g.double().numpy()
            best[name] = np.maximum(best[name], np.abs(np.tanh((values - values.mean()) / values.std())))
    return best


@pytest.mark.parametrize("kind", KINDS)
def test_mask_by_definition_over_three_tasks(kind):
    stream = toy_stream()
    method = SPG()
    masks, expected = [], {}
    after = method.after_task

    def compared(task):
        for name, found in by_hand(walk.model, task, range(task.index + 1), list(method.protected())).items():
            expected[name] = np.maximum(expected.get(name, 0), found)
        before = weights(walk.model)
        after(task)
        assert all(torch.equal(before[n], p) for n, p in walk.model.named_parameters())
        masks.append({n: m.clone() for n, m in method.state["mask"].items()})
        for name, mask in masks[-1].items():
            np.testing.assert_allclose(mask.numpy(), expected[name], rtol=2e-3, atol=2e-4)

    method.after_task = compared
    walk = Walk(method, stream, kind)
    walk.run()
    assert len(masks) == 3
    for name, last in masks[-1].items():
        assert name.startswith("trunk.")
        assert ((last >= 0) & (last < 1)).all()
        assert (last >= masks[1][name]).all()
        assert (masks[1][name] >= masks[0][name]).all()
    assert [len(row) for row in walk.accuracy] == [1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_scaled(kind):
    stream = toy_stream()
    method = SPG()
    plain, tasks = {}, set()

    def watch(moment, batch):
        own = method.parameters(stream[method.at.task])
        if moment == "backward":
            plain.update({n: p.grad.clone() for n, p in own.items()})
        if moment != "edited":
            return
        tasks.add(method.at.task)
        masks = method.state.get("mask")
        if masks is None:
            assert all(torch.equal(p.grad, plain[n]) for n, p in own.items())
            return
        mean = np.concatenate([m.double().numpy().ravel() for m in masks.values()]).mean()
        for name, p in own.items():
            share = masks[name] if name in masks else torch.tensor(mean, dtype=torch.float32)
            torch.testing.assert_close(p.grad, plain[name] * (1 - share), rtol=1e-4, atol=1e-8)

    Walk(method, stream, kind).run(watch)
    assert tasks == {0, 1, 2}


def test_a_mask_of_zeros_is_fine_tuning(monkeypatch):
    stream = toy_stream()
    zeros = lambda self, task, head: {n: torch.zeros_like(p) for n, p in self.protected().items()}  # noqa: E731
    monkeypatch.setattr(SPG, "importance", zeros)
    assert_same_weights(Walk(SPG(), stream).run().model, Walk(SGD(), stream).run().model)


def test_one_value_far_out_stays_below_one():
    values = torch.zeros(10_000)
    values[0] = 1.0
    assert standardised(values)[0] == pytest.approx(np.sqrt(10_000 - 1), rel=1e-3)  # 100 standard deviations
    assert 0.999 < soft_mask(values)[0] < 1
    assert (standardised(torch.full((3,), 2.0)) == 0).all()
    assert (standardised(torch.ones(1)) == 0).all()


@pytest.mark.parametrize("scenario", ["domain", "class"])
def test_a_shared_head_is_masked_too(scenario):
    walk = Walk(SPG(), toy_stream(scenario)).run()
    assert set(walk.method.state["mask"]) == {name for name, _ in walk.model.named_parameters()}
    assert all(torch.isfinite(m).all() for m in walk.method.state["mask"].values())
    assert len(walk.accuracy[-1]) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_resume(kind):
    assert_resumes(SPG, kind)


def test_state_is_one_number_a_weight():
    method = SPG()
    walk = Walk(method, toy_stream(), epochs=1).run()
    assert method.state_bytes() == 4 * sum(p.numel() for p in walk.model.groups()["trunk"].values())
