"""The named benchmarks: a stream of tasks, a network and a budget under one name (benchmarks.toml)."""

from drcl.lab.benchmarks import files
from drcl.lab.benchmarks.benchmark import Benchmark, Schedule
from drcl.lab.benchmarks.registry import BENCHMARKS, get, names, override, register, table

__all__ = ["BENCHMARKS", "Benchmark", "Schedule", "files", "get", "names", "override", "register", "table"]
