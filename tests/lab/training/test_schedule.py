"""Learning rates within a task, by formula."""

from __future__ import annotations

import math

import pytest
import torch

from drcl.lab.methods.base import Where
from drcl.lab.training.plateau import Plateau
from drcl.lab.training.schedule import schedule
from drcl.lab.training.settings import Training


def made(*rates: float) -> torch.optim.Optimizer:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups, lr=9.0)


def rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


def test_constant_leaves_the_rate():
    optimizer, at = made(0.1, 0.2), Where(steps=4)
    apply = schedule(optimizer, "constant", at)
    for at.step in range(4):
        apply()
        assert rates(optimizer) == [0.1, 0.2]


def test_a_plateau_scales_all_groups_alike():
    optimizer, at = made(0.1, 0.2), Where(steps=4)
    plateau = Plateau(Training(patience=1, factor=4.0, min_lr=1e-3), 0.1)
    apply = schedule(optimizer, "plateau", at, plateau)
    for loss, expected in ((1.0, [0.1, 0.2]), (2.0, [0.025, 0.05]), (0.5, [0.025, 0.05])):
        plateau.epoch(loss)
        apply()
        assert rates(optimizer) == pytest.approx(expected)


def test_cosine_is_half_a_wave_from_the_first_step_to_the_last():
    optimizer, at = made(0.1, 0.2), Where(steps=4)
    apply = schedule(optimizer, "cosine", at)
    for at.step, share in enumerate([1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]):
        apply()
        assert rates(optimizer) == pytest.approx([0.1 * share, 0.2 * share])


def test_an_optimizer_that_outlives_a_task_starts_the_next_one_afresh():
    optimizer, at = made(0.1), Where(steps=2)
    apply = schedule(optimizer, "cosine", at)
    at.step = 1
    apply()
    assert rates(optimizer) == pytest.approx([0.05])
    schedule(optimizer, "constant", Where(steps=2))
    assert rates(optimizer) == [0.1]
