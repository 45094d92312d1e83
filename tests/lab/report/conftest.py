"""Runs to make tables, figures and a page of."""

import pytest
from tests.lab.report.fake_runs import R0, R1, final, write_run, write_runs

from drcl.lab.report.page import write_report
from drcl.lab.runs import read


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The page of three methods and a bound on two seeds, with a run that is not finished."""
    folder = tmp_path_factory.mktemp("report")
    write_runs(folder / "runs", ("sgd", "ewc", "drcl", "joint"))
    write_run(folder / "runs", "drcl", 2, done=3)
    return write_report(read.find([folder / "runs"]), folder / "report.html")


@pytest.fixture
def two_methods(tmp_path):
    """sgd on seeds 0, 1 and drcl on seeds 0, 1, small enough to do by hand."""
    write_run(tmp_path, "sgd", 0, R=final(0.5, 0.9), seconds=10.0)
    write_run(tmp_path, "sgd", 1, R=final(0.3, 0.9), seconds=30.0)
    write_run(tmp_path, "drcl", 0, R=final(0.8, 0.9), seconds=24.0)
    write_run(tmp_path, "drcl", 1, R=final(0.9, 0.9), seconds=26.0)
    return tmp_path


@pytest.fixture
def runs(tmp_path):
    return read.find([write_runs(tmp_path, ("sgd", "ewc", "drcl", "joint"))])


@pytest.fixture
def small(tmp_path):
    write_run(tmp_path, "sgd", 0, R=R0, seconds=10.0)
    write_run(tmp_path, "sgd", 1, R=R1, seconds=10.0)
    return read.find([tmp_path])
