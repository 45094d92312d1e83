"""The studies of `benchmarks`: what they make of stored rows, and what they must not touch."""

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from benchmarks.studies import (
    fifty,
    methods,
    moved,
    norms,
    pictures,
    questions,
    records,
    reproduced,
    solver,
    storage,
    streams,
)

from drcl.lab.runs.read import find


def test_both_measures_come_from_the_stored_runs():
    """SGD's three seeds, read here without the study's own code."""
    row = solver.read(solver.RECORDS / "mnist-permuted.csv")["sgd"]
    lines = (records.RESULTS / "mnist-permuted/runs.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    kept = [json.loads(line) for line in lines]
    results = [json.loads(run["files"]["result.json"]) for run in kept if run["run"].startswith("sgd-seed")]
    assert len(results) == 3
    for column, key in (("within", "effective_stability"), ("equal", "unmoved")):
        mean = sum(result[key] for result in results) / len(results)
        assert float(row[column]) == pytest.approx(100 * mean, abs=0.051)


def write_run(path, unmoved):
    path.mkdir(parents=True)
    (path / "result.json").write_text(json.dumps({"unmoved": unmoved}), encoding="utf-8")


def test_rows_are_completed_where_all_seeds_are_kept(tmp_path):
    write_run(tmp_path / "a-seed0", 0.5)
    write_run(tmp_path / "a-seed1", 0.25)
    write_run(tmp_path / "b-seed0", 0.5)
    rows = {"a": {"seeds": "2", "equal": ""}, "b": {"seeds": "3", "equal": ""}, "c": {"seeds": "1", "equal": ""}}
    solver.complete(rows, tmp_path)
    assert [rows[name]["equal"] for name in "abc"] == ["37.5", "", ""]


def test_a_run_that_does_not_say_leaves_the_cell_empty(tmp_path):
    write_run(tmp_path / "a-seed0", None)
    rows = {"a": {"seeds": "1", "equal": ""}}
    solver.complete(rows, tmp_path)
    assert rows["a"]["equal"] == ""


def test_a_variant_that_is_no_longer_planned_stays_in_its_place():
    plan = {"variant": {"x": {"about": "new words"}, "y": {"about": "of y"}}}
    rows = {"x": {"about": "old"}, "gone": {"about": "of gone"}, "y": {"about": "old"}}
    assert [row["about"] for row in solver.order(rows, plan)] == ["new words", "of gone", "of y"]


def test_the_config_of_a_variant_goes_beside_the_others(tmp_path):
    config = solver.RunConfig.make("digits-permuted", "sgd", 0, {})
    for name in ("a", "b"):
        solver.keep_config(tmp_path / "configs.toml", "digits-permuted", name, config)
    kept = solver.tomllib.loads((tmp_path / "configs.toml").read_text(encoding="utf-8"))
    assert list(kept["digits-permuted"]) == ["a", "b"]
    assert kept["digits-permuted"]["a"] == solver.tomllib.loads(config.to_toml())


def test_trials_of_one_set_are_replaced_and_others_stay(tmp_path):
    def write(name, tasks, values):
        columns = [
            "method",
            "key",
            "value",
            "validation_accuracy",
            *(f"task_{k}" for k in range(tasks)),
            "outcome",
            "run",
        ]
        with (tmp_path / name).open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, columns, restval="")
            table.writeheader()
            table.writerows({"method": "ewc", "value": value} for value in values)

    write("one.csv", 3, [1, 2])
    write("two.csv", 11, [3])
    to = tmp_path / "deep" / "trials.csv"
    records.add_trials(tmp_path / "one.csv", "a", to)
    records.add_trials(tmp_path / "one.csv", "b", to)
    records.add_trials(tmp_path / "two.csv", "a", to)
    found = records.rows(to)
    assert [(row["set"], row["value"]) for row in found] == [("b", "1"), ("b", "2"), ("a", "3")]
    assert list(found[0])[5:16] == [f"task_{k}" for k in range(11)]


@pytest.mark.parametrize(("diverging", "taken"), [((), "100"), ((100,), "1"), ((100, 1, 10), "10")])
def test_a_strength_that_diverges_gives_way_to_the_next_best(tmp_path, monkeypatch, diverging, taken):
    """Where all of them diverge, the table says so."""
    scores = {1.0: 0.8, 10.0: 0.7, 100.0: 0.9}
    trials = [SimpleNamespace(value=v, score=s, key="lam", outcome="done") for v, s in scores.items()]

    def best(left):
        return {"ewc": max(left, key=lambda trial: trial.score)} if left else {}

    def seeds(row, given, out):
        assert row["value"] == f"{given['method.lam']:g}"
        return [row | ({"failed": "nan"} if given["method.lam"] in diverging else {"accuracy": "90.00"})]

    monkeypatch.setattr(methods, "Tuning", lambda *_, **__: SimpleNamespace(run=lambda _: trials, best=best))
    monkeypatch.setattr(methods, "seeds", seeds)
    (row,) = methods.study("digits-permuted", "ewc", tmp_path)
    assert row["value"] == taken
    assert ("failed" in row) == (len(diverging) == 3)


def test_every_stored_run_is_whole():
    runs = find([records.RESULTS])
    assert len(runs) >= 105
    assert [run.path for run in runs if not run.finished or not run.sealed] == []


def test_numbers_as_tables_write_them():
    assert records.percent([0.5, 0.54, 0.52]) == "52.0 ± 2.0"  # the deviation is 0.02
    assert records.percent([-0.034]) == "−3.4"
    assert records.percent([0.5, float("nan")]) == ""
    assert records.bold_best([1.04, 0.96, 0.2]) == ["**1.0**", "**1.0**", "0.2"]


class Fixed:
    def __init__(self, accuracy):
        self.accuracy = accuracy

    def value(self, name):
        return self.accuracy


@pytest.mark.parametrize(
    ("published", "told"), [(90.0, "+5.0"), (96.5, "−1.5"), ([90.0, 96.0], "+0.0"), ([90.0, 94.0], "+1.0"), (None, "")]
)
def test_the_difference_to_a_published_number_or_range(published, told):
    assert reproduced.difference([Fixed(0.94), Fixed(0.96)], published) == told


def test_an_outcome_is_accuracy_deviation_and_transfer_as_far_as_there_are_some():
    row = {"accuracy": "90.34", "deviation": "0.08", "transfer": "-5.25"}
    assert solver.outcome(row) == "90.34 ± 0.08 (−5.25)"
    assert solver.outcome(row | {"deviation": ""}) == "90.34 (−5.25)"
    assert solver.outcome(row | {"transfer": "nan"}) == "90.34 ± 0.08"
    assert solver.outcome(None) == ""


def test_a_variant_that_ran_on_one_benchmark_has_a_row_with_gaps():
    rows = solver.markdown(list(questions.BENCHMARKS)).splitlines()
    one = next(row for row in rows if row.startswith("| `paper` |"))
    assert one.endswith("| 30.67 (−4.18) |  |  | 99.7, –, – |")
    there = {name for benchmark in questions.BENCHMARKS for name in solver.read(solver.RECORDS / f"{benchmark}.csv")}
    assert len(rows) == 2 + len(there)


def test_every_question_names_variants_of_the_study():
    known = {name for benchmark in questions.BENCHMARKS for name in solver.read(solver.RECORDS / f"{benchmark}.csv")}
    assert {name for pair in questions.PAIRS.values() for name in pair} <= known


def test_a_table_of_norms_counts_seeds_and_says_what_diverged(tmp_path, monkeypatch):
    monkeypatch.setattr(norms, "RUNS", tmp_path / "runs.csv")
    rows = {}
    for optimizer, seed, average in (("sgd", 0, "90.00"), ("sgd", 1, "94.00"), ("adamw", 0, "diverged")):
        case = norms.Case("split", "mlp", optimizer, "frozen", 0.003, seed)
        rows[case.key()] = {**case._asdict(), "average": average, "learned": average, "transfer": "-1.00", "first": "1"}
    norms.write(rows)
    (row,) = norms.table("split", "mlp").splitlines()[2:]
    assert row.split(" | ")[1:] == ["1", "92.0 ± 2.8", "92.0", "−1.0", "1 diverged", "", " |"]


def test_a_norms_run_leaves_the_test_data_alone():
    """Whatever the seed, the same 397 digits are never trained on or judged."""
    seen = []
    for seed in range(3):
        x, _ = norms.digits(seed)
        seen.append(x[norms.TRAIN + norms.VALID :])
        for task in (*norms.permuted(seed), *norms.split(seed)):
            assert len(task.x) <= norms.TRAIN
            assert len(task.valid_x) <= norms.VALID
    assert all((part == seen[0]).all() for part in seen)
    assert len(seen[0]) == 397


def test_a_table_of_storage_compares_the_same_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "RUNS", tmp_path / "runs.csv")
    found = {"float32": ("90.00", "94.00"), "bfloat16": ("89.00", "94.50")}
    lines = [f"auto,{kept},{seed},{found[kept][seed]},95.00,20,4e-3,1e-6" for kept in found for seed in (0, 1)]
    (tmp_path / "runs.csv").write_text("\n".join([",".join(storage.FIELDS), *lines]), encoding="utf-8")
    plain, half = storage.markdown().splitlines()[2:]
    assert plain.split(" | ")[1:7] == ["float32", "2", "20.0", "92.0", "95.0", ""]
    # The seeds lost 1.0 and won 0.5.
    assert half.split(" | ")[1:7] == ["bfloat16", "2", "20.0", "91.8", "95.0", "0.2"]


def test_a_table_of_pictures_has_the_regret_and_only_complete_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "RUNS", tmp_path / "runs.csv")
    lines = [(form, seed, 60 + 10 * number + seed) for number, form in enumerate(pictures.FORMS) for seed in (0, 1)]
    case = {"problem": "cifar10", "optimizer": "SGD", "learned": 90}
    records.add(pictures.RUNS, pictures.FIELDS, [{**case, "form": f, "seed": s, "average": a} for f, s, a in lines])
    records.add(pictures.RUNS, pictures.FIELDS, [{**case, "optimizer": "Adam", "form": "auto", "average": 50}])
    *_, row, last = pictures.markdown().splitlines()
    assert row == "| CIFAR-10, 5 tasks, AlexNet | SGD | 2 | 60.5 | **70.5** | 90.0 | 110.5 (0.03) | 40.0 | 80.5 |"
    assert last.endswith("| mean 40.0, worst 40.0 |  |")
    assert pictures.markdown().count("AlexNet") == 1


def test_pictures_are_judged_on_validation_data(monkeypatch):
    seen = []
    monkeypatch.setattr(pictures, "execute", lambda config, directory: seen.append(config))
    monkeypatch.setattr(pictures.Run, "read", lambda directory: SimpleNamespace(value=lambda key: 0.5))
    for problem in pictures.PROBLEMS:
        for form in pictures.FORMS:
            for optimizer in pictures.OPTIMIZERS:
                assert pictures.run(problem, optimizer, form, 7)["average"] == "50.00"
    assert {config.make_training().evaluate_on for config in seen} == {"valid"}
    assert {config.seed for config in seen} == {7}


def test_accuracy_at_the_end_comes_in_blocks_of_ten(monkeypatch):
    """Twenty tasks: the first ten end at 40 %, the others at 80 %, and each was learned to 90 %."""
    matrix = np.diag([0.9] * 20)
    matrix[-1, :10], matrix[-1, 10:19] = 0.4, 0.8
    matrix[-1, -1] = 0.8
    values = {"average_accuracy": 0.6, "learning_accuracy": (19 * 0.9 + 0.8) / 20}
    run = SimpleNamespace(benchmark="omniglot-50", method="sgd", tasks=20, matrix=matrix, value=values.__getitem__)
    monkeypatch.setattr(fifty, "PLACES", {"omniglot-50": ("one pack",)})
    monkeypatch.setattr(fifty, "runs", lambda place: (run,))
    head, _, row = fifty.markdown("omniglot-50").splitlines()
    assert head == "| method | all tasks at the end, % | when learned, % | 1 to 10 | 11 to 20 |"
    assert row == "| SGD | 60.0 | 89.5 | 40.0 | 80.0 |"


def test_a_stream_is_shown_in_blocks_of_ten_and_the_best_learner_comes_first(monkeypatch):
    def run(method, online):
        found = SimpleNamespace(method=method, result={"per_task": {"online_accuracy": online}})
        found.value = lambda name: {"average_accuracy": 0.125}[name]
        return found

    some = (run("sgd", [0.5] * 10 + [0.25] * 10), run("upgd", [0.5] * 20))
    monkeypatch.setattr(streams, "runs", lambda place: some)
    head, _, first, second = streams.markdown().splitlines()
    assert head == "| method | all tasks | 1 to 10 | 11 to 20 | known at the end |"
    assert first == "| UPGD | 50.0 | 50.0 | 50.0 | 12.5 |"
    assert second == "| SGD | 37.5 | 50.0 | 25.0 | 12.5 |"


def test_movement_is_divided_as_the_arithmetic_says():
    """y = v w x with v = w = 1: then v = 1.1 and w = 1.2, so first order 0.3 x and in all 0.32 x. A common shift of the
    logits counts nothing: they are (y, 0)."""
    then = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 2, bias=False))
    with torch.no_grad():
        then[0].weight.fill_(1.0)
        then[1].weight.copy_(torch.tensor([[1.0], [0.0]]))
    now = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 2, bias=True))
    with torch.no_grad():
        now[0].weight.fill_(1.1)
        now[1].weight.copy_(torch.tensor([[1.2], [0.0]]))
        now[1].bias.fill_(7.0)
    x = torch.tensor([[1.0], [2.0]])  # mean of x^2: 2.5; about their mean, two logits (d, 0) have the square d^2 / 2
    assert moved.size(now(x).detach() - then(x).detach()) == pytest.approx(0.32**2 * 2.5 / 2, rel=1e-4)
    now[1].bias = None
    first, whole = moved.taken_apart(now, then, x)
    assert first == pytest.approx(0.3**2 * 2.5 / 2, rel=1e-5)
    assert whole == pytest.approx(0.32**2 * 2.5 / 2, rel=1e-5)
