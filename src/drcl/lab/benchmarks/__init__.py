"""The named benchmarks: a stream of tasks, a network and a budget under one name (benchmarks.toml)."""

from drcl.lab.benchmarks.benchmark import Benchmark, Schedule, get, names, override, table

__all__ = ["Benchmark", "Schedule", "get", "names", "override", "table"]
