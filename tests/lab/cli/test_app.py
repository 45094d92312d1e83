"""The command line: what it prints, its exit codes, and that errors are sentences."""

from __future__ import annotations

from tests.lab.cli.stage import call

import drcl


def test_version_names_what_a_result_depends_on():
    assert call("version").stdout.startswith(f"drcl {drcl.__version__} (Python ")
    assert call("--version").stdout == call("version").stdout
