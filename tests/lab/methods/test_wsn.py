"""WSN: what a finished task uses is never touched, and its answers stay the same bit for bit."""

from __future__ import annotations

import pytest
import torch
from tests.lab.methods.loop import CNN, KINDS, MLP, SPECS, Walk, toy_stream, weights
from torch.func import functional_call
from torch.nn import functional as F

from drcl.lab.methods.base import Batch
from drcl.lab.methods.wsn import WSN, pack, top_share, unpack

OPTIMIZERS = {
    "adam": (WSN(density=0.3, adam_lr=0.01), {}),
    "momentum": (WSN(density=0.3, adam_lr=None), {"momentum": 0.9}),
}


@pytest.mark.parametrize("kind", [*KINDS, "cnn with batch norm"])
@pytest.mark.parametrize("how", OPTIMIZERS)
def test_old_logits_and_masked_weights_are_bit_identical(kind: str, how: str) -> None:
    spec = SPECS.get(kind, CNN | {"norm": "per-task"})
    options, setting = OPTIMIZERS[how]
    method = WSN(density=options.density, adam_lr=options.adam_lr)
    tasks = toy_stream()
    logits: dict[int, torch.Tensor] = {}
    kept: list[tuple[str, torch.Tensor, torch.Tensor]] = []

    def after_task(walk: Walk, task: object) -> None:
        now = weights(walk.model)
        for old, then in logits.items():
            assert torch.equal(walk.logits(tasks[old]), then)
        for name, used, then in kept:
            assert torch.equal(now[name][used], then)
        logits[task.index] = walk.logits(task)
        for name, mask in method.mask_of(task.index).items():
            kept.append((name, mask.bool(), now[name][mask.bool()]))

    start = weights(Walk(WSN(), tasks, spec).model)
    walk = Walk(method, tasks, spec, **setting).run(after_task=after_task)
    assert len(logits) == 3
    assert any(not torch.equal(start[n], p) for n, p in walk.model.named_parameters() if n in method.masked)
    assert [len(row) for row in walk.accuracy] == [1, 2, 3]


def test_masks_have_the_density_and_their_union_grows() -> None:
    seen: list[dict[str, torch.Tensor]] = []

    def after_task(walk: Walk, task: object) -> None:
        for name, mask in walk.method.mask_of(task.index).items():
            assert int(mask.sum()) == round(0.3 * walk.method.masked[name].numel())
        union = walk.method.used()
        for name, used in union.items():
            by_hand = torch.stack([walk.method.mask_of(t)[name] for t in range(task.index + 1)]).amax(0).bool()
            assert torch.equal(used, by_hand)
        if seen:
            assert all((union[n] | seen[-1][n]).equal(union[n]) for n in union)
        seen.append({n: u.clone() for n, u in union.items()})

    walk = Walk(WSN(density=0.3, adam_lr=0.01), toy_stream(tasks=4), CNN, epochs=1).run(after_task=after_task)
    shares = [float(torch.cat([u.flatten() for u in s.values()]).double().mean()) for s in seen]
    assert shares[0] == pytest.approx(0.3, abs=0.01)
    assert shares[-1] > shares[0]
    count = sum(w.numel() for w in walk.method.masked.values())
    assert walk.method.state_bytes() == pytest.approx(4 * count + 4 * count / 8, rel=0.01)  # four tasks


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_of_the_scores_is_the_weight_times_that_of_the_masked_weight(kind: str) -> None:
    tasks = toy_stream()
    walk = Walk(WSN(density=0.4), tasks, kind)
    x, y = tasks[0].train.take(slice(0, 8))
    walk.method.loss(Batch(x, y, 0)).backward()
    used = {n: (w * m).detach().requires_grad_() for (n, w), m in zip(walk.method.masked.items(), current(walk))}
    F.cross_entropy(functional_call(walk.model, used, (x, 0)), y).backward()
    for (name, weight), mask in zip(walk.method.masked.items(), current(walk)):
        score, grad = walk.method.score(name), used[name].grad
        torch.testing.assert_close(score.grad * score.sign(), grad * weight)
        torch.testing.assert_close(weight.grad, grad * mask)


def current(walk: Walk) -> list[torch.Tensor]:
    return [mask.detach() for mask in walk.method.current().values()]


def test_the_top_share_ties_included() -> None:
    assert top_share(torch.tensor([0.1, 3.0, 2.0, 0.2]), 0.5).tolist() == [0, 1, 1, 0]
    assert int(top_share(torch.ones(10), 0.3).sum()) == 3
    assert int(top_share(torch.rand(50), 0.001).sum()) == 1
    assert top_share(torch.rand(7), 1.0).tolist() == [1] * 7


@pytest.mark.parametrize("shape", [(3, 5), (8,), (2, 3, 3, 3)])
def test_bits_round_trip(shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.4
    bits = pack(mask)
    assert bits.nbytes == -(-mask.numel() // 8)
    assert torch.equal(unpack(bits, torch.empty(shape)), mask)


def test_the_mask_is_read_off_the_scores_when_the_task_ends() -> None:
    """Weights restored from an earlier moment bring their own scores; the mask must be theirs."""
    tasks = toy_stream()
    walk = Walk(WSN(density=0.2), tasks, MLP)
    walk.task(tasks[0], 1)
    with torch.no_grad():
        for name in walk.method.masked:
            walk.method.score(name).copy_(walk.method.score(name).flip(0))
    walk.method.after_task(tasks[0])
    for name, mask in walk.method.mask_of(0).items():
        assert torch.equal(mask, top_share(walk.method.score(name).abs(), 0.2))


def test_biases_and_norm_layers_learn_in_the_first_task_only() -> None:
    seen = []

    def after_task(walk: Walk, task: object) -> None:
        now = weights(walk.model)
        seen.append([now["trunk.conv1.bias"], now["trunk.conv_norm1.weight"]])

    walk = Walk(WSN(), toy_stream(), CNN | {"norm": "batch"}, epochs=1)
    start = weights(walk.model)
    walk.run(after_task=after_task)
    assert not torch.equal(seen[0][1], start["trunk.conv_norm1.weight"])
    assert all(torch.equal(a, b) for a, b in zip(seen[0], seen[2]))


def test_a_residual_network_runs() -> None:
    spec = {"kind": "resnet18", "filters": 2, "norm": "batch"}
    walk = Walk(WSN(), toy_stream(tasks=2, per_class=4), spec, epochs=1).run()
    assert "trunk.stages.1.0.shortcut.0.weight" in walk.method.masked


def test_what_it_cannot_do_is_refused() -> None:
    for density in (0.0, -0.1, 1.01):
        with pytest.raises(ValueError, match="density"):
            WSN(density=density)
    with pytest.raises(ValueError, match="adam_lr"):
        WSN(adam_lr=0.0)
    with pytest.raises(ValueError, match="told the task"):
        Walk(WSN(), toy_stream("domain"), MLP)
    with pytest.raises(ValueError, match="overwritten"):
        Walk(WSN(), toy_stream(), CNN | {"norm": "shared"})
    with pytest.raises(ValueError, match="weight_decay"):
        Walk(WSN(), toy_stream(), MLP, weight_decay=0.1)
