"""Every method of the laboratory on two small benchmarks: accuracy, forgetting, time and memory in one table.

    python -m benchmarks.studies.methods run    [--methods a,b] [--benchmarks a,b] [--out runs/methods]
    python -m benchmarks.studies.methods speed  [--rounds 2]

`run`: five trials per method (`drcl tune`: first three tasks of seed 100, validation data), then seeds 0 to 2 on the
test data. A method without a strength is run as it is; where the best strength diverges over all tasks, the next best
is run. `speed`: short runs of SGD and of the method by turns; the machine must have nothing else to do. Both add rows
to csv files in results/methods (`--records`) as they finish and skip what is there, so that the same command goes on
where it stopped. `make tables` writes docs/methods.md from them.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.studies.records import RESULTS, add, rows

from drcl.lab import methods
from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.execute import execute
from drcl.lab.runs.read import Run
from drcl.lab.sweeps import sweep, workers
from drcl.lab.sweeps.tune import Tuning

BENCHMARKS = ("digits-permuted", "mnist-split")
SEEDS = (0, 1, 2)
TUNING = {"budget": 5, "seed": 100}
RECORDS = RESULTS / "methods"
SHORT = {"benchmark.tasks": 3, "training.keep_checkpoint": False}
RUN = ("benchmark", "method", "knob", "value", "validation", "seed", "accuracy", "transfer", "state_bytes", "failed")
SPEED = ("benchmark", "method", "round", "seconds", "sgd_seconds")


def study(benchmark: str, method: str, out: Path) -> list[dict[str, Any]]:
    """Tune one method and run it with every seed: a row per seed, or one row that says why not.

    A strength that is best over the trials' three tasks may diverge over all of them. Then the next best one is run.
    """
    row: dict[str, Any] = {"benchmark": benchmark, "method": method, "knob": "", "value": "", "validation": ""}
    given: dict[str, Any] = {"training.keep_checkpoint": False}
    try:
        RunConfig.make(benchmark, method, 0, given)
        if methods.get(method).tunes is None:
            return seeds(row, given, out)
        tuning = Tuning(benchmark, [method], out / benchmark / method, options=given, **TUNING)
        trials = tuning.run(workers.here)
    except ValueError as refusal:
        return [row | {"failed": str(refusal)}]
    found = [row | {"failed": trials[0].outcome}]
    while method in (best := tuning.best(trials)):
        one = best[method]
        chosen = {"knob": one.key, "value": f"{one.value:g}", "validation": f"{100 * one.score:.2f}"}
        found = seeds(row | chosen, given | {f"method.{one.key}": one.value}, out)
        if not any(r.get("failed") for r in found):
            break
        trials = [trial for trial in trials if trial.value != one.value]
    return found


def seeds(row: dict[str, Any], given: dict[str, Any], out: Path) -> list[dict[str, Any]]:
    """Run one setting with every seed."""
    benchmark, method = row["benchmark"], row["method"]
    todo = sweep.jobs([RunConfig.make(benchmark, method, seed, given) for seed in SEEDS], out / benchmark)
    outcome = sweep.run(todo, workers.here)
    reasons = {job.directory: why for job, why in outcome.failed}
    found = []
    for seed, job in zip(SEEDS, todo):
        if not job.finished:
            found.append(row | {"seed": seed, "failed": reasons.get(job.directory, "not finished")})
            continue
        run = Run.read(job.directory)
        measured = {
            "accuracy": f"{100 * run.value('average_accuracy'):.2f}",
            "transfer": f"{100 * run.value('backward_transfer'):.2f}",
            "state_bytes": int(run.value("state_bytes")),
        }
        found.append(row | {"seed": seed} | measured)
    return found


def run(args: argparse.Namespace) -> None:
    path = args.records / "runs.csv"
    for method in args.methods:
        for benchmark in args.benchmarks:
            if any(row["benchmark"] == benchmark and row["method"] == method for row in rows(path)):
                continue
            new = study(benchmark, method, args.out)
            add(path, RUN, new)
            print(benchmark, method, [row.get("accuracy") or row.get("failed") for row in new], flush=True)


def seconds(benchmark: str, method: str, value: dict[str, Any]) -> float:
    """How long learning takes, evaluation left out."""
    with TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        execute(RunConfig.make(benchmark, method, 0, {**SHORT, **value}), directory)
        return float(Run.read(directory).value("learning_seconds"))


def speed(args: argparse.Namespace) -> None:
    path = args.records / "speed.csv"
    chosen = {
        (row["benchmark"], row["method"]): {f"method.{row['knob']}": float(row["value"])} if row["knob"] else {}
        for row in rows(args.records / "runs.csv")
        if row["accuracy"]
    }
    for (benchmark, method), value in chosen.items():
        if method not in args.methods or benchmark not in args.benchmarks:
            continue
        if any(row["benchmark"] == benchmark and row["method"] == method for row in rows(path)):
            continue
        new = []
        for k in range(args.rounds):
            pair = {"sgd_seconds": seconds(benchmark, "sgd", {}), "seconds": seconds(benchmark, method, value)}
            new.append({"benchmark": benchmark, "method": method, "round": k} | pair)
        add(path, SPEED, new)
        print(benchmark, method, [f"{row['seconds'] / row['sgd_seconds']:.2f}" for row in new], flush=True)


def cells(benchmark: str, method: str, records: Path) -> list[str]:
    """Accuracy and backward transfer of one method on one benchmark."""
    mine = [r for r in rows(records / "runs.csv") if r["benchmark"] == benchmark and r["method"] == method]
    done = [r for r in mine if r["accuracy"]]
    if not done:
        return ["needs task ids" if mine and "told the task" in mine[0]["failed"] else "failed" if mine else "", ""]
    accuracy = [float(r["accuracy"]) for r in done]
    spread = f" ± {statistics.stdev(accuracy):.1f}" if len(accuracy) > 1 else ""
    few = f" ({len(done)} of {len(mine)} seeds)" if len(done) < len(mine) else ""
    transfer = [float(r["transfer"]) for r in done]
    told = "" if any(t != t for t in transfer) else f"{statistics.mean(transfer):+.1f}".replace("-", "−")
    return [f"{statistics.mean(accuracy):.1f}{spread}{few}", told]


def cost(method: str, records: Path) -> list[str]:
    """Time as a multiple of SGD's on both benchmarks, bytes kept between the tasks of mnist-split."""
    told = []
    for benchmark in BENCHMARKS:
        pairs = [r for r in rows(records / "speed.csv") if r["benchmark"] == benchmark and r["method"] == method]
        ratio = [float(r["seconds"]) / float(r["sgd_seconds"]) for r in pairs]
        told.append(f"{min(ratio):.1f}" if ratio else "")
    mine = [r for r in rows(records / "runs.csv") if r["method"] == method and r["state_bytes"]]
    last = [int(r["state_bytes"]) for r in mine if r["benchmark"] == BENCHMARKS[-1]]
    return [*told, f"{max(last) / 1e6:.2f}" if last else ""]


def markdown(records: Path = RECORDS) -> str:
    head = ["method", "old data", *(f"{b}, %" if k == 0 else "transfer" for b in BENCHMARKS for k in (0, 1))]
    head += [*(f"time, {b}" for b in BENCHMARKS), "state, MB"]

    def order(method: str) -> tuple[bool, float]:
        """Best first; methods that ran on one benchmark only come after the others."""
        done = [r for r in rows(records / "runs.csv") if r["method"] == method and r["accuracy"]]
        mean = statistics.mean(float(r["accuracy"]) for r in done) if done else 0.0
        return len({r["benchmark"] for r in done}) < len(BENCHMARKS), -mean

    body = []
    for method in sorted({r["method"] for r in rows(records / "runs.csv")} & set(methods.names()), key=order):
        each = [cell for benchmark in BENCHMARKS for cell in cells(benchmark, method, records)]
        body.append([f"`{method}`", methods.get(method).abilities.old_data, *each, *cost(method, records)])
    told = [k for k in range(len(head)) if any(line[k] for line in body)]  # times may not have been measured
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line[k] for k in told) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "speed"))
    parser.add_argument("--methods", type=lambda text: text.split(","), default=methods.names())
    parser.add_argument("--benchmarks", type=lambda text: text.split(","), default=list(BENCHMARKS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--records", type=Path, default=RECORDS)
    args = parser.parse_args()
    {"run": run, "speed": speed}[args.what](args)


if __name__ == "__main__":
    main()
