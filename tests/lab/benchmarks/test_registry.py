"""The named benchmarks: found, listed, and changed by overrides."""

from __future__ import annotations

import pytest
from tests.lab.benchmarks.expected import EXPECTED, empty

from drcl.lab import benchmarks


def test_every_benchmark_of_the_list_is_there():
    assert set(benchmarks.names()) == set(EXPECTED)
    assert len(benchmarks.names()) == 27


def test_overrides_merge_tables_and_replace_the_rest():
    one = benchmarks.get("cifar100-10", model={"width": 0.5}, lr=0.1, pixels={"flip": True})
    assert one.model == {"kind": "alexnet", "width": 0.5}
    assert one.lr == 0.1
    assert one.view().flip
    assert one.view().mean == (0.485, 0.456, 0.406)
    assert benchmarks.get("cub-20", model="mlp").model == {"kind": "mlp"}
    assert benchmarks.get("cifar100-10").lr == 0.02
    counted = benchmarks.get("mnist-split", steps=5)
    assert (counted.steps, counted.epochs) == (5, None)
    assert len(benchmarks.get("digits-permuted", tasks=12).stream(data=empty(10, (1, 8, 8), 2))) == 12


def test_unknown_names_get_a_hint():
    for wrong in ("mnist-permutd", "permuted-mnist", "Permuted_MNIST"):
        with pytest.raises(ValueError, match="did you mean 'mnist-permuted'"):
            benchmarks.get(wrong)


def test_table_has_a_row_each():
    rows = benchmarks.table()
    assert [row["name"] for row in rows] == list(benchmarks.names())
    row = next(row for row in rows if row["name"] == "emnist-labels")
    assert (row["tasks"], row["classes"], row["length"], row["batch"]) == (80, 47, "2500 steps", 1)
    assert all(row["about"] for row in rows)
