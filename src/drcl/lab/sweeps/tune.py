"""Choosing each method's strength fairly: on the first tasks, on validation data alone, with equal budgets.

The search is the same for every method: a coarse grid on a log scale, then steps between the best value and its
neighbours, or beyond the end of the grid if the best value stands there and the method allows it. What is tuned and
where the grid lies, each method says itself. No test set is read.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from drcl.lab import benchmarks, methods
from drcl.lab.common import fields as options
from drcl.lab.methods import Knob
from drcl.lab.runs.config import RunConfig, loaded
from drcl.lab.runs.read import Run
from drcl.lab.sweeps import sweep

HELD_OUT = 0.2  # of the training data, where a benchmark has no validation split of its own


@dataclass(frozen=True)
class Trial:
    """One value that was tried; the score is the average accuracy on validation data, -inf if the run failed."""

    method: str
    key: str
    value: float
    score: float
    accuracies: tuple[float, ...]
    outcome: str  # "done", or why it failed
    directory: Path


@dataclass
class Search:
    """The trials of one method so far and what to try next."""

    low: float
    high: float
    budget: int
    allowed: Callable[[float], bool] = lambda value: True
    scores: dict[float, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high or math.isinf(self.high):
            raise ValueError(f"range {self.low:g}:{self.high:g}: give two numbers above 0, the smaller one first")
        if self.budget < 3:
            raise ValueError(f"budget={self.budget}: give at least 3 trials, or there is nothing to choose between")

    @property
    def best(self) -> float:
        """The value with the best score; of equals the smallest, which restrains learning least."""
        return min(self.scores, key=lambda value: (-self.scores[value], value))

    def proposals(self) -> list[float]:
        """What to try now: the whole grid at first, one value at a time later, nothing when the budget is spent."""
        if not self.scores:
            points = max(3, (self.budget + 1) // 2)
            ratio = math.log(self.high / self.low) / (points - 1)
            inner = [rounded(self.low * math.exp(ratio * k)) for k in range(1, points - 1)]
            return [value for value in dict.fromkeys([self.low, *inner, self.high]) if self.allowed(value)]
        if len(self.scores) >= self.budget:
            return []
        value = self._next()
        return [value] if self.allowed(value) else []

    def _next(self) -> float:
        tried = sorted(self.scores)
        place = tried.index(self.best)
        here, last = tried[place], len(tried) - 1
        if place in (0, last):
            other = tried[1] if place == 0 else tried[-2]
            beyond = self._new(here * here / other)
            return beyond if self.allowed(beyond) else self._new(math.sqrt(here * other))
        below, above = here / tried[place - 1], tried[place + 1] / here
        if math.isclose(below, above, rel_tol=0.05):  # equal gaps: towards the better neighbour
            upwards = self.scores[tried[place + 1]] > self.scores[tried[place - 1]]
        else:
            upwards = above > below
        return self._new(math.sqrt(here * (tried[place + 1] if upwards else tried[place - 1])))

    def _new(self, value: float) -> float:
        """The value with as few digits as tell it from those tried."""
        return next(short for k in range(2, 18) if (short := rounded(value, k)) not in self.scores)


def rounded(value: float, digits: int = 2) -> float:
    """Two digits are more than most strengths need, and they are readable."""
    return float(f"{value:.{digits - 1}e}")


@dataclass(frozen=True)
class Tuning:
    """What is tuned, and where everything that was tried is written."""

    benchmark: str
    methods: Sequence[str]
    out: Path
    tasks: int = 3
    budget: int = 8
    seed: int = 0
    low: float | None = None  # None: each method's own range
    high: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    data_root: Path | None = None
    plugins: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "plugins", loaded(self.plugins))
        there = benchmarks.get(self.benchmark).tasks
        if not 1 <= self.tasks <= there:
            raise ValueError(f"tasks={self.tasks}: {self.benchmark} has {there}; give 1 to {there}")
        for key in self.options:
            if key.partition(".")[0] in methods.names() and key.partition(".")[0] not in self.methods:
                raise ValueError(f"{key!r} is an option of a method that is not tuned here")
        for method in self.methods:
            search = self.search(method)
            self._run(method, self.options_of(method))  # not the range's fault
            for end in (search.low, search.high):
                try:
                    self.config(method, end)
                except ValueError as wrong:
                    reach = f"the range {search.low:g}:{search.high:g} reaches there; give one inside what is allowed"
                    raise ValueError(f"{wrong} ({reach})") from None

    def knob(self, method: str) -> Knob:
        """What is tuned of a method, and where."""
        own, key = methods.get(method).tunes, self.keys.get(method)
        known = options.hints(methods.get(method))
        if key is not None and key not in known:
            raise ValueError(f"{key!r} is not an option of {method!r}: {options.nearest(key, known)}")
        found = own if key is None or (own is not None and own.name == key) else Knob(key)
        if found is None:
            named = ", ".join(known) or "none"
            raise ValueError(f"{method!r} has no strength to tune (its options: {named}); leave it out or name a key")
        low, high = found.low if self.low is None else self.low, found.high if self.high is None else self.high
        return Knob(found.name, low, high)

    def key(self, method: str) -> str:
        return self.knob(method).name

    def search(self, method: str) -> Search:
        _, low, high = self.knob(method)
        return Search(low, high, self.budget, lambda value: self._allowed(method, value))

    def _allowed(self, method: str, value: float) -> bool:
        try:
            self.config(method, value)
        except ValueError:
            return False
        return True

    def config(self, method: str, value: float) -> RunConfig:
        """The trial run: first tasks only, scored on validation data, which is held out if there is none."""
        own = self.options_of(method)
        made = self._run(method, own).make_benchmark()
        trial: dict[str, Any] = {"benchmark.tasks": self.tasks, "training.evaluate_on": "valid"}
        if made.valid == 0:
            trial["benchmark.valid"] = HELD_OUT
        chosen = {f"method.{self.key(method)}": value}
        return self._run(method, {**own, **trial, **chosen})

    def _run(self, method: str, options: Mapping[str, Any]) -> RunConfig:
        return RunConfig.make(self.benchmark, method, self.seed, options, self.plugins)

    def options_of(self, method: str) -> dict[str, Any]:
        """The options of one method's runs: those for all, and those given as ``method.key`` for it alone."""
        return {**self._common(), **{f"method.{key}": value for key, value in self._special(method).items()}}

    def _common(self) -> dict[str, Any]:
        return {key: value for key, value in self.options.items() if key.partition(".")[0] not in methods.names()}

    def _special(self, method: str) -> dict[str, Any]:
        start = f"{method}."
        return {key.removeprefix(start): value for key, value in self.options.items() if key.startswith(start)}

    # ---- running

    def run(
        self, backend: sweep.Backend, watch: Callable[[Sequence[sweep.Job]], sweep.Tell] | None = None
    ) -> list[Trial]:
        """Every trial of every method, in rounds that all methods take part in."""
        searches = {method: self.search(method) for method in self.methods}
        trials: list[Trial] = []
        while True:
            asked = [(method, value) for method, search in searches.items() for value in search.proposals()]
            if not asked:
                return trials
            todo = sweep.jobs([self.config(*each) for each in asked], self.out / "trials", self.data_root)
            outcome = sweep.run(todo, backend, watch(todo) if watch else lambda update: None)
            reasons = {job.directory: why for job, why in outcome.failed}
            for (method, value), job in zip(asked, todo):
                trial = self._trial(method, value, job.directory, reasons.get(job.directory))
                searches[method].scores[value] = trial.score
                trials.append(trial)
            self.write(trials)

    def _trial(self, method: str, value: float, directory: Path, failed: str | None) -> Trial:
        accuracies: tuple[float, ...] = ()
        score = -math.inf
        if failed is None:
            run = Run.read(directory)
            accuracies = tuple(map(float, run.matrix[-1]))
            average = run.value("average_accuracy")
            score = -math.inf if math.isnan(average) else float(average)
        return Trial(method, self.key(method), value, score, accuracies, failed or "done", directory)

    # ---- what is left on disk

    def write(self, trials: Sequence[Trial]) -> None:
        """Everything tried so far (``trials.csv``) and, for each method, the best of it."""
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / "trials.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            tasks = [f"task_{k}" for k in range(self.tasks)]
            table.writerow(["method", "key", "value", "validation_accuracy", *tasks, "outcome", "run"])
            for trial in trials:
                score = "" if math.isinf(trial.score) else repr(trial.score)
                each = [repr(a) for a in trial.accuracies] or [""] * self.tasks
                place = trial.directory.relative_to(self.out).as_posix()
                table.writerow([trial.method, trial.key, repr(trial.value), score, *each, trial.outcome, place])
        best = best_of(trials)
        told = f"# {self.budget} trials a method on the validation data of the first {self.tasks} tasks of "
        told += f"{self.benchmark}, seed {self.seed}; all of them are in trials.csv\n\n"
        chosen = {
            method: self._run(method, {**self.options_of(method), f"method.{trial.key}": trial.value})
            for method, trial in best.items()
        }
        outside = {"plugins": list(self.plugins)} if self.plugins else {}
        plan = {
            **outside,
            "benchmarks": [self.benchmark],
            "methods": list(best),
            "seeds": [self.seed],
            "options": _shared(list(chosen.values())),
            "method": {method: config.method_options for method, config in chosen.items()},
        }
        (self.out / "tuned.toml").write_text(told + tomli_w.dumps(plan), encoding="utf-8")
        for method, config in chosen.items():
            content: dict[str, Any] = {"benchmark": config.benchmark, "method": method, "seed": config.seed, **outside}
            for name in ("benchmark_options", "method_options", "training"):
                if getattr(config, name):
                    content[name] = getattr(config, name)
            (self.out / f"{method}.toml").write_text(told + tomli_w.dumps(content), encoding="utf-8")


def _shared(configs: Sequence[RunConfig]) -> dict[str, Any]:
    """The options that are not a method's, as a sweep takes them: with a prefix where a method has one of that name."""
    found: dict[str, Any] = {}
    for config in configs:
        for prefix, table in (("benchmark", config.benchmark_options), ("training", config.training)):
            for key, value in table.items():
                taken = any(key in options.hints(methods.get(other.method)) for other in configs)
                found[f"{prefix}.{key}" if taken else key] = value
    return found


def best_of(trials: Iterable[Trial]) -> dict[str, Trial]:
    """The best trial of each method that had one; of equals the smallest strength."""
    best: dict[str, Trial] = {}
    for trial in trials:
        if math.isinf(trial.score):
            continue
        known = best.get(trial.method)
        if known is None or (-trial.score, trial.value) < (-known.score, known.value):
            best[trial.method] = trial
    return best
