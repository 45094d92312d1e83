"""Benchmarks by name: ours in ``benchmarks.toml``, others from plugins, and copies with settings replaced."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from difflib import get_close_matches
from importlib import resources
from typing import Any, TypeVar

from drcl.lab.benchmarks.benchmark import Benchmark
from drcl.lab.common.fields import nearest
from drcl.lab.common.plugins import PluginError
from drcl.lab.common.registry import Registry
from drcl.lab.streams import BUILDERS, Stream

_MERGED = ("options", "arguments", "model", "pixels")
# The settings of a benchmark, and whether they are required; the decorated function is its builder.
_SETTINGS = {
    entry.name: entry.default is MISSING and entry.default_factory is MISSING
    for entry in fields(Benchmark)
    if entry.name not in ("name", "builder")
}
Builder = TypeVar("Builder", bound=Callable[..., Stream])


def _ours() -> dict[str, dict[str, Any]]:
    text = resources.files("drcl.lab.benchmarks").joinpath("benchmarks.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


BENCHMARKS: Registry[Mapping[str, Any]] = Registry("benchmark", _ours, "drcl.benchmarks")


def names() -> tuple[str, ...]:
    """All benchmarks, in the order of the file: quick ones first."""
    return tuple(BENCHMARKS)


def get(name: str, **overrides: Any) -> Benchmark:
    """The benchmark called `name`, with some of its settings replaced.

    Tables (``model``, ``pixels``, ``arguments``, ``options``) are merged key by key. A network of another kind replaces
    the default network completely, and may be given by its kind alone. A different builder starts with its own
    arguments, a different data set with its own options.
    """
    if name not in BENCHMARKS:
        # Both permuted-mnist and mnist-permuted are common, so words may come in any order.
        words = sorted(name.lower().replace("_", "-").split("-"))
        near = [known for known in BENCHMARKS if sorted(known.split("-")) == words]
        near = near or get_close_matches(name, BENCHMARKS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "drcl list benchmarks shows them all"
        raise ValueError(f"there is no benchmark {name!r}: {hint}")
    made = _made(name, BENCHMARKS[name])
    return override(made, **overrides) if overrides else made


def _made(name: str, settings: Mapping[str, Any]) -> Benchmark:
    several = isinstance(settings["data"], list)
    return Benchmark(name=name, **{**settings, "data": tuple(settings["data"]) if several else settings["data"]})


def register(name: str, **settings: Any) -> Callable[[Builder], Builder]:
    """Register your own benchmark: its settings, and the decorated function, which cuts its tasks.

    The settings are those of ``benchmarks.toml``, explained at the head of that file. The function is called as
    ``build(data, seed=, tasks=, scenario=, valid=, view=, **arguments)`` and returns a `Stream`; `data` is the data set
    that the settings name. An existing builder works too:
    ``register("my-digits", data="digits", arguments={"classes_per_task": 5}, ...)(streams.class_split)``.
    """

    def add(build: Builder) -> Builder:
        for key in settings:
            if key not in _SETTINGS:
                raise PluginError(f"benchmark {name!r}: {key!r} is not a setting of it: {nearest(key, _SETTINGS)}")
        missing = [key for key, needed in _SETTINGS.items() if needed and key not in settings]
        if missing:
            raise PluginError(f"benchmark {name!r} lacks {', '.join(missing)}: benchmarks.toml says what they mean")
        known = next((word for word, ours in BUILDERS.items() if ours is build), None)
        if known is None:
            BUILDERS.register(name, build, build.__module__)
        table = {**settings, "builder": known or name}
        BENCHMARKS.register(name, table, build.__module__)
        _made(name, table)  # raises for impossible settings
        return build

    return add


def override(benchmark: Benchmark, **overrides: Any) -> Benchmark:
    """A copy with some settings replaced, under the rules of `get`."""
    known = {entry.name for entry in fields(Benchmark)} - {"name"}
    changed: dict[str, Any] = {}
    data = overrides.get("data", benchmark.data)
    if overrides.get("builder", benchmark.builder) != benchmark.builder:
        changed["arguments"] = {}
    if (tuple(data) if isinstance(data, list) else data) != benchmark.data:
        changed["options"] = {}
    for key, value in overrides.items():
        if key not in known:
            raise ValueError(f"{key!r} is not a setting of a benchmark: {nearest(key, known)}")
        if key == "model" and isinstance(value, str):
            value = {"kind": value}
        if key in _MERGED:
            old = changed.get(key, getattr(benchmark, key))
            other_kind = key == "model" and value.get("kind", old.get("kind")) != old.get("kind")
            value = dict(value) if other_kind else {**old, **value}
        elif key in ("epochs", "steps") and value is not None:
            # Both set the length of a task, so setting one removes the other.
            changed.setdefault("steps" if key == "epochs" else "epochs", None)
        elif key == "data" and isinstance(value, list):
            value = tuple(value)
        changed[key] = value
    return replace(benchmark, **changed)


def table() -> list[dict[str, Any]]:
    """One row per benchmark, for listing."""
    rows = []
    for name in names():
        one = get(name)
        rows.append(
            {
                "name": name,
                "about": one.about,
                "data": one.data if isinstance(one.data, str) else " + ".join(one.data),
                "tasks": one.tasks,
                "classes": one.classes,
                "scenario": one.scenario,
                "network": one.model["kind"],
                "length": f"{one.steps} steps" if one.epochs is None else f"{one.epochs} epochs",
                "batch": one.batch,
                "lr": one.lr,
                "momentum": one.momentum,
                "reading": one.reading or "",
            }
        )
    return rows
