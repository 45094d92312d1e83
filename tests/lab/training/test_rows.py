"""Rows that a run tells and keeps: their fields are the columns of the files."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from drcl.lab.runs.files import CURVE_FIELDS, DRIFT_FIELDS, RECORDS, record_fields
from drcl.lab.training.rows import ChangeRow, CurvePoint, DriftRow, IterationRow, LossPoint, StepRow, UpdateRow


def test_their_fields_are_the_columns_on_disk():
    assert CURVE_FIELDS == ("task", "epoch", "step", "loss", "accuracy")
    assert (
        *("task", "layer", "weights", "unmoved"),
        *("mean_change", "largest_change", "relative_change"),
    ) == DRIFT_FIELDS


def test_each_smaller_table_has_its_columns():
    assert record_fields(LossPoint) == ("task", "epoch", "step", "first_loss", "current_loss")
    assert record_fields(StepRow)[3:] == ("step_norm", "proposed", "passed", "still", "residual", "iterations")
    assert record_fields(IterationRow) == ("task", "iteration", "residual")
    assert record_fields(UpdateRow) == ("task", "weight", "proposed", "passed")
    head = record_fields(ChangeRow)
    assert head[:6] == ("task", "layer", "weights", "unmoved", "below", "1e-06")
    assert head[-1] == "10"
    assert set(RECORDS.values()) == {LossPoint, StepRow, IterationRow, UpdateRow, ChangeRow}


def test_they_do_not_change():
    for row in (CurvePoint(0, 1, 2, 0.5, 0.9), DriftRow(0, "fc1", 10, 0.5, 0.1, 0.2, 0.3)):
        with pytest.raises(FrozenInstanceError):
            row.task = 1
