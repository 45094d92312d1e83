"""The solver study: every variant of `solver.toml` on one benchmark, its strength chosen on the first tasks only.

    python -m benchmarks.studies.solver BENCHMARK [--variants a,b,...] [--seeds 0,1,2] [--budget 5] [--out runs/solver]

For each variant `drcl tune` takes BUDGET trials on the validation data of the first three tasks, then the run is made
on the test data for each seed. Trials and runs stay in OUT/BENCHMARK/VARIANT; rows, trials and the configs behind them
go to BENCHMARK.csv, trials.csv and configs.toml in results/solver (`--records`) as they finish. What is finished is
never run again, so the same command goes on where it stopped. `make tables` writes docs/solver.md from these files.

Two measures say how many weights a task left alone: `within`, those that changed by less than 5 per cent, which is the
paper's measure, and `equal`, those that are the same bit for bit. Rows of before `equal` was kept get it from runs:
`--stored PLACE` reads those named VARIANT-seed* in a folder or pack.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from benchmarks.studies import records

from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.read import Run, find
from drcl.lab.sweeps import sweep, workers
from drcl.lab.sweeps.tune import Tuning

PLAN = Path(__file__).with_suffix(".toml")
RECORDS = records.RESULTS / "solver"
RANGE = (0.00003, 0.03)
COLUMNS = [
    "variant",
    "about",
    "strength",
    "seeds",
    "accuracy",
    "deviation",
    "transfer",
    "within",
    "equal",
    "gradients",
    "seconds",
]


def options(plan: dict[str, Any], benchmark: str, variant: dict[str, Any]) -> dict[str, Any]:
    """The options of the variant's runs; `rounds` is measured in the benchmark's own length."""
    own = {k: v for k, v in variant.items() if k not in ("about", "method", "fixed", "range", "rounds")}
    if variant.get("method", "drcl") in ("drcl", "drcl-kronecker") and "preset" not in own:
        own = {"normalise": "global", "rank": "none", **own}  # the base of the study; today's defaults came out of it
    given = {**plan["benchmark"][benchmark], **own}
    made = RunConfig.make(benchmark, variant.get("method", "drcl"), 0, given).make_benchmark()
    if "rounds" in variant:
        images = {"mnist-permuted": 60_000, "cifar10-split": 9_000, "cifar100-10": 4_500}[benchmark]
        given["plasticity_steps"] = max(1, images // made.batch // variant["rounds"])
    return given


def study(name: str, variant: dict[str, Any], args: argparse.Namespace, plan: dict[str, Any]) -> dict[str, Any]:
    """Tune and run one variant; its row."""
    method, given = variant.get("method", "drcl"), options(plan, args.benchmark, variant)
    out = args.out / args.benchmark / name
    strength: float | str = ""
    if not variant.get("fixed"):
        low, high = variant.get("range", RANGE)
        tuning = Tuning(
            args.benchmark, [method], out, budget=args.budget, seed=args.tuning_seed, low=low, high=high, options=given
        )
        best = tuning.best(tuning.run(workers.here))[method]
        records.add_trials(out / "trials.csv", f"{args.benchmark}/{name}", args.records / "trials.csv")
        strength = best.value
        given = {**given, f"method.{best.key}": best.value}
    configs = [RunConfig.make(args.benchmark, method, seed, given) for seed in args.seeds]
    keep_config(args.records / "configs.toml", args.benchmark, name, configs[0])
    todo = sweep.jobs(configs, out)
    outcome = sweep.run(todo, workers.here)
    runs = [Run.read(job.directory) for job in todo if job.finished]
    row: dict[str, Any] = {"variant": name, "about": variant["about"], "strength": strength, "seeds": len(runs)}
    if not runs:
        return row | {"accuracy": f"failed: {outcome.failed[0][1]}" if outcome.failed else "failed"}
    accuracy = [100 * run.value("average_accuracy") for run in runs]

    def mean(key: str) -> float:
        return statistics.mean(run.value(key) for run in runs)

    return row | {
        "accuracy": f"{statistics.mean(accuracy):.2f}",
        "deviation": f"{statistics.stdev(accuracy):.2f}" if len(accuracy) > 1 else "",
        "transfer": f"{100 * mean('backward_transfer'):.2f}",
        "within": f"{100 * mean('effective_stability'):.1f}",
        "equal": equal(runs),
        "gradients": round(statistics.mean(run.cost.get("gradient_evaluations", 0) for run in runs)),
        "seconds": f"{mean('seconds'):.0f}",
    }


def keep_config(path: Path, benchmark: str, name: str, config: RunConfig) -> None:
    there = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    there.setdefault(benchmark, {})[name] = tomllib.loads(config.to_toml())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tomli_w.dumps(there), encoding="utf-8")


def equal(runs: Sequence[Run]) -> str:
    """Share of the weights that stayed bit for bit, in the mean over runs; empty where a run does not say."""
    shares = [run.result.get("unmoved") for run in runs]
    if not shares or not all(isinstance(share, int | float) and not math.isnan(share) for share in shares):
        return ""
    return f"{100 * statistics.mean(map(float, shares)):.1f}"  # type: ignore[arg-type]


def complete(rows: dict[str, dict[str, Any]], stored: Path) -> None:
    """Give the rows that lack it the share of bit-equal weights, if runs of all their seeds are in `stored`."""
    there = find([stored])
    for name, row in rows.items():
        runs = [run for run in there if run.path.name.startswith(f"{name}-seed")]
        if not row.get("equal") and runs and len(runs) == int(row["seeds"]):
            row["equal"] = equal(runs)


def read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    with path.open(encoding="utf-8") as file:
        return {row["variant"]: row for row in csv.DictReader(file)}


def order(there: dict[str, dict[str, Any]], plan: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows in the plan's order and with its words; a variant that is no longer planned stays after the one it
    followed."""
    planned = list(plan["variant"])
    places: dict[str, tuple[int, int]] = {}
    last = -1
    for number, name in enumerate(there):
        last = planned.index(name) if name in planned else last
        places[name] = (last, 0 if name in planned else number + 1)
    words = {name: {"about": variant["about"]} for name, variant in plan["variant"].items()}
    return [there[name] | words.get(name, {}) for name in sorted(there, key=lambda name: places[name])]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def markdown(benchmarks: Sequence[str]) -> str:
    """One row per variant: accuracy and backward transfer on each benchmark, and how many weights stayed."""
    plan = tomllib.loads(PLAN.read_text(encoding="utf-8"))
    there = {name: read(RECORDS / f"{name}.csv") for name in benchmarks}
    known = {variant: row for rows in reversed(there.values()) for variant, row in rows.items()}
    body = []
    for row in order(known, plan):
        found = [rows.get(row["variant"]) for rows in there.values()]
        stayed = ", ".join(one["within"].replace("nan", "") or "–" if one else "–" for one in found)
        cells = [f"`{row['variant']}`", row["about"], *map(outcome, found), "" if set(stayed) <= set("–, ") else stayed]
        body.append(cells)
    return records.table(["variant", "what", *benchmarks, "weights within 5 %, %"], body)


def outcome(row: Mapping[str, str] | None) -> str:
    """Accuracy with its deviation, and backward transfer in brackets."""
    if row is None:
        return ""
    spread = f" ± {row['deviation']}" if row["deviation"] else ""
    transfer = row["transfer"].replace("nan", "")
    return f"{row['accuracy']}{spread}" + (f" ({records.minus(transfer)})" if transfer else "")


def main() -> None:
    plan = tomllib.loads(PLAN.read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=plan["benchmark"])
    parser.add_argument("--variants", type=lambda text: text.split(","), default=list(plan["variant"]))
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=[0])
    parser.add_argument("--budget", type=int, default=5)
    parser.add_argument("--tuning-seed", type=int, default=100, help="tasks of the trials are not those of the runs")
    parser.add_argument("--out", type=Path, default=Path("runs/solver"))
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--stored", type=Path, help="runs to complete the rows from, and run nothing")
    args = parser.parse_args()
    path = args.records / f"{args.benchmark}.csv"
    args.records.mkdir(parents=True, exist_ok=True)
    if args.stored is not None:
        there = read(path)
        complete(there, args.stored)
        write(path, order(there, plan))
    else:
        for name in args.variants:
            row = study(name, plan["variant"][name], args, plan)
            print({k: v for k, v in row.items() if k != "about"}, flush=True)
            there = read(path) | {name: row}  # another process may have added its own
            write(path, order(there, plan))


if __name__ == "__main__":
    main()
