"""Named benchmarks: data set, tasks, network and training settings under one name, all in
``benchmarks.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from drcl.lab import networks
from drcl.lab.data.base import DataSet
from drcl.lab.networks import Network
from drcl.lab.streams import BUILDERS, Scenario, Stream
from drcl.lab.streams.view import View

Schedule = Literal["constant", "cosine", "plateau"]
_PIXELS = ("mean", "std", "size", "pad", "channels", "crop", "flip")
_MERGED = ("options", "arguments", "model", "pixels")


@dataclass(frozen=True)
class Benchmark:
    """One benchmark, its settings checked. The words are explained at the head of ``benchmarks.toml``."""

    name: str
    about: str
    data: str | tuple[str, ...]
    builder: str
    scenario: Scenario
    tasks: int
    classes: int
    model: Mapping[str, Any]
    batch: int
    lr: float
    momentum: float
    epochs: int | None = None
    steps: int | None = None
    schedule: Schedule = "constant"
    options: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    pixels: Mapping[str, Any] = field(default_factory=dict)
    valid: float = 0.0
    reading: str | None = None

    def __post_init__(self) -> None:
        def wrong(key: str, remedy: str) -> ValueError:
            return ValueError(f"benchmark {self.name}: {key}={getattr(self, key)!r}: {remedy}")

        if self.builder not in BUILDERS:
            raise wrong("builder", f"choose one of {', '.join(BUILDERS)}")
        if self.scenario not in get_args(Scenario):
            raise wrong("scenario", f"choose one of {', '.join(get_args(Scenario))}")
        if self.schedule not in get_args(Schedule):
            raise wrong("schedule", f"choose one of {', '.join(get_args(Schedule))}")
        if self.model.get("kind") not in networks.names():
            raise wrong("model", f"its kind must be one of {', '.join(networks.names())}")
        for key in ("tasks", "classes", "batch"):
            if not _whole(getattr(self, key)):
                raise wrong(key, "give a whole number of at least 1")
        for key in ("epochs", "steps"):
            if getattr(self, key) is not None and not _whole(getattr(self, key)):
                raise wrong(key, "give a whole number of at least 1")
        if self.online and self.steps is None:
            raise wrong("steps", "an online stream counts steps: give a whole number of at least 1")
        if (self.epochs is None) == (self.steps is None):
            raise wrong("epochs" if self.steps is None else "steps", "give either epochs or steps")
        if not (_number(self.lr) and self.lr > 0):
            raise wrong("lr", "give a learning rate above 0")
        if not (_number(self.momentum) and 0 <= self.momentum < 1):
            raise wrong("momentum", "give 0 <= momentum < 1")
        if not (_number(self.valid) and 0 <= self.valid < 1):
            raise wrong("valid", "give a share of the training data, 0 <= valid < 1")
        for key in self.pixels:
            if key not in _PIXELS:
                raise wrong("pixels", f"{key} is unknown; known are {', '.join(_PIXELS)}")
        if isinstance(self.data, str) == (self.builder == "chain"):
            raise wrong("data", "a chain takes a list of data sets, every other builder one")

    @property
    def online(self) -> bool:
        return self.builder == "online"

    def stream(
        self,
        seed: int = 0,
        data_root: str | Path | None = None,
        limit_per_class: int | None = None,
        tasks: int | None = None,
        data: DataSet | Sequence[DataSet] | None = None,
    ) -> Stream:
        """The tasks of this benchmark for `seed`.

        `limit_per_class` keeps fewer images of each class, `tasks` only the first so many tasks (the same
        ones a full run has). `data` replaces the named data set by one already at hand.
        """
        if tasks is not None and not 1 <= tasks <= self.tasks:
            raise ValueError(f"tasks={tasks}: {self.name} has {self.tasks}; for more, give tasks to benchmarks.get")
        given: dict[str, Any] = dict(self.arguments)
        if self.builder == "chain":
            # The chain brings every set to one shape, so these two are its own arguments.
            given.update({key: self.pixels[key] for key in ("size", "channels") if key in self.pixels})
        else:
            given["tasks"] = self.tasks
        if self.online:
            given.update(steps=self.steps, batch=self.batch)
        if limit_per_class is not None:
            given["limit_per_class"] = min(limit_per_class, given.get("limit_per_class", limit_per_class))
            if "test_per_class" in given:
                given["test_per_class"] = min(limit_per_class, given["test_per_class"])
        build: Any = BUILDERS[self.builder]
        source = self.load(data_root) if data is None else data
        made: Stream = build(source, seed=seed, scenario=self.scenario, valid=self.valid, view=self.view(), **given)
        return made if tasks is None else made[:tasks]

    def load(self, data_root: str | Path | None = None) -> DataSet | list[DataSet]:
        """The data set itself, or those of a chain."""
        from drcl.lab.data import load

        if isinstance(self.data, str):
            return load(self.data, root=data_root, **self.options)
        return [load(name, root=data_root, **self.options.get(name, {})) for name in self.data]

    def view(self) -> View:
        """The preprocessing as streams take it."""
        settings = dict(self.pixels)
        if self.builder == "chain":
            settings = {k: v for k, v in settings.items() if k not in ("size", "channels")}
        for key in ("mean", "std"):
            if key in settings:
                settings[key] = tuple(float(value) for value in settings[key])
        return View(**settings)

    def network(self, stream: Stream, seed: int = 0) -> Network:
        """The default network for `stream`, its weights drawn from `seed`."""
        return networks.build(self.model, stream, seed)


@cache
def _tables() -> dict[str, dict[str, Any]]:
    text = resources.files("drcl.lab.benchmarks").joinpath("benchmarks.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def names() -> tuple[str, ...]:
    """All benchmarks, in the order of the file: quick ones first."""
    return tuple(_tables())


def get(name: str, **overrides: Any) -> Benchmark:
    """The benchmark called `name`, with some of its settings replaced.

    Tables (``model``, ``pixels``, ``arguments``, ``options``) are merged key by key; a network of
    another kind replaces the default one whole, and may be given by its kind alone.
    """
    tables = _tables()
    if name not in tables:
        # Half the field says permuted-mnist, the other half mnist-permuted: words in any order are
        # understood.
        words = sorted(name.lower().replace("_", "-").split("-"))
        near = [known for known in tables if sorted(known.split("-")) == words]
        near = near or get_close_matches(name, tables, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "drcl list benchmarks shows them all"
        raise ValueError(f"there is no benchmark {name!r}: {hint}")
    settings = dict(tables[name])
    if isinstance(settings["data"], list):
        settings["data"] = tuple(settings["data"])
    made = Benchmark(name=name, **settings)
    return override(made, **overrides) if overrides else made


def override(benchmark: Benchmark, **overrides: Any) -> Benchmark:
    """A copy with some settings replaced, under the rules of `get`."""
    known = {entry.name for entry in fields(Benchmark)} - {"name"}
    changed: dict[str, Any] = {}
    for key, value in overrides.items():
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
            raise ValueError(f"{key!r} is not a setting of a benchmark: {hint}")
        if key == "model" and isinstance(value, str):
            value = {"kind": value}
        if key in _MERGED:
            old = getattr(benchmark, key)
            other_kind = key == "model" and value.get("kind", old.get("kind")) != old.get("kind")
            value = dict(value) if other_kind else {**old, **value}
        elif key in ("epochs", "steps") and value is not None:
            # One counts the length of a task; asking for it in one way takes back the other.
            changed.setdefault("steps" if key == "epochs" else "epochs", None)
        elif key == "data" and isinstance(value, list):
            value = tuple(value)
        changed[key] = value
    return replace(benchmark, **changed)


def table() -> list[dict[str, Any]]:
    """One row a benchmark, for listing."""
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


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
