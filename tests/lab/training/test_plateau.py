"""The plateau schedule: rates against sequences worked out by hand, the best epoch put back for every method, and
resume in the middle of it."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.lab.methods.test_methods import make
from torch.nn import functional as F

from drcl.lab import methods, networks, streams
from drcl.lab.data.base import DataSet, Split
from drcl.lab.methods.base import Method
from drcl.lab.runs import nested
from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.execute import execute
from drcl.lab.streams.view import View
from drcl.lab.training import plateau as plateaus
from drcl.lab.training.budget import Plan
from drcl.lab.training.events import Watcher
from drcl.lab.training.learner import Learner
from drcl.lab.training.plateau import Plateau
from drcl.lab.training.settings import Training


def stream(tasks: int = 2, valid: float = 0.25, scenario: str = "task", noise: float = 12) -> streams.Stream:
    rng = np.random.default_rng(0)
    patterns = rng.integers(40, 215, (2 * tasks, 1, 8, 8))

    def split(count: int) -> Split:
        labels = np.tile(np.arange(2 * tasks), count)
        images = np.clip(patterns[labels] + rng.normal(0, noise, (len(labels), 1, 8, 8)), 0, 255).astype(np.uint8)
        return Split(images, labels)

    data = DataSet("blobs", split(16), split(10), tuple(map(str, range(2 * tasks))))
    view = View((0.5,), (0.25,))
    return streams.class_split(data, seed=1, classes_per_task=2, scenario=scenario, valid=valid, view=view)


def learner(
    method: Method, on: streams.Stream, plan: Plan, watcher: Watcher | None = None, dropout: float = 0.0, **training
) -> Learner:
    model = networks.build({"kind": "mlp", "hidden": [10], "dropout": dropout}, on, seed=5)
    return Learner(on, model, method, plan, Training(**training), seed=7, watcher=watcher)


def plan(epochs: int, schedule: str = "plateau", **more: Any) -> Plan:
    return Plan(epochs=epochs, batch=8, schedule=schedule, **{"lr": 0.05, "momentum": 0.9} | more)


# ---- the rate


def walk(losses: list[float], lr: float, **training: Any) -> tuple[list[float], list[bool], int | None]:
    """The rate of each epoch, which of them were the best so far, and after how many it stopped."""
    made, rates, best = Plateau(Training(**training), lr), [], []
    for number, loss in enumerate(losses, 1):
        rates.append(made.rate)
        better, stop = made.epoch(loss)
        best.append(better)
        if stop:
            return rates, best, number
    return rates, best, None


def test_as_hat_it_stops_when_the_rate_is_too_small():
    """Patience 2, factor 2, from 0.8 to at least 0.2: it falls after two epochs without a better loss, and the fall
    that would reach 0.1 ends the training."""
    #         best        best  equal is not better
    losses = [5.0, 6, 6, 4.0, 4.0, 5, 3.9, 4, 4, 4, 4, 1.0]
    rates, best, stopped = walk(losses, 0.8, patience=2, factor=2.0, min_lr=0.2)
    assert rates == [0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2, 0.2, 0.2]
    assert best == [True, False, False, True, False, False, True, False, False]
    assert stopped == 9


def test_as_spg_it_stays_at_the_smallest_rate_for_another_patience():
    losses = [5.0, 6, 6, 6, 6, 6, 5.5, 4.0, 6, 6, 0.0]
    rates, best, stopped = walk(losses, 0.8, patience=2, factor=4.0, min_lr=0.1, at_min_lr="stay")
    #        5    6    6 | 6    6 | 6    5.5 would stop here, as two without a better one at the smallest rate
    assert rates == [0.8, 0.8, 0.8, 0.2, 0.2, 0.1, 0.1]
    assert stopped == 7
    losses[6] = 4.5  # better: patience begins anew
    rates, best, stopped = walk(losses, 0.8, patience=2, factor=4.0, min_lr=0.1, at_min_lr="stay")
    assert rates == [0.8, 0.8, 0.8, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1]
    assert stopped == 10
    assert [k for k, better in enumerate(best) if better] == [0, 6, 7]


@pytest.mark.parametrize("seed", range(20))
def test_with_stay_the_rates_are_those_of_torch(seed):
    rng = np.random.default_rng(seed)
    losses = (np.exp(-np.arange(60) / 15) + rng.normal(0, 0.1, 60)).tolist()
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.25)
    patience = int(rng.integers(1, 5))
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=1 / 3, patience=patience - 1, threshold=0.0, min_lr=1e-3, eps=0.0
    )
    ours, at_the_end = Plateau(Training(patience=patience, factor=3.0, min_lr=1e-3, at_min_lr="stay"), 0.25), 0
    for loss in losses:
        assert ours.rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        better, stop = ours.epoch(loss)
        at_the_end = 0 if better or ours.rate > 1e-3 else at_the_end + 1
        if stop:
            assert at_the_end >= patience
            return
        theirs.step(loss)


def test_the_published_numbers():
    """Falls until it stops, from the rate each paper begins with: HAT 0.05, GPM 0.01, SPG 0.25."""
    never = [1.0] * 200
    rates, _, stopped = walk(never, 0.05)  # the defaults
    assert len(set(rates)) == 6  # 0.05 / 3^5 = 2.1e-4, the next would be below 1e-4
    assert stopped == 1 + 6 * 5
    rates, _, stopped = walk(never, 0.01, patience=6, factor=2.0, min_lr=1e-5)
    assert len(set(rates)) == 10  # 0.01 / 2^9 = 2.0e-5
    assert stopped == 1 + 10 * 6
    rates, _, stopped = walk(never, 0.25, min_lr=1e-3, at_min_lr="stay")
    assert rates[-1] == 1e-3
    assert len(set(rates)) == 7  # 0.25 / 3^5 = 1.03e-3, then 1e-3
    assert stopped == 1 + 7 * 5
    assert walk(never, 1e-5, at_min_lr="stay")[0] == [1e-5] * 6  # never raised to min_lr


class Rates(Watcher):
    """The rates and validation losses that the learner reports, one per epoch."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.losses: list[float] = []

    def log(self, values, step):
        if "lr" in values:
            self.rates.append(values["lr"])
        if "validation_loss" in values:
            self.losses.append(values["validation_loss"])


def told(monkeypatch, losses: dict[tuple[int, int], list[float]]) -> None:
    """Let validation find these losses, by task and stage, in the place of the measured ones."""
    left = {key: list(values) for key, values in losses.items()}

    def stated(method: Method, *rest: Any) -> float:
        return left[method.at.task, method.at.stage].pop(0)

    monkeypatch.setattr(plateaus, "validation_loss", stated)


def test_the_learner_follows_it(monkeypatch):
    look = Rates()
    told(monkeypatch, {(0, 0): [3.0, 4, 4, 4, 4], (1, 0): [3.0, 2, 1, 0.5, 0.4, 0.3, 0.2]})
    options = {"patience": 2, "factor": 2.0, "min_lr": 0.02, "first_epoch": False}
    made = learner(methods.get("sgd")(), stream(), plan(7), look, **options)
    made.run()
    # The first task stops after five epochs, the second takes all seven at the full rate.
    assert look.rates == [0.05, 0.05, 0.05, 0.025, 0.025] + [0.05] * 7
    assert made.cost.gradient_evaluations == 12 * 3
    assert look.losses == [3.0, 4, 4, 4, 4, 3.0, 2, 1, 0.5, 0.4, 0.3, 0.2]


def test_the_loss_is_the_mean_cross_entropy_on_the_validation_data():
    on, look = stream(tasks=1, noise=60), Rates()
    seen: list[dict[str, torch.Tensor]] = []

    class Look(Rates):
        def log(self, values, step):
            if "validation_loss" in values:
                seen.append(copy.deepcopy(dict(made.model.state_dict())))
                look.losses.append(values["validation_loss"])

    made = learner(methods.get("sgd")(), on, plan(4), Look(), dropout=0.5)
    made.run()
    assert len(seen) == 4
    x, y = on[0].valid.take(slice(None))
    assert len(y) == 8
    by_hand = []
    for state in seen:
        made.model.load_state_dict(state)
        made.model.eval()
        by_hand.append(float(F.cross_entropy(made.model(x, 0), y).detach()))
    np.testing.assert_allclose(look.losses, by_hand, rtol=1e-6)


# ---- the best epoch

METHODS = {name: {} for name in methods.names()} | {
    "packnet": {"retrain": 1.0},
    "ibpcl": {"hot": 1.0, "cold": 1.0},  # no temperature that follows the number of steps
    "drcl-auto": {"plasticity_steps": 1},
    "drcl-kronecker": {"plasticity_steps": 1},  # a proposal that is not finished is dropped: below
    "drcl of douglas and rachford": {"splitting": "douglas-rachford", "momentum": 0.0},
    "drcl along paths": {"importance": "path"},
    "drcl around adam": {"training.optimizer": "adam"},
}


@pytest.mark.parametrize("name", METHODS)
def test_the_task_ends_as_if_training_had_ended_with_the_best_epoch(name, monkeypatch):
    """Two epochs of five are the best: all of the method's state, its optimizer included, is that of two epochs."""
    options = {k: v for k, v in METHODS[name].items() if not k.startswith("training.")}
    training = {"optimizer": METHODS[name].get("training.optimizer", "sgd"), "first_epoch": False}
    kind = name.split()[0]
    usual = [9.0, 1.0, 2.0, 2.0, 2.0]
    told(monkeypatch, {(task, stage): usual for task in range(2) for stage in range(2)})
    rate = 0.01 if training["optimizer"] == "adam" else 0.05
    best = learner(make(kind, **options), stream(), plan(5, lr=rate), **training)
    best.run()
    two = learner(make(kind, **options), stream(), plan(2, "constant", lr=rate), **training)
    two.run()
    for key, value in two.model.state_dict().items():
        assert torch.equal(best.model.state_dict()[key], value), key
    assert best.matrix[-1] == two.matrix[-1]
    ours, theirs = (nested.pack(made.method.state_dict()) for made in (best, two))
    assert ours[0] == theirs[0]
    assert all(torch.equal(ours[1][key].nan_to_num(7.0), t.nan_to_num(7.0)) for key, t in theirs[1].items())
    assert best.cost.gradient_evaluations > two.cost.gradient_evaluations  # what was spent is told


@pytest.mark.parametrize("splitting", ["forward-backward", "douglas-rachford"])
def test_drcl_ends_with_the_weights_that_were_measured(splitting, monkeypatch):
    """Seven steps form a proposal and an epoch has three: the best one ends in the middle of one, which is dropped."""
    measured: list[dict[str, torch.Tensor]] = []
    usual = [9.0, 1.0, 2.0, 2.0]

    def stated(method: Method, *rest: Any) -> float:
        with method.deployed():
            measured.append(copy.deepcopy(dict(method.model.state_dict())))
        return usual[(len(measured) - 1) % 4]

    monkeypatch.setattr(plateaus, "validation_loss", stated)
    method = make("drcl", splitting=splitting, plasticity_steps=7, momentum=0.0)
    made = learner(method, stream(), plan(4), first_epoch=False)
    made.run()
    best = measured[4 + 1]  # of the second task
    for key, value in made.model.state_dict().items():
        assert torch.equal(value, best[key]), key
    anchor = method._optimizer.anchor
    for key, value in anchor.weights.items():
        assert torch.equal(value, best[key]), key
    assert any(not torch.equal(best[key], measured[-1][key]) for key in best)


def test_norm_statistics_come_back_too(monkeypatch):
    on = stream(tasks=1)
    told(monkeypatch, {(0, 0): [1.0, 2.0, 2.0]})
    ends = []
    for schedule, epochs in (("plateau", 3), ("constant", 1)):
        model = networks.build({"kind": "cnn", "norm": "shared"}, on, seed=5)
        made = Learner(on, model, methods.get("sgd")(), plan(epochs, schedule), Training(first_epoch=False), seed=7)
        made.run()
        ends.append(dict(made.model.state_dict()))
    assert all(torch.equal(ends[0][key], value) for key, value in ends[1].items())


def test_joint_is_judged_on_all_tasks_together(monkeypatch):
    asked = []

    def stated(method: Method, tasks: Any, *rest: Any) -> float:
        asked.append([task.index for task in tasks])
        return 1.0

    monkeypatch.setattr(plateaus, "validation_loss", stated)
    learner(methods.get("joint")(), stream(), plan(2)).run()
    assert asked == [[0, 1], [0, 1]]


# ---- resume


class Keeper(Watcher):
    def __init__(self) -> None:
        self.states: list[Any] = []

    def save(self, state):
        self.states.append(nested.pack(state()))


@pytest.mark.parametrize(
    "name", ["sgd", "si", "er", "der++", "packnet", "drcl", "became", "drcl of douglas and rachford"]
)
def test_resumed_in_the_middle_of_a_plateau(name):
    """Cut after every fifth step, among them steps between the best epoch and the end: the same bits and rates."""
    options = METHODS[name]
    how = {"patience": 1, "factor": 2.0, "min_lr": 0.004, "first_epoch": False}
    on, keeper, all_rates = stream(noise=200), Keeper(), Rates()

    def run(state: Any = None, **more: Any) -> Learner:
        made = learner(make(name.split()[0], **options), on, plan(12), dropout=0.2, **how, **more)
        if state is not None:
            made.load_state_dict(nested.unpack(*state))
        made.run()
        return made

    whole = run(watcher=keeper, checkpoint_every=5)
    run(watcher=all_rates)
    assert len(set(all_rates.rates)) > 2  # it fell
    inside = [state for state in keeper.states if nested.unpack(*state)["inside"]]
    waiting = [state for state in inside if nested.unpack(*state)["plateau"]["waited"] or at_fall(state)]
    assert waiting
    for state in inside[:: max(1, len(inside) // 5)] + waiting[-1:]:
        looked = Rates()
        again = run(state, watcher=looked)
        assert looked.rates == all_rates.rates[len(all_rates.rates) - len(looked.rates) :]
        for key, value in whole.model.state_dict().items():
            assert torch.equal(again.model.state_dict()[key], value), key
        assert np.array_equal(again.matrix, whole.matrix, equal_nan=True)


def at_fall(state: Any) -> int:
    return nested.unpack(*state)["plateau"]["falls"]


def test_killed_and_taken_up_from_its_files(monkeypatch, tmp_path):
    from drcl.lab.training import step as steps

    options = {"tasks": 2, "epochs": 8, "schedule": "plateau", "valid": 0.2, "patience": 1, "min_lr": 0.006}
    options |= {"model.hidden": [12], "limit_per_class": 20, "checkpoint_every": 4, "lr": 0.1}
    config = RunConfig.make("digits-split", "drcl", 1, options | {"samples": 20})
    expected = execute(config, tmp_path / "whole")
    original, done = steps.Step.__call__, 0

    def counted(self, batch):
        nonlocal done
        done += 1
        if done == 11:
            raise KeyboardInterrupt
        original(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(steps.Step, "__call__", counted)
        with pytest.raises(KeyboardInterrupt):
            execute(config, tmp_path / "cut")
    found = execute(config, tmp_path / "cut")
    assert found["accuracy_matrix"] == expected["accuracy_matrix"]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]


# ---- what is refused


def test_without_validation_data_it_is_refused():
    with pytest.raises(ValueError, match=r"schedule=plateau: there are no validation data .* valid=0.1"):
        learner(methods.get("sgd")(), stream(valid=0.0), plan(2))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"patience": 0}, "patience=0: give a whole number of at least 1"),
        ({"factor": 1.0}, "factor=1.0: give a finite number above 1"),
        ({"factor": math.inf}, "factor=inf"),
        ({"min_lr": 0.0}, "min_lr=0.0: give a number above 0"),
    ],
)
def test_bad_values_are_named(wrong, said):
    with pytest.raises(ValueError, match=f"training: {said}"):
        Training(**wrong)


@pytest.mark.parametrize("given", [{"patience": 3}, {"factor": 2.0}, {"min_lr": 0.1}, {"at_min_lr": "stay"}], ids=str)
def test_its_options_without_it_are_refused(given):
    (key,) = given
    with pytest.raises(ValueError, match=f"{key}=.*the schedule is constant.*schedule=plateau"):
        learner(methods.get("sgd")(), stream(), plan(2, "constant"), **given)


def test_runs_without_it_keep_their_names():
    """A run's name is made of its settings; those of this schedule are left out where they are not given."""
    usual = RunConfig.make("digits-split", "sgd", 0, {"lr": 0.5}).key()
    assert not any(f'"{key}"' in usual for key in ("patience", "factor", "min_lr", "at_min_lr", "first_epochs"))
    assert '"patience": 3' in RunConfig.make("digits-split", "sgd", 0, {"patience": 3}).key()
