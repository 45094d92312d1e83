"""BAN: sticks over the layers, masks drawn from their chances, shortcuts, and best weights that are really copied. What
it shares with IBPCL is in test_structure.py."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from tests.lab.methods.loop import Walk, toy_stream
from torch.nn import functional as F

from drcl.lab import streams
from drcl.lab.data.base import DataSet, Split
from drcl.lab.methods.ban import BAN
from drcl.lab.methods.base import Batch
from drcl.lab.streams import Stream, Task
from drcl.lab.streams.view import View

MLP = {"kind": "mlp", "hidden": [24, 24]}
CNN = {"kind": "cnn", "channels": [10, 12], "hidden": 24}
kinds = pytest.mark.parametrize("kind", [MLP, CNN], ids=["mlp", "cnn"])


def with_validation() -> Stream:
    rng = np.random.default_rng(0)
    prototypes = rng.integers(40, 216, (6, 1, 8, 8))
    labels = np.tile(np.arange(6), 24)
    images = np.clip(prototypes[labels] + rng.normal(0, 30, (len(labels), 1, 8, 8)), 0, 255).astype(np.uint8)
    data = DataSet("toy", Split(images, labels), Split(images[:12], labels[:12]), tuple(map(str, range(6))))
    return streams.class_split(data, seed=0, classes_per_task=2, valid=0.25, view=View((0.5,), (0.2,)))


def digest(walk: Walk, names: list[str]) -> str:
    own = dict(walk.model.named_parameters())
    return hashlib.sha256(b"".join(own[name].detach().numpy().tobytes() for name in names)).hexdigest()


# ---- sticks


@kinds
def test_sticks_are_drawn_from_their_distribution_and_fall_with_depth(kind):
    walk = Walk(BAN(a=6.0, b=4.0), toy_stream(), kind)
    generator = torch.Generator().manual_seed(0)
    before = torch.get_rng_state()
    drawn = torch.stack(
        [torch.stack([v.detach() for v in walk.method.log_sticks(generator).values()]) for _ in range(1500)]
    )
    assert torch.equal(torch.get_rng_state(), before)
    shares = torch.cat([drawn[:, :1], drawn.diff(dim=1)], 1).exp()
    for layer in range(drawn.shape[1]):
        assert stats.kstest(shares[:, layer].numpy(), stats.beta(6, 4).cdf).pvalue > 1e-3
    means = torch.stack(list(walk.method.log_sticks(None).values())).detach().exp()
    torch.testing.assert_close(means, 0.6 ** torch.arange(1.0, len(means) + 1))
    again = [walk.method.log_sticks(torch.Generator().manual_seed(5)) for _ in range(2)]
    assert all(torch.equal(again[0][n], again[1][n]) for n in again[0])


def test_gradients_reach_the_sticks():
    walk = Walk(BAN(), toy_stream(), MLP)
    sum(v for v in walk.method.log_sticks(torch.Generator().manual_seed(0)).values()).backward()
    assert all((walk.method.structure[word].grad != 0).all() for word in ("a", "b"))


def test_divergence_of_the_sticks_against_an_integral():
    walk = Walk(BAN(a=3.0, b=2.0), toy_stream(), MLP)
    method = walk.method
    assert method.stick_divergence().item() == pytest.approx(0, abs=1e-5)
    with torch.no_grad():
        method.structure["a"].add_(torch.tensor([1.0, -0.5]))
        method.structure["b"].add_(torch.tensor([-0.7, 2.0]))
    wanted, prior = 0.0, stats.beta(3, 2)
    shapes = zip(*(F.softplus(method.structure[word]).tolist() for word in ("a", "b")))
    for q in (stats.beta(*shape) for shape in shapes):
        wanted += integrate.quad(lambda v, q=q: q.pdf(v) * (q.logpdf(v) - prior.logpdf(v)), 0, 1)[0]
    assert method.stick_divergence().item() == pytest.approx(wanted, rel=1e-4)


@kinds
def test_posteriors_become_priors(kind):
    kept: list[dict[str, torch.Tensor]] = []

    def after_task(walk: Walk, task: Task) -> None:
        sticks = walk.method.state["sticks"]
        posterior = walk.method.posterior()
        assert torch.equal(sticks["a"], posterior.concentration1.detach())
        assert torch.equal(sticks["b"], posterior.concentration0.detach())
        kept.append({word: value.clone() for word, value in sticks.items()})

    def after_step(walk: Walk) -> None:
        if kept:
            assert all(torch.equal(walk.method.first_sticks()[word], kept[-1][word]) for word in ("a", "b"))

    Walk(BAN(test_samples=2), toy_stream(), kind, epochs=1).run(after_step=after_step, after_task=after_task)
    assert not torch.equal(kept[0]["a"], kept[2]["a"])


# ---- masks


@kinds
def test_a_mask_is_drawn_from_the_mean_chances(kind):
    walk = Walk(BAN(a=3.0, b=2.0), toy_stream(), kind)
    method, generator = walk.method, torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in method.layers:
            method.offset(layer).normal_(0, 1.5, generator=generator)
    drawn = [method.settled(generator) for _ in range(400)]
    for depth, layer in enumerate(method.layers, start=1):
        pi = 0.6**depth
        chance = torch.sigmoid(method.offset(layer).detach() + np.log(pi / (1 - pi)))
        mean = torch.stack([masks[layer] for masks in drawn]).mean(0)
        assert set(drawn[0][layer].unique().tolist()) <= {0.0, 1.0}
        assert ((mean - chance).abs() <= 5 * (chance * (1 - chance) / 400).sqrt() + 1e-3).all()


# ---- shortcuts


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_equally_wide_layers_add_their_input(dropout):
    walk = Walk(BAN(), toy_stream(), {"kind": "mlp", "hidden": [12, 12, 10, 10], "dropout": dropout})
    order = [name for name, _ in walk.model.trunk.named_children()]
    drops = (lambda n: [f"drop{n}"]) if dropout else (lambda n: [])
    wanted = ["flatten", "fc1", "relu1", *drops(1), "fc2_kept", "fc2", "relu2", *drops(2), "fc2_sum"]
    wanted += ["fc3", "relu3", *drops(3), "fc4_kept", "fc4", "relu4", *drops(4), "fc4_sum"]
    assert order == wanted
    walk.model.eval()
    layers = [layer for layer in walk.method.layers.values()]
    x = walk.stream[0].test.take(slice(None))[0]
    h = torch.relu(F.linear(x.flatten(1), layers[0].weight, layers[0].bias))
    h = torch.relu(F.linear(h, layers[1].weight, layers[1].bias)) + h
    h = torch.relu(F.linear(h, layers[2].weight, layers[2].bias))
    h = torch.relu(F.linear(h, layers[3].weight, layers[3].bias)) + h
    torch.testing.assert_close(walk.model.features(x, 0), h)
    assert walk.model.trunk.fc2_kept.value is None


def test_without_shortcuts_the_network_is_left_as_it_is():
    plain = Walk(BAN(residual=False), toy_stream(), MLP)
    assert [name for name, _ in plain.model.trunk.named_children()] == ["flatten", "fc1", "relu1", "fc2", "relu2"]
    with_them = Walk(BAN(), toy_stream(), CNN)  # no two neighbours are equally wide
    assert not any(name.endswith("_sum") for name, _ in with_them.model.trunk.named_children())


# ---- the best weights of a stage


@kinds
def test_the_best_weights_of_each_stage_are_really_copied(kind, monkeypatch):
    """Scripted scores: the second of three epochs is best, so both stages end with its weights, bit for bit."""
    method = BAN(test_samples=2)
    walk = Walk(method, with_validation(), kind, epochs=3)
    scores = [0.4, 0.9, 0.5]
    monkeypatch.setattr(method, "validation_accuracy", lambda task: scores[method.at.epoch])
    after: dict[tuple[int, int], tuple[str, list[str]]] = {}
    before_stage = method.before_stage
    checked = []

    def after_step(walk: Walk) -> None:
        at = method.at
        if at.batch + 1 == at.batches:
            names = list(method.parameters(walk.stream[at.task]))
            after[at.stage, at.epoch] = digest(walk, names), names

    def at_the_next_stage(task: Task, stage: int) -> None:
        before_stage(task, stage)
        if stage == 1:
            check(0)

    def check(stage: int) -> None:
        wanted, names = after[stage, 1]
        assert digest(walk, names) == wanted
        assert after[stage, 2][0] != wanted
        checked.append(stage)

    monkeypatch.setattr(method, "before_stage", at_the_next_stage)
    walk.run(after_step=after_step, after_task=lambda walk, task: check(1))
    assert checked == [0, 1] * 3
    assert "best" not in method.state


@kinds
def test_validation_accuracy_is_measured_on_validation_data_and_disturbs_nothing(kind):
    method = BAN(test_samples=2)
    walk = Walk(method, with_validation(), kind)
    task = walk.stream[0]
    walk.model.train()
    x, y = task.valid.take(slice(None))
    assert len(y) == 12
    before = torch.get_rng_state()
    found = method.validation_accuracy(task)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(module.training for module in walk.model.modules())
    assert found == pytest.approx(float((method.predict(x, task).argmax(1) == y).double().mean()))


def test_without_validation_data_or_the_wish_the_last_weights_stay(monkeypatch):
    for method, stream in ((BAN(), toy_stream()), (BAN(best=False), with_validation())):
        walk = Walk(method, stream, MLP, epochs=1)
        monkeypatch.setattr(method, "validation_accuracy", lambda task: pytest.fail("nothing to choose by"))
        walk.task(walk.stream[0], 1)
        assert "best" not in method.state


@kinds
def test_resume_with_best_weights(kind):
    """Stopped after the first epoch of the second task, with a copy of its best weights in the state."""
    stream = with_validation()
    whole = Walk(BAN(test_samples=2), stream, kind, epochs=3).run()
    part = Walk(BAN(test_samples=2), stream, kind, epochs=3).run(stop=(1, 6))
    assert "best" in part.method.state
    rest = Walk(BAN(test_samples=2), stream, kind, epochs=3).run(resume=part.saved)
    ends, wanted = rest.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(ends[n], wanted[n]) for n in wanted)
    assert whole.accuracy == rest.accuracy


# ---- the rest


def test_the_loss_by_hand():
    method = BAN(samples=1, kl=0.5, sigma_start=1e-7, heat=2.0, residual=False)
    walk = Walk(method, toy_stream(), MLP)
    task = walk.stream[0]
    method.before_task(task)
    with torch.no_grad():
        for p in method.structure.values():
            p.add_(0.3)
    x, y = task.train.take(slice(0, 8))
    found = method.loss(Batch(x, y, 0))
    masks, divergence = method.draw(method.generator("draws"), 2.0)
    h = x.flatten(1)
    for name, layer in method.layers.items():
        h = torch.relu(F.linear(h, layer.weight * masks[name], layer.bias * masks[name].amax(1)))
    fit = F.cross_entropy(walk.model.heads.layers[0](h), y)
    wanted = fit + 0.5 / len(task.train) * (method.stick_divergence() + divergence)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-4)


def test_the_rate_falls_from_task_to_task():
    walk = Walk(BAN(adam_lr=0.01, lr_decay=0.5, structure_lr=0.2), toy_stream(), MLP)
    for task in walk.stream:
        groups = walk.method.optimizer(task).param_groups
        assert [group["lr"] for group in groups] == pytest.approx([0.01 * 0.5**task.index, 0.2])


def test_it_learns_three_tasks_and_forgets_none():
    for kind in (MLP, CNN):
        walk = Walk(BAN(test_samples=4), toy_stream(per_class=24), kind, epochs=10).run()
        assert min(walk.accuracy[-1]) >= 0.9


def test_state_is_counted_by_hand():
    walk = Walk(BAN(test_samples=0), toy_stream(), MLP, epochs=1).run()
    entries, units = 64 * 24 + 24 * 24, 24 + 24
    numbers = 3 * (entries + units) + entries + 4 * 2  # sigma and the old mean and sigma; offsets; a and b, now and old
    assert walk.method.state_bytes() == 4 * numbers + 3 * entries // 8


def test_bad_values_are_named():
    for wrong in ({"a": 0.0}, {"b": -1.0}, {"heat": 0.0}, {"lr_decay": 0.0}, {"lr_decay": 1.5}):
        with pytest.raises(ValueError, match=f"ban: {next(iter(wrong))}="):
            BAN(**wrong)
