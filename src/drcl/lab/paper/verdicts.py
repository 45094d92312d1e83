"""One verdict for each claim of the paper, computed from the existing runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from drcl.lab.paper.contents import Claim, Paper
from drcl.lab.paper.plan import by_hand, missing_data
from drcl.lab.paper.rules import Evidence, Finding, judge, verdict_of
from drcl.lab.paper.studies import Study
from drcl.lab.runs.read import Run


@dataclass(frozen=True)
class Verdict:
    """What is known about one claim."""

    claim: Claim
    verdict: str
    findings: tuple[Finding, ...]
    command: str  # the command that makes its runs, or that settled it
    why: str = ""  # why it cannot be tested here

    @property
    def words(self) -> str:
        """What was found, in a sentence; if nothing was, the reason."""
        return "; ".join(dict.fromkeys(finding.words for finding in self.findings)) or self.why

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple({run.path: run for finding in self.findings for run in finding.runs}.values())

    @property
    def seeds(self) -> int:
        return min((finding.seeds for finding in self.findings if finding.runs), default=0)

    @property
    def scale(self) -> str:
        """The size of the runs behind it."""
        return "; ".join(dict.fromkeys(finding.scale for finding in self.findings if finding.runs))

    @property
    def pages(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(finding.page for finding in self.findings if finding.page))


def verdicts(
    paper: Paper, runs: Iterable[Run], studies: dict[str, Study] | None = None, root: Path | None = None
) -> list[Verdict]:
    """A verdict for each claim, in the order of the file. `root` is the data folder."""
    evidence = Evidence(paper, tuple(run for run in runs if run.finished), studies or {})
    return [_verdict(claim, evidence, root) for claim in paper.claims.values()]


def _verdict(claim: Claim, evidence: Evidence, root: Path | None) -> Verdict:
    asked = [judge(rule, evidence, claim.experiment) for rule in claim.rules]
    findings = tuple(finding for finding in asked if finding is not None)
    command = evidence.paper.commands(claim) or next(
        (f.by for f in findings if f.by), "python -m benchmarks.studies.solver"
    )
    if findings:
        return Verdict(claim, verdict_of(findings), findings, command)
    lacking = _lacking(claim, evidence.paper, root)
    if lacking:
        why = f"{', '.join(lacking)} is not here, and no program may fetch it"
        return Verdict(claim, "not testable here", (), command, why)
    return Verdict(claim, "not run", (), command)


def _lacking(claim: Claim, paper: Paper, root: Path | None) -> list[str]:
    """Data sets that every rule of the claim needs, at any budget, and that are missing and cannot be fetched."""
    lacking: list[str] = []
    for rule in claim.rules:
        if rule["kind"] in ("study", "proved"):
            return []
        experiment = paper.experiments[rule.get("experiment", claim.experiment)]
        benchmark = rule.get("benchmark", experiment.benchmarks[0])
        places = dict.fromkeys((benchmark, paper.data[benchmark].at("small")[0]))
        absent = [[name for name in missing_data(place, root) if name in by_hand(place)] for place in places]
        if not all(absent):
            return []
        lacking += absent[0]
    return list(dict.fromkeys(lacking))


def counted(found: Sequence[Verdict]) -> dict[str, int]:
    """The number of claims with each verdict."""
    return {word: sum(v.verdict == word for v in found) for word in dict.fromkeys(v.verdict for v in found)}
