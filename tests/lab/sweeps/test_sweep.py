"""Sweeps: what a file asks for, and running it in processes that may fail, be killed or be interrupted."""

from __future__ import annotations

import pytest
from tests.lab.sweeps.plans import write

from drcl.lab.sweeps import sweep


def test_a_plan_is_the_product_of_its_lists():
    configs = sweep.plan(
        {
            "benchmarks": ["digits-permuted", "digits-split"],
            "methods": ["sgd", "ewc"],
            "seeds": 3,
            "options": {"epochs": 4, "lr": 0.5},
            "benchmark": {"digits-split": {"lr": 0.25}},
            "method": {"ewc": {"kind": "separate"}},
            "grid": {"batch": [16, 64], "ewc": {"lam": [1.0, 2.0, 4.0]}},
        }
    )
    # for each of 2 benchmarks and 3 seeds: 2 of sgd, 2 x 3 of ewc
    assert len(configs) == 2 * 3 * (2 + 6)
    assert len({config.name for config in configs}) == len(configs)
    split = [c for c in configs if c.benchmark == "digits-split" and c.method == "ewc" and c.seed == 2]
    assert {(c.benchmark_options["batch"], c.method_options["lam"]) for c in split} == {
        (batch, lam) for batch in (16, 64) for lam in (1.0, 2.0, 4.0)
    }
    assert {(c.benchmark_options["lr"], c.benchmark_options["epochs"]) for c in split} == {(0.25, 4)}
    assert {c.method_options["kind"] for c in split} == {"separate"}
    assert all(c.benchmark_options["lr"] == 0.5 for c in configs if c.benchmark == "digits-permuted")


def test_runs_that_are_the_same_are_planned_once():
    assert len(sweep.plan({"benchmarks": "digits-split", "methods": ["sgd", "sgd"], "seeds": [1, 1]})) == 1


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"benchmark": {"digits-split": {}}}, "not among the benchmarks"),
        ({"methods": []}, "methods is \\[\\]; give a list of names"),
        ({"method": ["sgd"]}, "method is .*; make it a table"),
        ({"seed": 3}, "did you mean 'seeds'"),
        ({"seeds": [0.5]}, "seeds is \\[0.5\\]"),
        ({"seeds": 0}, "seeds is 0"),
        ({"grid": {"lr": 0.1}}, "grid.lr is 0.1; give the list"),
        ({"grid": {"ewc": {"lam": [1.0]}}}, "'ewc' is not among the methods"),
        ({"options": {"epohs": 3}}, "did you mean 'epochs'"),
        ({"benchmarks": ["digits-permutd"]}, "did you mean 'digits-permuted'"),
    ],
)
def test_a_wrong_file_is_refused_with_the_remedy(tmp_path, table, sentence):
    with pytest.raises(sweep.SweepError, match=sentence):
        sweep.read(write(tmp_path / "sweep.toml", **table))


def test_a_grid_is_counted_before_it_is_laid_out():
    wide = {f"training.k{k}": list(range(100)) for k in range(8)}
    with pytest.raises(sweep.SweepError, match=r"that makes [\d,]+ runs, but a sweep has at most 10,000"):
        sweep.plan({"benchmarks": "digits-split", "methods": "sgd", "grid": wide})


def test_a_file_nested_without_end_is_refused(tmp_path):
    (tmp_path / "s.toml").write_text("benchmarks = " + "[" * 100_000)
    with pytest.raises(sweep.SweepError, match="nested too deeply"):
        sweep.read(tmp_path / "s.toml")
    (tmp_path / "s.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(sweep.SweepError, match="is not valid TOML"):
        sweep.read(tmp_path / "s.toml")
