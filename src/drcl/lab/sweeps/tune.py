"""Choosing each method's strength fairly: on the first tasks, on validation data alone, with equal budgets.

The search is the same for every method: a coarse grid on a log scale, then steps between the best value and its
neighbours, or beyond the end of the grid if the best value is there and the method allows it. Each method says what is
tuned and where the grid lies. Of equal scores, the value nearest to the middle of the range is taken; of two equally
near ones, the larger. No test set is read.
"""

from __future__ import annotations

import csv
import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from drcl.lab import benchmarks, methods
from drcl.lab.common import fields as options
from drcl.lab.common.words import percent
from drcl.lab.methods import Knob
from drcl.lab.runs.config import RunConfig, loaded
from drcl.lab.runs.read import Run
from drcl.lab.sweeps import sweep

MOST_TRIALS = 1000
HELD_OUT = 0.2  # share of the training data, if a benchmark has no validation split


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
            raise ValueError(
                f"budget={self.budget}: give at least 3 trials; with fewer there is nothing to choose from"
            )
        if self.budget > MOST_TRIALS:
            raise ValueError(f"budget={self.budget}: give at most {MOST_TRIALS:,} trials per method")

    @property
    def best(self) -> float:
        """The value with the best score. Of equals, the one nearest to the middle of the range, then the larger."""
        middle = math.log(self.low * self.high) / 2
        return min(self.ties, key=lambda value: (round(abs(math.log(value) - middle), 9), -value))

    @property
    def ties(self) -> list[float]:
        """The values that share the best score, smallest first. Averages of the same numbers may differ by one bit."""
        top = max(self.scores.values())
        return sorted(value for value, score in self.scores.items() if score == top or math.isclose(score, top))

    @property
    def end(self) -> str:
        """ "low" or "high" where the best value is the smallest or the largest that was tried, else nothing."""
        tried = sorted(self.scores)
        return "low" if self.best == tried[0] else "high" if self.best == tried[-1] else ""

    def wider(self) -> tuple[float, float] | None:
        """The range to search next if the best value is at an end; None if the method allows no more."""
        tried, stretch = sorted(self.scores), math.sqrt(self.high / self.low)
        low, high = (tried[0] / stretch, tried[1]) if self.end == "low" else (tried[-2], tried[-1] * stretch)
        found = rounded(low), rounded(high)
        return found if all(self.allowed(value) for value in found) else None

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
        if len(self.ties) == len(tried):
            # All values are equally good: try stronger protection, or weaker if every run failed.
            place = 0 if math.isinf(self.scores[tried[0]]) else len(tried) - 1
        here, last = tried[place], len(tried) - 1
        if place in (0, last):
            other = tried[1] if place == 0 else tried[-2]
            beyond = self._new(here * here / other)
            return beyond if self.allowed(beyond) else self._new(math.sqrt(here * other))
        below, above = here / tried[place - 1], tried[place + 1] / here
        if math.isclose(below, above, rel_tol=0.05):  # equal gaps: go towards the better neighbour
            upwards = self.scores[tried[place + 1]] > self.scores[tried[place - 1]]
        else:
            upwards = above > below
        return self._new(math.sqrt(here * (tried[place + 1] if upwards else tried[place - 1])))

    def _new(self, value: float) -> float:
        """The value with as few digits as distinguish it from those tried."""
        return next(short for k in range(2, 18) if (short := rounded(value, k)) not in self.scores)


def rounded(value: float, digits: int = 2) -> float:
    """Two digits are more than most strengths need, and they are readable."""
    return float(f"{value:.{digits - 1}e}")


@dataclass(frozen=True)
class Tuning:
    """What is tuned, and where all trials are written."""

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
            self._run(method, self.options_of(method))  # raises errors that do not depend on the range
            for end in (search.low, search.high):
                try:
                    self.config(method, end)
                except ValueError as wrong:
                    reach = f"the range {search.low:g}:{search.high:g} reaches there; give one inside what is allowed"
                    raise ValueError(f"{wrong} ({reach})") from None

    def knob(self, method: str) -> Knob:
        """Which option of a method is tuned, and in which range."""
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
        """The trial run: first tasks only, scored on validation data; some are held out if the benchmark has none."""
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
        """Make every trial of every method, in rounds in which all methods take part."""
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

    # ---- what came of it

    def _searched(self, method: str, trials: Iterable[Trial]) -> Search:
        found = self.search(method)
        found.scores = {trial.value: trial.score for trial in trials if trial.method == method}
        return found

    def best(self, trials: Sequence[Trial]) -> dict[str, Trial]:
        """The best trial of each method that had one."""
        found: dict[str, Trial] = {}
        for method in self.methods:
            mine = {t.value: t for t in trials if t.method == method and not math.isinf(t.score)}
            if mine:
                found[method] = mine[self._searched(method, mine.values()).best]
        return found

    def remarks(self, trials: Sequence[Trial]) -> list[str]:
        """What a reader must know before trusting the choice: equal scores, and a best value at an end."""
        said = []
        for method, chosen in self.best(trials).items():
            search = self._searched(method, (t for t in trials if not math.isinf(t.score)))
            name, ties = f"{method}: {chosen.key}", search.ties
            if len(search.scores) == 1:
                said.append(f"{name} = {chosen.value:g} is the only value whose run worked; trials.csv says why")
                continue
            if len(ties) == len(search.scores):
                said.append(
                    f"{name} makes no difference here: every value from {ties[0]:g} to {ties[-1]:g} scored "
                    f"{percent(chosen.score)}; {chosen.value:g} is in the middle; more tasks may show a difference"
                )
                continue
            if len(ties) > 1:
                among = ", ".join(f"{value:g}" for value in ties)
                said.append(
                    f"{name} = {among} scored the same ({percent(chosen.score)}); {chosen.value:g} was taken, "
                    "the nearest to the middle of the range"
                )
            if search.end:
                said.append(self._at_the_end(method, chosen, search))
        return said

    def _at_the_end(self, method: str, chosen: Trial, search: Search) -> str:
        extreme = "smallest" if search.end == "low" else "largest"
        start = f"{method}: {chosen.key} = {chosen.value:g} is the {extreme} value that was tried"
        wider = search.wider()
        if wider is None:
            return f"{start}; the method does not allow much beyond it"
        return f"{start}, so a better one may lie beyond it; look there with: {self._again(method, *wider)}"

    def _again(self, method: str, low: float, high: float) -> str:
        words = ["drcl", "tune", self.benchmark, "--methods", method, "--range", f"{low:g}:{high:g}"]
        words += ["--tasks", str(self.tasks), "--budget", str(self.budget), "--seed", str(self.seed)]
        given = {**self._common(), **{f"{method}.{key}": value for key, value in self._special(method).items()}}
        words += [word for key, value in given.items() for word in ("-o", f"{key}={value}")]
        words += ["--key", f"{method}={self.keys[method]}"] if method in self.keys else []
        words += [word for plugin in self.plugins for word in ("--plugin", plugin)]
        words += ["--data", str(self.data_root)] if self.data_root is not None else []
        return shlex.join([*words, "--out", f"{self.out}-{method}"])

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
        best = self.best(trials)
        told = f"# {self.budget} trials per method on the validation data of the first {self.tasks} tasks of "
        told += f"{self.benchmark}, seed {self.seed}; all of them are in trials.csv\n"
        told += "".join(f"# {remark}\n" for remark in self.remarks(trials)) + "\n"
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
