"""One verdict for each claim."""

import pytest
from tests.lab.paper.test_rules import headline

from drcl.lab.paper.contents import paper
from drcl.lab.paper.verdicts import counted, verdicts

PAPER = paper()


def by_name(found):
    return {verdict.claim.name: verdict for verdict in found}


@pytest.fixture
def nothing(tmp_path):
    return by_name(verdicts(PAPER, [], root=tmp_path))


def test_without_runs_it_says_what_to_run(nothing):
    assert set(nothing) == set(PAPER.claims)
    assert nothing["over-ewc"].verdict == "not run"
    assert nothing["over-ewc"].command == "drcl paper run headline --budget small"
    assert nothing["over-ewc"].words == ""
    assert nothing["over-ewc"].runs == ()


def test_what_a_test_settles_needs_no_run(nothing):
    assert nothing["prox"].verdict == "holds"
    assert nothing["prox"].command == "pytest tests/test_prox.py"
    assert nothing["convergence"].verdict == "fails"
    assert nothing["convergence"].pages == ("splitting.md",)


def test_data_that_no_program_may_fetch_make_a_claim_untestable(tmp_path, monkeypatch):
    """With EMNIST out of reach too, backward transfer on joint tasks has no data at all."""
    monkeypatch.setattr("drcl.lab.paper.verdicts.by_hand", lambda name: {"emnist-20": ["emnist"]}.get(name, ["celeba"]))
    verdict = by_name(verdicts(PAPER, [], root=tmp_path))["joint-transfer"]
    assert verdict.verdict == "not testable here"
    assert verdict.words == "emnist, celeba is not here, and no program may fetch it"


def test_runs_decide(tmp_path):
    runs = headline(tmp_path / "runs", (0.60, 0.61, 0.62), (0.55, 0.55, 0.55))
    verdict = by_name(verdicts(PAPER, runs, root=tmp_path))["over-ewc"]
    assert (verdict.verdict, verdict.seeds, len(verdict.runs)) == ("holds", 3, 6)
    assert verdict.scale == "alexnet at 0.5 width, 12 epochs"


def test_unfinished_runs_do_not_count(tmp_path):
    runs = headline(tmp_path / "runs", (0.6,), (0.5,))
    (runs[0].path / "result.json").write_text("{}", encoding="utf-8")
    again = [type(run).read(run.path) for run in runs]
    assert by_name(verdicts(PAPER, again, root=tmp_path))["over-ewc"].verdict == "not run"


def test_counting(tmp_path):
    found = verdicts(PAPER, [], root=tmp_path)
    assert sum(counted(found).values()) == len(PAPER.claims)
