"""Settings of a run: defaults, what is refused, and which of them do not change an outcome."""

from __future__ import annotations

from dataclasses import fields

import pytest

from drcl.lab import benchmarks
from drcl.lab.training.budget import Plan
from drcl.lab.training.settings import OPERATION, Training


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, 0) for key in ("threads", "checkpoint_every", "evaluate_batch", "log_every")),
        *((key, value) for key in ("later_lr", "clip") for value in (0.0, -1.0, float("nan"))),
        *((key, value) for key in ("weight_decay", "checkpoint_seconds") for value in (-1.0, float("nan"))),
    ],
)
def test_bad_values_are_refused_by_name(key, value):
    with pytest.raises(ValueError, match=f"training: {key}={value}: give a"):
        Training(**{key: value})


def test_edges_that_are_allowed():
    Training(threads=None, checkpoint_every=None, later_lr=None, clip=None)
    Training(threads=1, log_every=1, weight_decay=0.0, checkpoint_seconds=0.0, clip=1e-9)


def test_how_a_run_is_carried_out_is_a_part_of_the_settings():
    assert set(OPERATION) < {f.name for f in fields(Training)}
    assert all(f.metadata["help"] for f in fields(Training))


def test_a_plan_is_what_the_benchmark_says():
    made = benchmarks.get("digits-permuted")
    plan = Plan.of(made)
    assert (plan.epochs, plan.steps, plan.batch) == (made.epochs, made.steps, made.batch)
    assert (plan.lr, plan.momentum, plan.schedule) == (made.lr, made.momentum, made.schedule)
