"""``drcl paper list``: every item and claim, its data, its runs, its time."""

import pytest
from tests.lab.cli.stage import call

from drcl.lab.paper.contents import paper
from drcl.lab.paper.estimate import Speeds


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRCL_DATA", str(tmp_path_factory.mktemp("data")))
        patch.setenv("COLUMNS", "160")  # nothing is wrapped
        speeds = Speeds(None, lambda model, shape, batch: 1.0)
        patch.setattr("drcl.lab.cli.paper_list.Speeds", lambda: speeds)
        outcome = call("paper", "list", "--again")
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_every_item_and_claim_is_listed(listed):
    for name in (*paper().items, *paper().claims):
        assert name in listed


def test_runs_and_hours(listed):
    """heat at the small budget: 3 runs of 20 x 3 x 35 steps of a second, 1 + 1.3 + 5 times SGD's cost: 4.3 hours."""
    line = next(line for line in listed.splitlines() if line.strip().startswith("heat"))
    assert "3  4.3 h" in line


def test_data_that_are_not_here_are_marked(listed):
    line = next(line for line in listed.splitlines() if line.strip().startswith("heat"))
    assert "cifar100-20 ✗" in line
