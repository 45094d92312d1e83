"""PackNet: each weight belongs to one task, what a finished task uses never moves, and its answers stay bit for bit."""

from __future__ import annotations

import pytest
import torch
from tests.lab.methods.loop import CNN, KINDS, MLP, SPECS, Walk, assert_resumes, toy_stream, weights

from drcl.lab import methods, networks
from drcl.lab.methods.packnet import PackNet, largest
from drcl.lab.methods.sgd import SGD
from drcl.lab.streams import Task
from drcl.lab.training.budget import Plan
from drcl.lab.training.learner import Learner
from drcl.lab.training.settings import Training

NETWORKS = {**SPECS, "cnn with batch norm": CNN | {"norm": "per-task"}}


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_old_logits_and_weights_are_bit_identical(kind: str, optimizer: str) -> None:
    method, tasks = PackNet(prune=0.6), toy_stream()
    logits: dict[int, torch.Tensor] = {}
    kept: list[tuple[str, torch.Tensor, torch.Tensor]] = []

    def after_task(walk: Walk, task: Task) -> None:
        now = weights(walk.model)
        for old, then in logits.items():
            assert torch.equal(walk.logits(tasks[old]), then)
        for name, used, then in kept:
            assert torch.equal(now[name][used], then)
        logits[task.index] = walk.logits(task)
        for name, mask in method.mask_of(task.index).items():
            kept.append((name, mask, now[name][mask]))

    walk = Walk(method, tasks, NETWORKS[kind], optimizer=optimizer, lr=0.05 if optimizer == "sgd" else 0.01)
    walk.run(after_task=after_task)
    assert len(logits) == 3
    assert len({float(then.sum()) for then in logits.values()}) == 3
    assert [len(row) for row in walk.accuracy] == [1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_masks_are_disjoint_and_have_their_share_of_what_was_free(kind: str) -> None:
    method = PackNet(prune=0.6)
    free: dict[str, int] = {}
    own: dict[str, list[torch.Tensor]] = {}

    def after_task(walk: Walk, task: Task) -> None:
        whole = method.mask_of(task.index)
        for name, weight in method.masked.items():
            before = own.setdefault(name, [])
            for mask in before:
                assert (whole[name] & mask).equal(mask)  # what came before is used
            fresh = whole[name] & ~torch.stack(before).any(0) if before else whole[name]
            there = free.get(name, weight.numel())
            assert int(fresh.sum()) == there - round(0.6 * there)
            free[name] = there - int(fresh.sum())
            before.append(fresh)
            assert (weight[~whole[name]] == 0).all()  # the next task starts from 0

    Walk(method, toy_stream(), kind).run(after_task=after_task)
    for masks in own.values():
        assert len(masks) == 3
        assert int(torch.stack(masks).sum(0).max()) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_smallest_of_the_free_weights_go_and_stay_away(kind: str) -> None:
    method, trained, checked = PackNet(prune=0.7), {}, []
    walk = Walk(method, toy_stream(), kind)
    prune = method.before_stage

    def before_stage(task: Task, stage: int) -> None:
        free = {name: (owner == 0).clone() for name, owner in method.owners.items()}
        before = weights(walk.model)
        prune(task, stage)
        if stage == 0:
            return
        for name, weight in method.masked.items():
            kept = method.owners[name] == method._number
            assert (kept <= free[name]).all()
            gone = free[name] & ~kept
            assert before[name][kept].abs().min() >= before[name][gone].abs().max()
            assert torch.equal(weight[kept], before[name][kept])
            trained[name] = (weight.detach().clone(), kept, gone)

    def after_step(walk: Walk) -> None:
        if method.at.stage == 1:
            for name, (then, kept, gone) in trained.items():
                now = method.masked[name]
                assert (now[gone] == 0).all()
                assert torch.equal(now[~kept], then[~kept])
                checked.append(not torch.equal(now[kept], then[kept]))

    method.before_stage = before_stage  # type: ignore[method-assign]
    walk.run(after_step=after_step)
    assert all(checked)


def test_which_values_are_kept() -> None:
    assert largest(torch.tensor([0.1, 3.0, 2.0, 0.2]), 0.5).tolist() == [False, True, True, False]
    assert int(largest(torch.ones(10), 0.75).sum()) == 2  # ties: no more than the share allows
    assert int(largest(torch.rand(3), 0.99).sum()) == 1
    assert largest(torch.rand(0), 0.5).tolist() == []


def test_none_gives_every_task_the_same_number_of_weights() -> None:
    method, tasks = PackNet(prune=None), toy_stream(tasks=4, per_class=4)
    Walk(method, tasks, MLP, epochs=1).run()
    for owner in method.owners.values():
        counts = torch.bincount(owner.flatten().long(), minlength=5).tolist()
        assert counts[0] == 0
        assert max(counts[1:]) - min(counts[1:]) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_before_it_is_pruned_the_first_task_is_fine_tuning_bit_for_bit(kind: str) -> None:
    one, ends = toy_stream()[:1], []
    method = PackNet()
    walk = Walk(method, one, kind)
    prune = method.before_stage

    def before_stage(task: Task, stage: int) -> None:
        ends.append(weights(walk.model))
        prune(task, stage)

    method.before_stage = before_stage  # type: ignore[method-assign]
    walk.run()
    plain = weights(Walk(SGD(), one, kind).run().model)
    assert all(torch.equal(ends[1][name], plain[name]) for name in plain)


def test_biases_and_norm_layers_learn_in_the_first_task_only() -> None:
    seen = []

    def after_task(walk: Walk, task: Task) -> None:
        now = weights(walk.model)
        seen.append([now["trunk.conv1.bias"], now["trunk.conv_norm1.weight"]])

    walk = Walk(PackNet(), toy_stream(), CNN | {"norm": "batch"}, epochs=1)
    start = weights(walk.model)
    walk.run(after_task=after_task)
    assert not torch.equal(seen[0][1], start["trunk.conv_norm1.weight"])
    assert all(torch.equal(a, b) for a, b in zip(seen[0], seen[2]))


def test_retraining_takes_its_share_of_the_steps() -> None:
    tasks = toy_stream()  # three batches of eight a task and epoch
    for share, steps in ((1.0, 6 + 6), (0.5, 6 + 3), (0.01, 6 + 1)):
        model = networks.build(MLP, tasks, 0)
        plan = Plan(epochs=2, batch=8, lr=0.05)
        run = Learner(tasks, model, PackNet(retrain=share), plan, Training(first_epoch=False), seed=1)
        run.run()
        assert run.cost.gradient_evaluations == 3 * steps


def test_a_part_of_a_stream_is_counted_from_its_own_first_task() -> None:
    method, tasks = PackNet(prune=0.5), toy_stream(tasks=4)[1:3]
    model = networks.build(MLP, tasks, 0)
    run = Learner(tasks, model, method, Plan(epochs=1, batch=8, lr=0.05), Training(), seed=1)
    run.run()
    assert method.state["finished"] == [1, 2]
    assert {int(n) for owner in method.owners.values() for n in owner.unique()} == {0, 1, 2}


def test_a_residual_network_runs() -> None:
    spec = {"kind": "resnet18", "filters": 2, "norm": "batch"}
    walk = Walk(PackNet(), toy_stream(tasks=2, per_class=4), spec, epochs=1).run()
    assert "trunk.stages.1.0.shortcut.0.weight" in walk.method.masked


@pytest.mark.parametrize("kind", KINDS)
def test_resume(kind: str) -> None:
    assert_resumes(PackNet, kind)


def test_one_byte_a_weight_is_kept() -> None:
    walk = Walk(PackNet(), toy_stream(), MLP, epochs=1).run()
    assert walk.method.state_bytes() == 64 * 12 + 12 * 10


def test_what_it_cannot_do_is_refused() -> None:
    for prune in (0.0, 1.0, -0.5):
        with pytest.raises(ValueError, match=f"packnet: prune={prune} must lie between 0.0 and 1.0"):
            methods.get("packnet")(prune=prune)
    for retrain in (0.0, 1.5):
        with pytest.raises(ValueError, match=f"packnet: retrain={retrain}"):
            PackNet(retrain=retrain)
    with pytest.raises(ValueError, match="told the task"):
        Walk(PackNet(), toy_stream("domain"), MLP)
    with pytest.raises(ValueError, match="overwritten"):
        Walk(PackNet(), toy_stream(), CNN | {"norm": "shared"})
    with pytest.raises(ValueError, match="weight_decay"):
        Walk(PackNet(), toy_stream(), MLP, weight_decay=0.1)
