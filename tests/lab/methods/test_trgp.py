"""TRGP: GPM if no old task is trusted; scaled weights by hand; old answers stay put while frozen weights are scaled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.lab.methods.loop import CNN, KINDS, MLP, Walk, assert_resumes, assert_same_weights, toy_stream
from torch import Tensor, nn
from torch.nn import functional as F

from drcl.lab.methods import _bases
from drcl.lab.methods._scales import Scales, key
from drcl.lab.methods.gpm import GPM
from drcl.lab.methods.trgp import TRGP

LOW: dict[str, Any] = {"threshold": 0.9, "increase": 0.003, "samples": 20}


class Named(TRGP):
    """The name decides which images are looked at."""

    name = "gpm"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nobody", [{"epsilon": 1.0}, {"related": 0}], ids=str)
def test_with_empty_trust_regions_it_is_gpm(kind: str, nobody: dict[str, Any]) -> None:
    """Three tasks, bit for bit, with the same memory."""
    found = Walk(Named(**LOW, **nobody), toy_stream(), kind).run()
    wanted = Walk(GPM(**LOW), toy_stream(), kind).run()
    assert not len(found.method.scales)
    assert found.accuracy == wanted.accuracy
    assert_same_weights(found.model, wanted.model)
    for name, basis in wanted.method.state["bases"].items():
        assert torch.equal(found.method.state["bases"][name], basis)


def by_hand(method: TRGP, name: str, task: int) -> Tensor:
    """W (1 + sum of B (Q - 1) B^T)."""
    weight = _bases.weights(method.layers[name]).detach().double()
    factor = torch.eye(weight.shape[1]).double()
    for old in method.state["trusted"][str(task)][name]:
        basis = method.state["bases"][name].double()[:, method.state["spaces"][name][old]]
        scale = method.scales[key(task, name, old)].detach().double()
        factor += basis @ (scale - torch.eye(len(scale)).double()) @ basis.T
    return weight @ factor


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_computes_with_scaled_weights(kind: str) -> None:
    walk = Walk(TRGP(epsilon=0.0, **LOW), toy_stream(), kind).run()
    method = walk.method
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for scale in method.scales.values():
            scale.add_(0.3 * torch.randn(scale.shape, generator=generator))
    for task in walk.stream[1:]:
        used = method.weights(task.index)
        assert {name.rpartition(".")[0] for name in used} == set(method.layers)
        for name, layer in method.layers.items():
            found = torch.cat([used[f"{name}.weight"].flatten(1), used[f"{name}.bias"][:, None]], 1)
            torch.testing.assert_close(found.double(), by_hand(method, name, task.index), rtol=1e-4, atol=1e-5)
            assert (found - _bases.weights(layer)).abs().max() > 1e-2
        clone = Walk(GPM(), toy_stream(), kind)
        state = {n: p.detach() for n, p in walk.model.named_parameters() if not n.startswith("scales")}
        clone.model.load_state_dict(state | {n: t.detach() for n, t in used.items()})
        torch.testing.assert_close(walk.logits(task), clone.logits(task), rtol=1e-4, atol=1e-5)
    assert not method.weights(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_old_answers_stay_put_while_frozen_weights_are_scaled(kind: str, momentum: float) -> None:
    """On the images that are in the memory, whichever old tasks a task scales; and W moves orthogonally to it."""
    wide: Any = {"kind": "mlp", "hidden": [60, 50]} if kind == "mlp" else CNN | {"hidden": 60}
    tasks = toy_stream(per_class=3)
    walk = Walk(TRGP(epsilon=0.0, threshold=1 - 1e-9, increase=0.0, samples=100), tasks, wide, momentum=momentum)
    answers: list[Tensor] = []
    for task in tasks:
        kept = {n: _bases.weights(walk.method.layers[n]) @ m for n, m in walk.method.state.get("bases", {}).items()}
        walk.task(task, 2)
        for name, then in kept.items():
            basis = walk.method.state["bases"][name][:, : then.shape[1]]
            torch.testing.assert_close(_bases.weights(walk.method.layers[name]) @ basis, then, rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            now = [walk.method.predict(each.train.take(slice(None))[0], each) for each in tasks[: task.index + 1]]
        for then, later in zip(answers, now):
            torch.testing.assert_close(later, then, rtol=2e-3, atol=2e-3)
        answers = now
    moved = [float((scale - torch.eye(len(scale))).detach().abs().max()) for scale in walk.method.scales.values()]
    assert len(moved) == len(walk.method.layers) * (1 + 2)
    assert max(moved) > 1e-3


def test_the_trust_region_is_what_the_gradient_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four old tasks with spaces e1, e2, e3 and e1 e2; |G e_i| = 6, 3, 2 of |G| = 7. Shares: 6/7, 3/7, 2/7, 6.7/7."""
    tasks = toy_stream()
    for epsilon, related, wanted in [(0.5, 2, [3, 0]), (0.5, 1, [3]), (0.0, 9, [3, 0, 1, 2]), (0.4, 9, [3, 0, 1])]:
        walk = Walk(TRGP(epsilon=epsilon, related=related), tasks, MLP)
        method = walk.method
        size = {name: _bases.weights(layer).shape for name, layer in method.layers.items()}
        gradient = {name: torch.zeros(shape) for name, shape in size.items()}
        for g in gradient.values():
            g[0, 0], g[1, 1], g[2, 2] = 6.0, -3.0, 2.0
        spaces = [[0], [1], [2], [0, 1]]
        method.state = {
            "bases": {name: torch.eye(shape[1])[:, :3] for name, shape in size.items()},
            "spaces": {name: [torch.tensor(s) for s in spaces] for name in size},
        }
        monkeypatch.setattr(method, "gradient", lambda task, word, gradient=gradient: gradient)
        method.before_task(tasks[1])
        assert method.state["trusted"] == {"1": dict.fromkeys(size, wanted)}
        assert {len(method.scales[key(1, n, 3)]) for n in size} == {2}
        assert len(method.scales) == len(size) * len(wanted)
        assert len(method.parameters(tasks[1])) == 4 + 2 + len(method.scales)
        assert not method.weights(2)  # another task has none yet


def test_the_gradient_is_the_one_of_the_loss_and_leaves_no_trace() -> None:
    tasks = toy_stream(per_class=8)
    walk = Walk(TRGP(samples=10_000), tasks, CNN | {"dropout": 0.5})
    x, y = tasks[1].train.take(slice(None))
    walk.model.eval()
    loss = F.cross_entropy(walk.model(x, tasks[1].head), y)
    weight, bias = torch.autograd.grad(loss, list(walk.model.trunk.conv1.parameters()))
    walk.model.train()
    state = torch.get_rng_state()
    found = walk.method.gradient(tasks[1], "trust")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in walk.model.parameters())
    assert walk.model.training
    torch.testing.assert_close(found["trunk.conv1"], torch.cat([weight.flatten(1), bias[:, None]], 1))
    assert walk.method.gradients == 2


def test_a_tasks_space_is_the_fewest_columns_that_hold_its_inputs() -> None:
    """Energies 9, 1, 4 along three columns of the memory, of 14: .64, .93, 1."""
    inputs = torch.diag(torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64))
    for threshold, wanted in [(0.5, [0]), (0.65, [0, 2]), (0.92, [0, 2]), (0.95, [0, 1, 2])]:
        walk = Walk(TRGP(threshold=threshold, increase=0.0), toy_stream(), MLP)
        walk.method.state["bases"] = {"trunk.fc1": torch.eye(3)}
        walk.method.weigh("trunk.fc1", torch.empty(3, 0), torch.empty(0), inputs)
        assert walk.method.state["spaces"]["trunk.fc1"][0].tolist() == wanted
    several = Walk(TRGP(threshold=(0.5, 0.9), increase=0.01), toy_stream(), MLP).method
    several.at.task = 2
    assert [several._wanted(name) for name in several.layers] == pytest.approx([0.52, 0.92])


def test_what_it_keeps_is_counted() -> None:
    """Bases, the numbers of their columns, and the scales the network carries."""
    walk = Walk(TRGP(epsilon=0.0, **LOW), toy_stream(), MLP, epochs=1).run()
    state = walk.method.state
    bases = sum(m.numel() for m in state["bases"].values())
    columns = sum(len(own) for each in state["spaces"].values() for own in each)
    widths = {name: [len(own) for own in each] for name, each in state["spaces"].items()}
    scales = sum(w[0] ** 2 + w[0] ** 2 + w[1] ** 2 for w in widths.values())  # task 2 scales 1, task 3 both
    assert walk.method.state_bytes() == 4 * bases + 8 * columns + 4 * scales


@pytest.mark.parametrize("kind", KINDS)
def test_it_resumes_bit_for_bit(kind: str) -> None:
    """Scales that did not exist when the network was built come back with it."""
    assert_resumes(lambda: TRGP(epsilon=0.1, **LOW), kind)


def test_scales_are_made_by_what_is_loaded() -> None:
    one, other = nn.ModuleDict({"scales": Scales()}), nn.ModuleDict({"scales": Scales()})
    name = key(2, "trunk.fc1", 0)
    one["scales"][name] = nn.Parameter(torch.randn(3, 3))
    other.load_state_dict(one.state_dict())
    assert torch.equal(other["scales"][name], one["scales"][name])
    assert other["scales"][name] is not one["scales"][name]


def test_norm_layers_and_residual_networks_run() -> None:
    seen = []
    walk = Walk(TRGP(epsilon=0.0, **LOW), toy_stream(), CNN | {"norm": "batch"}, epochs=1)
    walk.run(after_task=lambda walk, task: seen.append(walk.model.trunk.conv_norm1.weight.detach().clone()))
    assert not torch.equal(seen[0], torch.ones_like(seen[0]))
    assert torch.equal(seen[0], seen[2])
    spec = {"kind": "resnet18", "filters": 2, "norm": "per-task"}
    walk = Walk(TRGP(epsilon=0.0, **LOW), toy_stream(tasks=2, per_class=4), spec, epochs=1).run()
    assert "trunk.stages.1.0.shortcut.0" in walk.method.state["trusted"]["1"]


@pytest.mark.parametrize("wrong", [{"epsilon": -0.1}, {"epsilon": 1.1}, {"related": -1}, {"samples": 0}], ids=str)
def test_bad_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"trgp: {next(iter(wrong))}="):
        TRGP(**wrong)


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match=r"trgp: .*told the task"):
        Walk(TRGP(), toy_stream("domain"), MLP)
    for setting, word in [({"weight_decay": 0.1}, "weight_decay"), ({"optimizer": "adam"}, "sgd")]:
        with pytest.raises(ValueError, match=f"trgp: .*{word}"):
            Walk(TRGP(), toy_stream(), MLP, **setting)
    with pytest.raises(ValueError, match="per-task"):
        Walk(TRGP(), toy_stream(), CNN | {"norm": "shared"})
