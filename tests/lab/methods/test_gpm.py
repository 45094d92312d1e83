"""GPM and SGP: what is orthogonal stays orthogonal, and old layer outputs stay put."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from tests.lab.methods.loop import CNN, KINDS, MLP, Walk, outputs, toy_stream, weights

from drcl.lab.methods import _bases
from drcl.lab.methods.gpm import GPM
from drcl.lab.methods.sgp import SGP


def low_rank(method: type[GPM] = GPM, **more: object) -> GPM:
    return method(threshold=0.9, increase=0.003, samples=20, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_orthogonal_to_the_memory_and_keep_layer_outputs(kind: str, momentum: float) -> None:
    """Three tasks; after each step of the later ones the weights of a layer, bias included, act on every direction of
    the memory as they did when the task began."""
    before: dict[str, torch.Tensor] = {}
    start: dict[str, torch.Tensor] = {}
    raw: dict[str, torch.Tensor] = {}
    checked, moved = [], set()

    def after_task(walk: Walk, task: object) -> None:
        bases = walk.method.state["bases"]
        before.update({n: outputs(walk.method.layers[n], m).detach() for n, m in bases.items()})
        start.update(weights(walk.model))

    def watch(moment: str, batch: object) -> None:
        if moment == "backward":
            raw.update({n: _bases.gradient(layer).norm() for n, layer in walk.method.layers.items()})

    def after_step(walk: Walk) -> None:
        for name, m in walk.method.state.get("bases", {}).items():
            layer = walk.method.layers[name]
            assert (_bases.gradient(layer) @ m).norm() <= 2e-6 * raw[name]
            torch.testing.assert_close(outputs(layer, m), before[name], atol=1e-5, rtol=1e-5)
            checked.append(name)
            if not torch.equal(layer.weight, start[f"{name}.weight"]):
                moved.add(name)

    walk = Walk(low_rank(), toy_stream(), kind, epochs=1, momentum=momentum)
    walk.run(watch, after_step, after_task)
    assert set(checked) == set(walk.method.layers)
    assert [len(row) for row in walk.accuracy] == [1, 2, 3]
    assert "trunk.fc1" in moved  # held where it must be, not everywhere


def test_images_in_the_memory_keep_their_outputs_while_others_change() -> None:
    """The real layer on real images, three of which lie in the memory almost entirely."""
    tasks = toy_stream()
    walk = Walk(GPM(threshold=0.999999, increase=0.0, samples=3), tasks, MLP)
    walk.task(tasks[0], 1)
    layer = walk.method.layers["trunk.fc1"]
    ((seen, _),) = walk.method.sample(tasks[0], 3, "inputs")
    other, _ = tasks[1].train.take(slice(0, 3))
    then = [layer(x.flatten(1)).detach() for x in (seen, other)]
    walk.task(tasks[1], 2)
    torch.testing.assert_close(layer(seen.flatten(1)), then[0], atol=1e-4, rtol=1e-4)
    assert (layer(other.flatten(1)) - then[1]).abs().max() > 1e-2


@pytest.mark.parametrize("method", [GPM, SGP])
def test_bases_stay_orthonormal_and_grow_over_many_tasks(method: type[GPM]) -> None:
    ranks: list[list[int]] = []
    scores: list[dict[str, torch.Tensor]] = []

    def after_task(walk: Walk, task: object) -> None:
        for m in walk.method.state["bases"].values():
            torch.testing.assert_close(m.T @ m, torch.eye(m.shape[1]), atol=1e-5, rtol=0)
            assert m.shape[1] <= m.shape[0]
        ranks.append([m.shape[1] for m in walk.method.state["bases"].values()])
        scores.append({n: v.clone() for n, v in walk.method.state.get("importances", {}).items()})

    walk = Walk(low_rank(method), toy_stream(tasks=8, per_class=4), CNN, epochs=1).run(after_task=after_task)
    for earlier, later in pairwise(ranks):
        assert all(a <= b for a, b in zip(earlier, later))
    assert ranks[-1] > ranks[0]
    stored = sum(m.numel() for m in walk.method.state["bases"].values()) * 4
    stored += sum(v.numel() for v in scores[-1].values()) * 4
    assert walk.method.state_bytes() == stored
    for earlier, later in pairwise(scores):
        for name, old in earlier.items():
            assert (later[name][: len(old)] >= old).all()
            assert 0 <= later[name].min() <= later[name].max() <= 1


def test_a_shared_head_is_projected_and_a_tasks_own_is_free() -> None:
    shared = Walk(low_rank(), toy_stream("domain"), MLP, epochs=1)
    assert "heads.layers.0" in shared.method.layers
    assert list(Walk(low_rank(), toy_stream(), MLP).method.layers) == ["trunk.fc1", "trunk.fc2"]
    shared.run()
    assert all(0 <= value <= 1 for row in shared.accuracy for value in row)


def test_norm_layers_learn_in_the_first_task_only() -> None:
    seen = []

    def after_task(walk: Walk, task: object) -> None:
        seen.append(walk.model.trunk.conv_norm1.weight.detach().clone())

    Walk(low_rank(), toy_stream(), CNN | {"norm": "batch"}, epochs=1).run(after_task=after_task)
    assert not torch.equal(seen[0], torch.ones_like(seen[0]))
    assert torch.equal(seen[0], seen[2])


def test_a_residual_network_runs() -> None:
    spec = {"kind": "resnet18", "filters": 2, "norm": "batch"}
    walk = Walk(low_rank(), toy_stream(tasks=2, per_class=4), spec, epochs=1).run()
    assert "trunk.stages.1.0.shortcut.0" in walk.method.layers


@pytest.mark.parametrize("method", [GPM, SGP])
@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"threshold": 0.0}, "threshold"),
        ({"threshold": 1.0}, "threshold"),
        ({"threshold": [0.9, 1.5]}, "threshold"),
        ({"increase": -0.1}, "increase"),
        ({"samples": 0}, "samples"),
    ],
)
def test_bad_values_are_refused(method: type[GPM], wrong: dict, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        method(**wrong)


def test_what_breaks_the_guarantee_is_refused() -> None:
    for setting, word in [({"weight_decay": 0.1}, "weight_decay"), ({"optimizer": "adam"}, "sgd")]:
        with pytest.raises(ValueError, match=word):
            Walk(GPM(), toy_stream(), MLP, **setting)
    with pytest.raises(ValueError, match="per-task"):
        Walk(GPM(), toy_stream(), CNN | {"norm": "shared"})
    with pytest.raises(ValueError, match="3 values for 2 layers"):
        Walk(GPM(threshold=[0.9, 0.9, 0.9]), toy_stream(), MLP)
