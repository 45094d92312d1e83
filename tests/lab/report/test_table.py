"""Tables against numbers worked out by hand, in every format, with what they leave out told."""

import json
import math

import numpy as np
import pytest
from tests.lab.report.fake_runs import final, write_run, write_runs

from drcl.lab.report import table
from drcl.lab.report.formats import render
from drcl.lab.report.table import Statistic, bytes_text, cell_text, count_text, rows
from drcl.lab.runs import read

NaN = math.nan


COLUMN = {column.key: column for column in table.COLUMNS}


def test_means_deviations_and_counts(two_methods):
    sgd, drcl = rows(read.find([two_methods]))
    # sgd: (0.5 + 0.9) / 2 = 0.7 and (0.3 + 0.9) / 2 = 0.6: mean 0.65, deviation 0.1 / sqrt(2)
    assert sgd.values["average_accuracy"].mean == pytest.approx(0.65)
    assert sgd.values["average_accuracy"].deviation == pytest.approx(0.1 / math.sqrt(2))
    assert sgd.values["average_accuracy"].n == 2
    # backward transfer -0.4 and -0.6
    assert sgd.values["backward_transfer"].mean == pytest.approx(-0.5)
    # drcl: 0.85 and 0.9
    assert drcl.values["average_accuracy"].mean == pytest.approx(0.875)
    # A_inc: (0.9 + 0.85) / 2 and (0.9 + 0.9) / 2 -> 0.8875
    assert drcl.values["incremental_accuracy"].mean == pytest.approx(0.8875)
    # sgd took 20 s in the mean: 24 / 20 = 1.2 and 26 / 20 = 1.3
    assert drcl.values["relative_time"].mean == pytest.approx(1.25)
    assert drcl.values["relative_time"].deviation == pytest.approx(0.1 / math.sqrt(2))
    assert sgd.values["relative_time"].mean == pytest.approx(1.0)
    assert sgd.seeds == (0, 1)


def test_the_best_of_each_column(two_methods):
    sgd, drcl = rows(read.find([two_methods]))
    assert drcl.best == {"average_accuracy", "backward_transfer", "forgetting", "incremental_accuracy"}
    assert sgd.best == frozenset()


def test_equal_as_printed_is_equally_good(tmp_path):
    write_run(tmp_path, "sgd", 0, R=final(0.70001, 0.9))
    write_run(tmp_path, "ewc", 0, R=final(0.70002, 0.9))
    assert all("average_accuracy" in row.best for row in rows(read.find([tmp_path])))


def test_a_bound_does_not_compete(tmp_path):
    write_run(tmp_path, "sgd", 0, R=final(0.5, 0.9))
    write_run(tmp_path, "ewc", 0, R=final(0.6, 0.9))
    write_run(tmp_path, "joint", 0, R=np.array([[NaN, NaN], [0.99, 0.99]]))
    sgd, ewc, joint = rows(read.find([tmp_path]))
    assert joint.reference
    assert joint.best == frozenset()
    assert "average_accuracy" in ewc.best
    assert math.isnan(joint.values["backward_transfer"].mean)
    assert sgd.method == "sgd"


def test_one_method_has_nothing_to_be_best_of(tmp_path):
    write_run(tmp_path, "sgd", 0, R=final(0.5, 0.9))
    (row,) = rows(read.find([tmp_path]))
    assert row.best == frozenset()


def test_one_seed_has_no_deviation_and_a_note(tmp_path):
    write_run(tmp_path, "sgd", 0, R=final(0.5, 0.9))
    found = rows(read.find([tmp_path]))
    assert math.isnan(found[0].values["average_accuracy"].deviation)
    assert cell_text(COLUMN["average_accuracy"], found[0].values["average_accuracy"]) == "70.0"
    assert "One seed only" in table.benchmark_notes(found, "digits-permuted")[0]


def test_runs_left_out_are_told(tmp_path):
    write_runs(tmp_path)
    write_run(tmp_path, "drcl", 2, done=3)
    write_run(tmp_path, "sgd", 0, name="again")
    broken = write_run(tmp_path, "ewc", 5, name="broken")
    (broken / "config.toml").write_text("= nonsense")
    failed = write_run(tmp_path, "si", 0, done=1)
    (failed / "result.json").write_text(json.dumps({"finished": False, "error": "the loss became NaN"}))
    found = rows(read.find([tmp_path]))
    text = render(found, "text")
    assert "drcl, seed 2: unfinished, 3 of 8 tasks done; not counted (digits-permuted-drcl-2)" in text
    assert "repeats seed 0 and is not counted" in text
    assert "unreadable runs" in text
    assert "broken: config.toml is damaged" in text
    assert "si, seed 0: failed: the loss became NaN; not counted" in text
    # a method without a result has its row all the same
    assert any(row.label == "si" and row.seeds == () for row in found)
    # and nothing of it went into the means
    assert next(row for row in found if row.label == "drcl").seeds == (0, 1)


def test_other_seeds_are_told(tmp_path):
    write_run(tmp_path, "sgd", 0)
    write_run(tmp_path, "ewc", 1)
    notes = table.benchmark_notes(rows(read.find([tmp_path])), "digits-permuted")
    assert notes[0] == "The methods were not run on the same seeds: sgd on seed 0; ewc on seed 1."


def test_other_machines_and_settings_are_told(tmp_path):
    path = write_run(tmp_path, "sgd", 0)
    write_run(tmp_path, "ewc", 0, training={"epochs": 40})
    environment = json.loads((path / "environment.json").read_text())
    (path / "environment.json").write_text(json.dumps(environment | {"threads": 8}))
    notes = " ".join(table.benchmark_notes(rows(read.find([tmp_path])), "digits-permuted"))
    assert "times do not compare" in notes
    assert "not all trained with the same settings" in notes


def test_without_sgd_there_is_no_unit_of_time(tmp_path):
    write_run(tmp_path, "ewc", 0)
    (row,) = found = rows(read.find([tmp_path]))
    assert math.isnan(row.values["relative_time"].mean)
    assert "No single finished sgd run" in " ".join(table.benchmark_notes(found, "digits-permuted"))


def test_a_value_known_for_some_seeds_only_is_told(tmp_path):
    write_run(tmp_path, "sgd", 0, R=final(0.5, 0.9))
    path = write_run(tmp_path, "sgd", 1, R=final(0.5, 0.9))
    (path / "cost.json").unlink()
    (row,) = rows(read.find([tmp_path]))
    assert row.values["learning_seconds"].n == 1
    assert "sgd: time is known only for 1 of 2 seeds" in row.notes


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("average_accuracy", Statistic(0.9021, 0.0042, 3), "90.2 ± 0.4"),
        ("average_accuracy", Statistic(NaN, NaN, 0), "–"),
        ("backward_transfer", Statistic(-0.0412, 0.001, 2), "−4.1 ± 0.1"),
        ("backward_transfer", Statistic(0.0369, NaN, 1), "+3.7"),
        ("backward_transfer", Statistic(-0.0001, NaN, 1), "0.0"),
        ("relative_time", Statistic(1.4199, 0.021, 2), "1.42 ± 0.02"),
        ("state_bytes", Statistic(562_256, 0.0, 2), "562 kB"),
        ("gradient_evaluations", Statistic(29_440, 0.0, 2), "29.4 k"),
    ],
)
def test_numbers_as_text(key, value, text):
    assert cell_text(COLUMN[key], value) == text


def test_sizes_and_counts():
    assert [bytes_text(n) for n in (0, 999, 1000, 52_000_000, 1.04e9, NaN)] == [
        "0 B",
        "999 B",
        "1 kB",
        "52 MB",
        "1.04 GB",
        "–",
    ]
    assert [count_text(n) for n in (0, 999, 3_680_000, 2.5e12)] == ["0", "999", "3.68 M", "2.5e+03 G"]
