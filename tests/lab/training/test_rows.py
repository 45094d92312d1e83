"""Rows that a run tells and keeps: their fields are the columns of the files."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from drcl.lab.runs.files import CURVE_FIELDS, DRIFT_FIELDS
from drcl.lab.training.rows import CurvePoint, DriftRow


def test_their_fields_are_the_columns_on_disk():
    assert CURVE_FIELDS == ("task", "epoch", "step", "loss", "accuracy")
    assert (
        *("task", "layer", "weights", "unmoved"),
        *("mean_change", "largest_change", "relative_change"),
    ) == DRIFT_FIELDS


def test_they_do_not_change():
    for row in (CurvePoint(0, 1, 2, 0.5, 0.9), DriftRow(0, "fc1", 10, 0.5, 0.1, 0.2, 0.3)):
        with pytest.raises(FrozenInstanceError):
            row.task = 1
