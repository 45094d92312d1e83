"""OWM: the projector is the one of recursive least squares, and steps leave the outputs of earlier inputs alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.lab.methods.loop import CNN, KINDS, MLP, Walk, assert_resumes, toy_stream, weights
from torch import nn

from drcl.lab.methods import _bases
from drcl.lab.methods.owm import OWM, update
from drcl.lab.methods.sgd import SGD

WIDE: dict[str, Any] = {"kind": "mlp", "hidden": [60, 50]}


@pytest.mark.parametrize("count", [3, 9, 40])
def test_the_projector_is_that_of_recursive_least_squares(count: int) -> None:
    """One input after another as in the paper; all at once as an inverse."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(9, count, generator=generator, dtype=torch.float64)
    alpha, step = 0.3, torch.eye(9, dtype=torch.float64)
    for x in inputs.T:
        k = step @ x / (alpha + x @ step @ x)
        step = step - torch.outer(k, x @ step)
    whole = torch.linalg.inv(torch.eye(9, dtype=torch.float64) + inputs @ inputs.T / alpha)
    start = torch.eye(9, dtype=torch.float64)
    found = update(start, inputs, alpha)
    torch.testing.assert_close(found, step)
    torch.testing.assert_close(found, whole)
    halves = update(update(start, inputs[:, : count // 2], alpha), inputs[:, count // 2 :], alpha)
    torch.testing.assert_close(halves, whole)
    torch.testing.assert_close(update(start, _bases.squeeze(inputs), alpha), whole)


def test_steps_leave_the_outputs_of_earlier_inputs_alone() -> None:
    """A linear layer on the images of both earlier tasks, while it learns the third; other images move."""
    tasks = toy_stream(per_class=6)
    walk = Walk(OWM(alpha=1e-6, samples=None), tasks, WIDE)
    layer = walk.method.layers["trunk.fc1"]
    assert isinstance(layer, nn.Linear)
    images = [task.train.take(slice(None))[0].flatten(1) for task in tasks]
    with torch.no_grad():
        for number, task in enumerate(tasks):
            before = [layer(x) for x in images]
            with torch.enable_grad():
                walk.task(task, 3)
            for x, then in list(zip(images, before))[:number]:
                torch.testing.assert_close(layer(x), then, atol=1e-4, rtol=1e-4)
            assert (layer(images[number]) - before[number]).abs().max() > 1e-2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_whole_network_answers_old_training_images_as_before(kind: str, momentum: float) -> None:
    """Every layer is held on its inputs, so the features are too, and heads of old tasks are not trained."""
    tasks = toy_stream(per_class=3)
    walk = Walk(OWM(alpha=1e-7, samples=None), tasks, kind, momentum=momentum)
    answers: list[torch.Tensor] = []
    for task in tasks:
        walk.task(task, 2)
        with torch.no_grad():
            now = [walk.model(each.train.take(slice(None))[0], each.head) for each in tasks[: task.index + 1]]
        for then, later in zip(answers, now):
            torch.testing.assert_close(later, then, atol=2e-3, rtol=2e-3)
        answers = now


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_multiplied_by_the_projector(kind: str) -> None:
    raw: dict[str, torch.Tensor] = {}
    checked: set[str] = set()

    def watch(moment: str, batch: object) -> None:
        for name, layer in walk.method.layers.items():
            gradient = _bases.gradient(layer)
            if moment == "backward":
                raw[name] = gradient.clone()
            elif moment == "edited" and "projectors" in walk.method.state:
                torch.testing.assert_close(gradient, raw[name] @ walk.method.state["projectors"][name])
                checked.add(name)

    walk = Walk(OWM(alpha=1.0, samples=20), toy_stream(), kind, epochs=1)
    walk.run(watch)
    assert checked == set(walk.method.layers)
    for projector in walk.method.state["projectors"].values():
        values = torch.linalg.eigvalsh(projector.double())
        assert -1e-5 <= values.min() <= values.max() <= 1 + 1e-5
        assert torch.equal(projector, projector.T)


@pytest.mark.parametrize("kind", KINDS)
def test_with_alpha_beyond_all_inputs_it_is_sgd(kind: str) -> None:
    found = Walk(OWM(alpha=1e12, samples=20), toy_stream(), kind).run()
    wanted = Walk(SGD(), toy_stream(), kind).run()
    for name, p in wanted.model.named_parameters():
        torch.testing.assert_close(dict(found.model.named_parameters())[name], p, atol=1e-4, rtol=1e-3)


def test_averaged_inputs_are_means_over_images() -> None:
    """Ten images in parts of four: the last mean is over two. The sum over them of x x^T, by hand."""
    tasks = toy_stream(per_class=5)
    for spec, name in ((MLP, "trunk.fc1"), (CNN, "trunk.conv1")):
        walk = Walk(OWM(alpha=1.0, average=4, samples=None), tasks, spec)
        x = torch.cat([x for x, _ in walk.method.sample(tasks[0], None, "all")])
        assert len(x) == 10
        means = torch.stack([part.mean(0) for part in x.double().split(4)])
        layer = walk.method.layers[name]
        if isinstance(layer, nn.Conv2d):
            rows = nn.functional.unfold(means, 3, padding=1).transpose(1, 2).flatten(0, 1)
        else:
            rows = means.flatten(1)
        rows = torch.cat([rows, torch.ones(len(rows), 1)], 1)
        wanted = torch.linalg.inv(torch.eye(rows.shape[1]).double() + rows.T @ rows)
        walk.model.eval()
        walk.method.after_task(tasks[0])
        torch.testing.assert_close(walk.method.state["projectors"][name].double(), wanted, atol=1e-5, rtol=1e-4)


def test_a_shared_head_is_projected_and_norm_layers_learn_in_the_first_task_only() -> None:
    shared = Walk(OWM(samples=10), toy_stream("domain"), MLP)
    assert "heads.layers.0" in shared.method.layers
    assert list(Walk(OWM(), toy_stream(), MLP).method.layers) == ["trunk.fc1", "trunk.fc2"]
    seen = []
    walk = Walk(OWM(samples=10), toy_stream(), CNN | {"norm": "batch"}, epochs=1)
    walk.run(after_task=lambda walk, task: seen.append(weights(walk.model)["trunk.conv_norm1.weight"]))
    assert not torch.equal(seen[0], torch.ones_like(seen[0]))
    assert torch.equal(seen[0], seen[2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", ["task", "domain"])
def test_it_resumes_bit_for_bit(kind: str, scenario: str) -> None:
    assert_resumes(lambda: OWM(samples=20), kind, scenario)


@pytest.mark.parametrize("wrong", [{"alpha": 0.0}, {"alpha": float("nan")}, {"average": 0}, {"samples": 0}])
def test_bad_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"owm: {next(iter(wrong))}="):
        OWM(**wrong)


def test_what_breaks_the_guarantee_is_refused() -> None:
    for setting, word in [({"weight_decay": 0.1}, "weight_decay"), ({"optimizer": "adam"}, "sgd")]:
        with pytest.raises(ValueError, match=word):
            Walk(OWM(), toy_stream(), MLP, **setting)
    with pytest.raises(ValueError, match="per-task"):
        Walk(OWM(), toy_stream(), CNN | {"norm": "shared"})
