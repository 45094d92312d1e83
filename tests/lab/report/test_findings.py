"""The sentence above a table says what its numbers say, and no more."""

from tests.lab.report.fake_runs import final, write_run

from drcl.lab.report import findings
from drcl.lab.report.table import rows
from drcl.lab.runs import read


def sentence(tmp_path, **accuracies):
    for method, seeds in accuracies.items():
        for seed, value in enumerate(seeds):
            write_run(tmp_path, method, seed, R=final(value, value), seconds=15.0 if method == "drcl" else 10.0)
    return findings.finding(rows(read.find([tmp_path])))


def test_finding_states_the_lead_and_its_price(tmp_path):
    text = sentence(tmp_path, sgd=[0.5, 0.52], ewc=[0.7, 0.72], drcl=[0.8, 0.82])
    # 81.0 - 71.0 = 10.0, 81.0 - 51.0 = 30.0; 15 s against 10 s
    assert text.startswith("After 2 tasks, drcl holds 81.0\N{NO-BREAK SPACE}% average accuracy")
    assert ", 10.0 points above ewc and 30.0 above sgd; it " in text
    assert "takes 1.50 times as long as sgd" in text
    assert "spread" not in text


def test_finding_does_not_claim_what_the_spread_forbids(tmp_path):
    # 78.0 +- 14.1 against 75.0 +- 7.1
    text = sentence(tmp_path, ewc=[0.7, 0.8], drcl=[0.68, 0.88])
    assert "3.0 points above ewc (within the spread over seeds)" in text


def test_finding_sees_no_lead_where_there_is_none(tmp_path):
    text = sentence(tmp_path, sgd=[0.7001, 0.7], ewc=[0.7, 0.7])
    assert text.startswith("After 2 tasks, sgd holds 70.0\N{NO-BREAK SPACE}% average accuracy, level with ewc")


def test_finding_says_when_there_is_one_seed(tmp_path):
    assert "(one seed each)" in sentence(tmp_path, sgd=[0.5], ewc=[0.7])


def test_finding_names_the_bound_apart(tmp_path):
    text = sentence(tmp_path, sgd=[0.5, 0.5], joint=[0.9, 0.9])
    assert text.startswith("After 2 tasks, sgd holds 50.0\N{NO-BREAK SPACE}% average accuracy.")
    assert text.endswith("Training on all data at once (joint) reaches 90.0\N{NO-BREAK SPACE}%.")
