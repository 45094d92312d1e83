"""DRCL as a contestant: its options reach the library, by the library's own names and checks."""

from __future__ import annotations

import pytest
import torch
from tests.lab.methods.learners import learner, make, stream
from tests.lab.methods.loop import Walk, assert_resumes, assert_same_weights, toy_stream

from drcl import Kronecker
from drcl.lab.methods.base import Batch
from drcl.lab.methods.drcl import DouglasRachford
from drcl.lab.runs.config import RunConfig


def kronecker(**options) -> DouglasRachford:
    return DouglasRachford(importance="kronecker", samples=12, prox="l2", **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"convolutions": "channels"}, {"rank": 2}, {"eigenvalues": "product"}],
    ids=str,
)
def test_the_options_of_kronecker_are_reachable(options):
    walk = Walk(kronecker(**options), toy_stream(tasks=2), "cnn", epochs=1).run()
    anchor = walk.method._optimizer.anchor
    told, wanted = anchor.provenance["made"][1], Kronecker(samples=12, labels="sampled", **options).describe()
    assert told.pop("multiplications") > 0
    assert told == wanted | {"seed": told["seed"]}
    conv = next(iter(anchor.bases.values()))
    assert (conv.eigenvalues.shape[1] > 1) == (options.get("convolutions") == "channels")
    if "rank" in options:
        assert all(max(b.kept) <= 2 for b in anchor.bases.values())


@pytest.mark.parametrize(("normalise", "total"), [("global", 1.0), ("task", 2.0), ("share", 2e6)])
@pytest.mark.parametrize("importance", ["fisher", "kronecker"])
def test_normalise_is_the_unit_of_two_tasks(importance, normalise, total):
    method = DouglasRachford(importance=importance, samples=12, normalise=normalise)
    anchor = Walk(method, toy_stream(tasks=2), epochs=1).run().method._optimizer.anchor
    weights = sum(t.numel() for t in anchor.importance.values())
    found = sum(float(t.double().sum()) for t in anchor.importance.values())
    assert found == pytest.approx(total if normalise == "share" else total * weights, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"rank": 0}, "rank=0"), ({"normalise": "layer"}, "normalise='layer'")],
)
def test_bad_values_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        DouglasRachford(**options)


@pytest.mark.parametrize("options", [{"normalise": "share"}, {"normalise": "share", "rank": 3}], ids=str)
def test_it_resumes(options):
    assert_resumes(lambda: kronecker(**options), "cnn")


# ---- presets

PAPER = {
    "momentum": 0.0, "strength": 10.0, "stable": None, "prox": "l1", "splitting": "douglas-rachford", "iterations": 5,
    "plasticity_steps": 1, "memory": "latest", "normalise": "global", "damping": 0.0,
}  # fmt: skip


def test_the_preset_is_the_paper_with_the_learning_rate_of_the_run():
    walk = Walk(DouglasRachford(preset="paper", samples=12), toy_stream(tasks=2), lr=0.02, momentum=0.9).run()
    spelt = Walk(DouglasRachford(samples=12, **PAPER), toy_stream(tasks=2), lr=0.02, momentum=0.9).run()
    assert_same_weights(walk.model, spelt.model)
    optimizer = walk.method._optimizer
    assert optimizer.param_groups[0]["lr"] == 0.02
    assert optimizer.param_groups[0]["momentum"] == 0.0
    assert (optimizer.solver.iterations, optimizer.solver.memory) == (5, "latest")
    assert optimizer.strengths == [10.0, 10.0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("strength", 3.0),
        ("momentum", 0.9),
        ("memory", 0.5),
        ("iterations", 2),
        ("stable", 0.8),
        ("normalise", "share"),
    ],
)
def test_what_is_given_beside_a_preset_wins(name, value):
    made = DouglasRachford(preset="paper", **{name: value})
    assert {key: getattr(made, key) for key in PAPER} == PAPER | {name: value}


@pytest.mark.parametrize("method", ["drcl", "drcl-kronecker"])
@pytest.mark.parametrize("given", [{}, {"strength": 0.01}, {"iterations": 1, "momentum": 0.5}, {"momentum": "none"}])
def test_a_config_with_a_preset_is_read_back_as_it_was(method, given, tmp_path):
    config = RunConfig.make("digits-split", method, 0, {"preset": "paper", **given})
    (tmp_path / "config.toml").write_text(config.to_toml())
    again = RunConfig.from_toml(tmp_path / "config.toml")
    assert again.key() == config.key()
    wanted = PAPER | {key: value for key, value in given.items() if value != "none"}
    assert again.resolved().method_options.items() >= wanted.items()


def test_the_preset_has_the_papers_rate_from_the_second_task_on():
    assert RunConfig.make("digits-split", "drcl", 0, {"preset": "paper"}).make_training().later_lr == 5e-3
    given = RunConfig.make("digits-split", "drcl", 0, {"preset": "paper", "later_lr": 0.02})
    assert given.make_training().later_lr == 0.02
    assert RunConfig.make("digits-split", "drcl", 0, {}).make_training().later_lr is None


def test_a_preset_takes_no_adam_and_no_unknown_name():
    with pytest.raises(ValueError, match="preset=paper works only with plain SGD; use optimizer=sgd, not adam"):
        Walk(DouglasRachford(preset="paper"), toy_stream(tasks=1), optimizer="adam")
    with pytest.raises(ValueError, match="preset='papers' is unknown"):
        DouglasRachford(preset="papers")


def test_the_record_of_a_run_says_what_a_preset_stood_for(tmp_path):
    config = RunConfig.make("digits-split", "drcl", 0, {"preset": "paper"})
    assert config.resolved().method_options.items() >= PAPER.items()
    (tmp_path / "config.toml").write_text(config.to_toml())
    assert RunConfig.from_toml(tmp_path / "config.toml").key() == config.key()


# ---- in the real loop


def test_drcl_is_judged_at_z_and_trains_at_y():
    made = learner(make("drcl", splitting="douglas-rachford", strength=0.1), stream("domain", tasks=2))
    made.run()
    optimizer = made.method._optimizer
    assert optimizer.tasks == 2
    made._inside, made.at.task, made.at.stage, made.at.step = False, 1, 0, 0
    x, y = made.stream[1].train.take(slice(None))
    made.model.train()
    made.method.step(optimizer, lambda: backward(made, Batch(x, 1 - y, 0)))
    y_weights = {n: p.detach().clone() for n, p in made.model.named_parameters()}
    with made.method.deployed():
        z_weights = {n: p.detach().clone() for n, p in made.model.named_parameters()}
        for _, state in optimizer.protected():
            assert "z" in state
    assert any(not torch.equal(y_weights[n], z_weights[n]) for n in y_weights)
    assert all(torch.equal(p.detach(), y_weights[n]) for n, p in made.model.named_parameters())


def backward(made, batch) -> torch.Tensor:
    for p in made.model.parameters():
        p.grad = None
    loss = made.method.loss(batch)
    loss.backward()
    return loss.detach()


def test_drcl_of_infinite_strength_leaves_the_trunk_and_trains_the_head():
    made = learner(make("drcl", strength=float("inf"), damping=1.0), stream(tasks=2))
    made.run()
    assert made.drifts[0]["unmoved"] == 1.0
    assert made.matrix[1][0] == made.matrix[0][0]
    assert made.matrix[1][1] > 0.7


def test_drcl_protects_a_shared_head_and_leaves_single_heads_free():
    for scenario, guarded in (("task", 2), ("domain", 4), ("class", 4)):
        made = learner(make("drcl"), stream(scenario))
        made.run()
        assert len(list(made.method._optimizer.protected())) == guarded


def test_drcl_counts_what_it_keeps():
    trunk = 64 * 10 + 10
    for splitting, copies in (("forward-backward", 2), ("douglas-rachford", 3)):
        made = learner(make("drcl", splitting=splitting))
        made.run()
        assert made.cost.state_bytes == copies * trunk * 4


@pytest.mark.parametrize(
    "options",
    [
        {"importance": "mas"},
        {"importance": "path"},
        {"labels": "exact"},
        {"prox": "l2"},
        {"memory": 0.5},
        {"stable": 0.7},
    ],
    ids=str,
)
def test_the_options_of_the_library_are_reachable(options):
    made = learner(make("drcl", **options), stream("domain", tasks=2))
    made.run()
    anchor = made.method._optimizer.anchor
    estimator = {"mas": "MAS", "path": "PathIntegral"}.get(options.get("importance", ""), "Fisher")
    assert anchor.provenance["made"][0]["estimator"] == estimator
    assert anchor.provenance["memory"] == options.get("memory", "sum")
    if "stable" in options:
        assert 0.5 < made.drifts[0]["unmoved"] < 0.95


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strength": -1.0}, "strength=-1.0"),
        ({"stable": 1.5}, "stable=1.5"),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"iterations": 0}, "iterations=0"),
        ({"samples": 0}, "samples=0"),
        ({"path_damping": 0.0}, "damping=0.0"),
        ({"memory": 2.0}, "memory=2.0"),
    ],
)
def test_what_the_library_refuses_is_refused_here(options, message):
    with pytest.raises(ValueError, match=message):
        DouglasRachford(**options)
