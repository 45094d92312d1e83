"""The solver study: every variant of `solver.toml` on one benchmark, its strength chosen on the first tasks only.

    python benchmarks/solver.py BENCHMARK [--variants a,b,...] [--seeds 0,1,2] [--budget 5] [--out runs/solver]

For each variant `drcl tune` takes BUDGET trials on the validation data of the first three tasks, then the run is made
on the test data for each seed. Trials and runs stay in OUT/BENCHMARK/VARIANT; rows and the configs behind them go to
OUT/BENCHMARK.csv and OUT/BENCHMARK/VARIANT.toml as they finish. What is finished is never run again, so the same
command goes on where it stopped; `--table` only prints.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tomllib
from pathlib import Path
from typing import Any

from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.read import Run
from drcl.lab.sweeps import sweep, workers
from drcl.lab.sweeps.tune import Tuning, best_of

PLAN = Path(__file__).with_suffix(".toml")
RANGE = (0.0003, 0.3)
COLUMNS = [
    "variant",
    "about",
    "strength",
    "seeds",
    "accuracy",
    "deviation",
    "transfer",
    "unmoved",
    "gradients",
    "seconds",
]


def options(plan: dict[str, Any], benchmark: str, variant: dict[str, Any]) -> dict[str, Any]:
    """The options of the variant's runs; `rounds` is measured in the benchmark's own length."""
    own = {k: v for k, v in variant.items() if k not in ("about", "method", "fixed", "range", "rounds")}
    if variant.get("method", "drcl").startswith("drcl") and "preset" not in own:
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
        best = best_of(tuning.run(workers.here))[method]
        strength = best.value
        given = {**given, f"method.{best.key}": best.value}
    configs = [RunConfig.make(args.benchmark, method, seed, given) for seed in args.seeds]
    (args.out / args.benchmark).mkdir(parents=True, exist_ok=True)
    (args.out / args.benchmark / f"{name}.toml").write_text(configs[0].to_toml(), encoding="utf-8")
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
        "unmoved": f"{100 * mean('effective_stability'):.1f}",
        "gradients": round(statistics.mean(run.cost.get("gradient_evaluations", 0) for run in runs)),
        "seconds": f"{mean('seconds'):.0f}",
    }


def read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    with path.open(encoding="utf-8") as file:
        return {row["variant"]: row for row in csv.DictReader(file)}


def order(there: dict[str, dict[str, Any]], plan: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows in the plan's order and with its words."""
    return [there[name] | {"about": variant["about"]} for name, variant in plan["variant"].items() if name in there]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def markdown(rows: list[dict[str, Any]]) -> str:
    head = ["variant", "what", "strength", "seeds", "accuracy, %", "backward transfer", "unmoved, %", "gradients"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        spread = f" ± {row['deviation']}" if row["deviation"] else ""
        cells = [row["variant"], row["about"], row["strength"], row["seeds"], f"{row['accuracy']}{spread}"]
        rest = [row["transfer"].replace("-", "−"), row["unmoved"], f"{int(row['gradients'] or 0):,}"]
        lines.append("| " + " | ".join(map(str, [*cells, *rest])).replace("nan", "") + " |")
    return "\n".join(lines)


def main() -> None:
    plan = tomllib.loads(PLAN.read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=plan["benchmark"])
    parser.add_argument("--variants", type=lambda text: text.split(","), default=list(plan["variant"]))
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=[0])
    parser.add_argument("--budget", type=int, default=5)
    parser.add_argument("--tuning-seed", type=int, default=100, help="tasks of the trials are not those of the runs")
    parser.add_argument("--out", type=Path, default=Path("runs/solver"))
    parser.add_argument("--table", action="store_true", help="print what is there and run nothing")
    args = parser.parse_args()
    path = args.out / f"{args.benchmark}.csv"
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.table:
        for name in args.variants:
            row = study(name, plan["variant"][name], args, plan)
            print({k: v for k, v in row.items() if k != "about"}, flush=True)
            there = read(path) | {name: row}  # another process may have added its own
            write(path, order(there, plan))
    print(markdown(order(read(path), plan)))


if __name__ == "__main__":
    main()
