"""The rules that judge claims: each function takes a rule of ``claims.toml`` and the existing runs, and returns a
finding, or None if its runs are missing. The head of that file explains the kinds of rules."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drcl.lab.paper.contents import Experiment, Paper
from drcl.lab.paper.matching import Found, find, scale, series
from drcl.lab.paper.studies import Study
from drcl.lab.runs import metrics
from drcl.lab.runs.read import Run

POINTS = frozenset({"learning_seconds", "parameters", "residual", "iterations", "training_loss"})  # not shares
DIGITS = {"training_loss": 2}  # where one is not enough


@dataclass(frozen=True)
class Finding:
    """What one rule found."""

    verdict: str  # "holds", "weaker" or "fails"
    words: str
    runs: tuple[Run, ...] = ()
    by: str = ""  # without runs: the test, measurement or study that settled it
    page: str = ""
    decides: bool = False  # if it fails, so does the claim, whatever the other rules found

    @property
    def seeds(self) -> int:
        return len({run.seed for run in self.runs})

    @property
    def scale(self) -> str:
        return scale(self.runs)


@dataclass(frozen=True)
class Evidence:
    """Everything rules may look at."""

    paper: Paper
    runs: tuple[Run, ...]
    studies: Mapping[str, Study]

    def experiment(self, rule: Mapping[str, Any], default: str) -> Experiment:
        return self.paper.experiments[rule.get("experiment", default)]

    def found(self, rule: Mapping[str, Any], default: str, row: str) -> Found:
        """The runs of a row on the paper's data set or, if there are none, on the small budget's stand-in."""
        experiment = self.experiment(rule, default)
        benchmark = rule.get("benchmark", experiment.benchmarks[0])
        own = find(self.paper, experiment, row, benchmark, self.runs, rule.get("where"))
        place, _ = self.paper.data[benchmark].at("small")
        if own.runs or place == benchmark:
            return own
        return find(self.paper, experiment, row, place, self.runs, rule.get("where"), stand_in=True)


def judge(rule: Mapping[str, Any], evidence: Evidence, experiment: str) -> Finding | None:
    """The finding of a rule from the existing runs."""
    found = KINDS[rule["kind"]](rule, evidence, experiment)
    return replace(found, decides=True) if found is not None and rule.get("decides") else found


# ---- comparing rows


def _sides(rule: Mapping[str, Any], evidence: Evidence, experiment: str, side: str) -> list[Found]:
    found = [evidence.found(rule, experiment, row) for row in rule[side]]
    return [each for each in found if each.runs]


def _points(metric: str) -> float:
    return 1.0 if metric in POINTS else 100.0


def _gaps(rule: Mapping[str, Any], ours: Found, theirs: Found) -> dict[int, float]:
    """The gap per seed in points; above 0 means that ours is ahead."""
    mine, other = ours.by_seed(rule["metric"]), theirs.by_seed(rule["metric"])
    sign = -1.0 if rule.get("lower") else 1.0
    return {seed: sign * _points(rule["metric"]) * (mine[seed] - other[seed]) for seed in mine if seed in other}


def _ahead(rule: Mapping[str, Any], evidence: Evidence, experiment: str) -> Finding | None:
    ours, theirs = (_sides(rule, evidence, experiment, side) for side in ("ours", "theirs"))
    pairs = [(mine, other, gaps) for mine in ours for other in theirs if (gaps := _gaps(rule, mine, other))]
    if not pairs:
        return None
    # Compare the best row of each side, of those that can be compared on the most seeds.
    seeds = max(len(gaps) for _, _, gaps in pairs)
    pairs = [pair for pair in pairs if len(pair[2]) == seeds]
    by_mine: dict[str, tuple[Found, Found, dict[int, float]]] = {}
    for pair in pairs:
        known = by_mine.get(pair[0].row)
        if known is None or _mean(pair[2]) < _mean(known[2]):
            by_mine[pair[0].row] = pair
    mine, other, gaps = max(by_mine.values(), key=lambda pair: _mean(pair[2]))
    mine, other = mine.at(gaps), other.at(gaps)  # what is told is what is compared
    gap, every = _mean(gaps), all(each > 0 for each in gaps.values())
    floor = rule.get("floor")
    kept = 0.0 if floor is None else _exact(100 * mine.statistic(floor["metric"]).mean)
    above = floor is None or kept >= floor["least"]
    verdict = "holds" if gap >= rule["margin"] and every and above else "fails" if gap <= rule["fail"] else "weaker"
    if rule.get("all") and len(theirs) < len(rule["theirs"]) and verdict != "fails":
        return None  # a rival that is ahead is enough to fail, but only all of them are enough to hold
    words = f"{_told(evidence, mine, rule['metric'])} against {_told(evidence, other, rule['metric'])}"
    words += f", {_number(gap, True, DIGITS.get(rule['metric'], 1))}" + _on_seeds(gaps)
    if floor is not None:
        words += f", backward transfer {_number(kept)}" if floor["metric"] == "backward_transfer" else ""
    return Finding(verdict, words, (*mine.runs, *other.runs))


def _on_seeds(gaps: Mapping[int, float]) -> str:
    if len(gaps) == 1:
        return ""
    if all(gap > 0 for gap in gaps.values()):
        return " in the mean"
    return " in the mean, " + ("not ahead on every seed" if any(g > 0 for g in gaps.values()) else "ahead on no seed")


def _ratio(rule: Mapping[str, Any], evidence: Evidence, experiment: str) -> Finding | None:
    ours, theirs = (_sides(rule, evidence, experiment, side) for side in ("ours", "theirs"))
    unit = theirs[0].statistic(rule["metric"]).mean if theirs else math.nan
    means = [(mine, mine.statistic(rule["metric"]).mean / unit) for mine in ours] if unit else []
    known = [(mine, ratio) for mine, ratio in means if not math.isnan(ratio)]
    if not known:
        return None
    best = min(ratio for _, ratio in known)
    verdict = "holds" if best <= rule["holds"] else "fails" if best >= rule["fails"] else "weaker"
    words = "; ".join(f"{evidence.paper.rows[mine.row].title} {ratio:.2f}" for mine, ratio in known)
    words += f" times {evidence.paper.rows[theirs[0].row].title}"
    return Finding(verdict, words, tuple(run for found in (*ours, *theirs) for run in found.runs))


def _bound(rule: Mapping[str, Any], evidence: Evidence, experiment: str) -> Finding | None:
    found = _sides(rule, evidence, experiment, "ours")
    if not found:
        return None
    name = rule.get("metric", rule.get("series", ""))
    if "series" in rule:
        values = [v for run in found[0].runs for v in series(run, name)[1:] if not math.isnan(v)]
        mean = statistics.fmean(values) if values else math.nan
    else:
        mean = _exact(_points(name) * found[0].statistic(name).mean)
    if math.isnan(mean):
        return None
    holds, fails = _beyond(mean, rule["holds"]), _beyond(mean, rule["fails"])
    words = f"{_number(mean)} ({evidence.paper.rows[found[0].row].title})"
    return Finding("holds" if holds else "fails" if fails else "weaker", words, found[0].runs)


def _beyond(value: float, bound: Mapping[str, float]) -> bool:
    return bool(value >= bound["least"] if "least" in bound else value <= bound["most"])


# ---- along lambda


def _along(rule: Mapping[str, Any], evidence: Evidence, experiment: str) -> dict[str, tuple[Found, float]]:
    found = _sides(rule, evidence, experiment, "rows")
    shared = set.intersection(*({*each.seeds} for each in found)) if found else set()
    if shared:  # or another order of classes would look like another lambda
        found = [each.at(shared) for each in found]
    means = {each.row: (each, 100 * each.statistic(rule["metric"]).mean) for each in found}
    return {row: pair for row, pair in means.items() if not math.isnan(pair[1])}


def _list(evidence: Evidence, along: Mapping[str, tuple[Found, float]]) -> str:
    return ", ".join(f"{evidence.paper.rows[row].title} {_number(mean)}" for row, (_, mean) in along.items())


def _ordered(rule: Mapping[str, Any], evidence: Evidence, experiment: str) -> Finding | None:
    along = _along(rule, evidence, experiment)
    if len(along) < 3:
        return None
    values = [mean for _, mean in along.values()]
    falls = all(later <= earlier + rule["slack"] for earlier, later in itertools.pairwise(values))
    verdict = "fails" if values[-1] >= values[0] else "holds" if falls else "weaker"
    return Finding(verdict, _list(evidence, along), tuple(run for found, _ in along.values() for run in found.runs))


def _best(rule: Mapping[str, Any], evidence: Evidence, experiment: str) -> Finding | None:
    along = _along(rule, evidence, experiment)
    mine = along.get(rule["ours"][0])
    if mine is None or len(along) < 3:
        return None
    behind = max(mean for _, mean in along.values()) - mine[1]
    verdict = "holds" if behind <= rule["slack"] else "fails" if behind >= rule["fail"] else "weaker"
    return Finding(verdict, _list(evidence, along), tuple(run for found, _ in along.values() for run in found.runs))


# ---- along the tasks


def _learned(run: Run, name: str | None) -> list[float]:
    """Per task, in points: a recorded series, or the accuracy when the task was learned (online if measured)."""
    if name is not None:
        return series(run, name)
    online = run.result.get("online_accuracy_by_task")
    values = online if isinstance(online, list) else [run.matrix[t, t] for t in range(run.tasks)]
    return [100 * float(value) for value in values]


def _ends(rule: Mapping[str, Any], found: Found) -> tuple[float, float] | None:
    """The means over the first and over the last `window` tasks, up to task `until`."""
    window, pairs = rule["window"], []
    for run in found.runs:
        values = _learned(run, rule.get("series"))[: rule.get("until")]
        if len(values) >= 2 * window and not any(map(math.isnan, values[:window] + values[-window:])):
            pairs.append((statistics.fmean(values[:window]), statistics.fmean(values[-window:])))
    if not pairs:
        return None
    return statistics.fmean(first for first, _ in pairs), statistics.fmean(last for _, last in pairs)


def _fell(rule: Mapping[str, Any], ends: tuple[float, float]) -> bool:
    first, last = ends
    return last <= rule["share"] * first if "share" in rule else _exact(first - last) >= rule["margin"]


def _falls(rule: Mapping[str, Any], evidence: Evidence, experiment: str, side: str) -> list[tuple[Found, Any]]:
    found = _sides(rule, evidence, experiment, side)
    return [(each, ends) for each in found if (ends := _ends(rule, each)) is not None]


def _fall_words(evidence: Evidence, known: Iterable[tuple[Found, tuple[float, float]]]) -> str:
    rows = evidence.paper.rows
    return "; ".join(f"{rows[each.row].title} from {ends[0]:.3g} to {ends[1]:.3g}" for each, ends in known)


def _early_late(rule: Mapping[str, Any], evidence: Evidence, experiment: str) -> Finding | None:
    known = _falls(rule, evidence, experiment, "rows")
    if not known:
        return None
    fell = [_fell(rule, ends) for _, ends in known]
    verdict = "holds" if all(fell) else "weaker" if any(fell) else "fails"
    runs = tuple(run for found, _ in known for run in found.runs)
    return Finding(verdict, _fall_words(evidence, known), runs)


def _steady(rule: Mapping[str, Any], evidence: Evidence, experiment: str) -> Finding | None:
    known = _falls(rule, evidence, experiment, "ours")
    if not known:
        return None
    found, ends = known[0]
    return Finding("fails" if _fell(rule, ends) else "holds", _fall_words(evidence, known[:1]), found.runs)


def _trend(rule: Mapping[str, Any], evidence: Evidence, experiment: str) -> Finding | None:
    gaps, used = [], []
    for found in _sides(rule, evidence, experiment, "ours")[:1]:
        for run in found.runs:
            values = [
                100 * v for v in series(run, rule["series"])[1:] if not math.isnan(v)
            ]  # without the first task, which starts at random weights
            if len(values) >= 4:
                half = len(values) // 2
                gaps.append(statistics.fmean(values[-half:]) - statistics.fmean(values[:half]))
                used.append(run)
    if not gaps:
        return None
    gap = statistics.fmean(gaps)
    words = f"{_number(gap, sign=True)} points from the first half of the tasks to the second"
    return Finding("holds" if gap >= rule["margin"] else "fails" if gap < 0 else "weaker", words, tuple(used))


def _flat(rule: Mapping[str, Any], evidence: Evidence, experiment: str) -> Finding | None:
    ours, theirs = (_sides(rule, evidence, experiment, side) for side in ("ours", "theirs"))
    if not ours or not theirs:
        return None
    mine, other = (
        100 * statistics.fmean(_forgetting(run, rule.get("group")) for run in side[0].runs) for side in (ours, theirs)
    )
    if math.isnan(mine) or math.isnan(other):
        return None
    holds = mine <= rule["holds"] and mine <= other / 4
    verdict = "holds" if holds else "fails" if mine >= other / 2 else "weaker"
    words = f"{_number(mine)} points at the end against {_number(other)}"
    return Finding(verdict, words, (*ours[0].runs, *theirs[0].runs))


def _forgetting(run: Run, group: int | None) -> float:
    """At the end, of all tasks or of the first ones."""
    return metrics.group_forgetting(run.matrix, range(group or run.tasks), run.tasks - 1)


# ---- without runs


def _study(rule: Mapping[str, Any], evidence: Evidence, experiment: str) -> Finding | None:
    told, ahead = [], []
    for name, study in evidence.studies.items():
        mine, other = study.value(rule["ours"], rule["column"]), study.value(rule["theirs"], rule["column"])
        if not (math.isnan(mine) or math.isnan(other)):
            told.append(f"{_number(mine)} against {_number(other)} on {name}")
            ahead.append(_exact(mine - other) >= rule["margin"])
    if not told:
        return None
    verdict = "holds" if all(ahead) else "weaker" if 2 * sum(ahead) >= len(ahead) else "fails"
    return Finding(verdict, "; ".join(told), by="python -m benchmarks.studies.solver", page="solver.md")


def _proved(rule: Mapping[str, Any], evidence: Evidence, experiment: str) -> Finding | None:
    return Finding(rule["verdict"], rule["words"], by=rule["by"], page=rule.get("page", ""))


KINDS: dict[str, Callable[[Mapping[str, Any], Evidence, str], Finding | None]] = {
    "ahead": _ahead,
    "bound": _bound,
    "ratio": _ratio,
    "ordered": _ordered,
    "best": _best,
    "early-late": _early_late,
    "steady": _steady,
    "trend": _trend,
    "flat": _flat,
    "study": _study,
    "proved": _proved,
}


# ---- words


def _mean(gaps: Mapping[int, float]) -> float:
    return _exact(statistics.fmean(gaps.values()))


def _exact(value: float) -> float:
    """Round off binary fractions: 60 - 55 points is exactly 5."""
    return round(value, 9)


def _number(value: float, sign: bool = False, digits: int = 1) -> str:
    value = round(value, digits) + 0.0  # never "−0.0"
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text.replace("-", "−")


def _told(evidence: Evidence, found: Found, metric: str) -> str:
    value, digits = found.statistic(metric).scaled(_points(metric)), DIGITS.get(metric, 1)
    spread = "" if math.isnan(value.deviation) else f" ± {value.deviation:.{digits}f}"
    return f"{evidence.paper.rows[found.row].title} {_number(value.mean, digits=digits)}{spread}"


def verdict_of(findings: Sequence[Finding]) -> str:
    """The verdict of all findings if they agree, otherwise "weaker"; "fails" if a finding that decides does."""
    if any(finding.decides and finding.verdict == "fails" for finding in findings):
        return "fails"
    said = {finding.verdict for finding in findings}
    return said.pop() if len(said) == 1 else "weaker"
