"""HAT: what saturated gates hold does not move; the edits of the gradients are those of the paper."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from tests.lab.methods.loop import CNN, KINDS, MLP, Walk, toy_stream, weights
from torch import nn

from drcl.lab.methods.hat import HAT, SATURATED


def binary(walk: Walk, task: int, every: int = 2) -> None:
    """Open every second unit of a task and close the others, far on both sides."""
    with torch.no_grad():
        for gate in walk.method.gates:
            gate.rows[task].fill_(-3.0)
            gate.rows[task][task % every :: every] = 3.0


def gate_before(walk: Walk, number: int) -> torch.Tensor | None:
    """Held gates of the units that feed layer `number`, spread over the map where the layer flattens it."""
    if number == 0:
        return None
    layers = [layer for layer, _ in walk.method.layers.values()]
    held, layer = walk.method.state["held"][number - 1], layers[number]
    if isinstance(layer, nn.Linear) and isinstance(layers[number - 1], nn.Conv2d):
        side = 2  # 8x8 images after two poolings
        return torch.cat([torch.full((side * side,), float(h)) for h in held])
    return held


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_weight_between_saturated_units_is_unchanged(kind: str, momentum: float) -> None:
    kept: list[tuple[str, torch.Tensor, torch.Tensor]] = []
    bound = []

    def after_task(walk: Walk, task: object) -> None:
        now = weights(walk.model)
        for name, chosen, value in kept:
            assert torch.equal(now[name][chosen], value)
            bound.append(int(chosen.sum()))
        for number, (name, (layer, _)) in enumerate(walk.method.layers.items()):
            out = walk.method.state["held"][number] >= 1 - SATURATED
            before = gate_before(walk, number)
            chosen = out.view(-1, *[1] * (layer.weight.dim() - 1)).expand_as(layer.weight)
            if before is not None:
                given = (before >= 1 - SATURATED).view(1, -1, *[1] * (layer.weight.dim() - 2))
                chosen = chosen & given.expand_as(layer.weight)
            kept.append((f"trunk.{name}.weight", chosen, now[f"trunk.{name}.weight"][chosen]))
            kept.append((f"trunk.{name}.bias", out, now[f"trunk.{name}.bias"][out]))

    walk = Walk(HAT(), toy_stream(), kind, momentum=momentum)
    binary(walk, 0)
    walk.run(after_task=after_task)
    assert sum(bound) > 100
    assert [len(row) for row in walk.accuracy] == [1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_binary_gates_keep_old_logits(kind: str) -> None:
    tasks = toy_stream()
    walk = Walk(HAT(lam=0.0), tasks, kind, momentum=0.9)
    for task in range(3):
        binary(walk, task, every=3)
    walk.method.after_step = lambda: [binary(walk, walk.method.at.task, every=3)]  # type: ignore[method-assign]
    old: dict[int, torch.Tensor] = {}
    start = weights(walk.model)

    def after_task(walk: Walk, task: object) -> None:
        for seen, logits in old.items():
            torch.testing.assert_close(walk.logits(tasks[seen]), logits, atol=1e-5, rtol=1e-5)
        old[task.index] = walk.logits(task)

    walk.run(after_task=after_task)
    now = weights(walk.model)
    assert all(not torch.equal(start[n], now[n]) for n in now if n.startswith("trunk.") and "gate" not in n)


def test_gradient_factors_by_hand() -> None:
    """Held gates (1, .5) feeding (.25, 1): the smaller of each pair is what is taken away."""
    walk = Walk(HAT(), toy_stream(), {"kind": "mlp", "hidden": [2, 2]})
    walk.method.state["held"] = [torch.tensor([1.0, 0.5]), torch.tensor([0.25, 1.0])]
    (first, first_bias), (second, second_bias) = walk.method.factors()
    assert first.flatten().tolist() == first_bias.tolist() == [0.0, 0.5]
    assert second.tolist() == [[0.75, 0.75], [0.0, 0.5]]
    assert second_bias.tolist() == [0.75, 0.0]


def test_held_gates_only_grow_and_embeddings_stay_in_bounds() -> None:
    seen: list[torch.Tensor] = []

    def after_task(walk: Walk, task: object) -> None:
        seen.append(torch.cat(walk.method.state["held"]).clone())

    def after_step(walk: Walk) -> None:
        assert all(row.abs().max() <= 6 for gate in walk.method.gates for row in gate.rows)
        assert 0 <= walk.method.price().item() <= 1

    walk = Walk(HAT(lam=2.0), toy_stream(tasks=4), MLP, epochs=1, lr=0.5)
    walk.run(after_step=after_step, after_task=after_task)
    assert all((later >= earlier).all() for earlier, later in pairwise(seen))
    units = 12 + 10
    assert walk.method.state_bytes() == 4 * (4 * units + units)


def test_compensated_gradient_is_that_of_slope_one_times_s_max() -> None:
    """For a loss that is the sum of the gates, d/de at slope s after compensation is s_max * sigmoid'(e)."""
    method = HAT(s_max=50.0)
    walk = Walk(method, toy_stream(), MLP)
    method.at.batches = 10
    for method.at.batch in (0, 1, 4):
        slope = method._slope()
        for gate in method.gates:
            gate.rows[0].data.clamp_(-0.2, 0.2)
            gate.rows[0].grad = None
        sum(gate.value(0, slope).sum() for gate in method.gates).backward()
        method.after_backward()
        for gate in method.gates:
            e = gate.rows[0].detach().double()
            wanted = 50.0 * torch.sigmoid(e) * (1 - torch.sigmoid(e))
            torch.testing.assert_close(gate.rows[0].grad.double(), wanted, rtol=1e-3, atol=1e-5)
    assert walk.method._slope() == pytest.approx(1 / 50 + (50 - 1 / 50) * 0.4)


def test_other_tasks_embeddings_are_left_alone_and_gates_stand_after_the_block() -> None:
    walk = Walk(HAT(), toy_stream(), CNN | {"dropout": 0.5})
    order = [name for name, _ in walk.model.trunk.named_children()]
    assert order[3:8] == ["conv1_gate", "conv2", "pool2", "conv_relu2", "conv2_gate"]
    assert order[8:] == ["flatten", "fc1", "fc_relu1", "fc_drop1", "fc1_gate"]
    before = [gate.rows[2].detach().clone() for gate in walk.method.gates]
    walk.task(walk.stream[0], 1)
    assert all(torch.equal(gate.rows[2], row) for gate, row in zip(walk.method.gates, before))


def test_what_it_cannot_do_is_refused() -> None:
    for wrong in ({"lam": -1.0}, {"s_max": 0.5}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            HAT(**wrong)
    with pytest.raises(ValueError, match="told the task"):
        Walk(HAT(), toy_stream("domain"), MLP)
    with pytest.raises(ValueError, match="norm layers"):
        Walk(HAT(), toy_stream(), CNN | {"norm": "group"})
    with pytest.raises(ValueError, match="BatchNorm"):
        Walk(HAT(), toy_stream(), {"kind": "resnet18", "filters": 2})
    with pytest.raises(ValueError, match="weight_decay"):
        Walk(HAT(), toy_stream(), MLP, weight_decay=0.1)
    with pytest.raises(ValueError, match="sgd"):
        Walk(HAT(), toy_stream(), MLP, optimizer="adam")
