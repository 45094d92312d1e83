"""`Benchmark`: data set, tasks, network and training settings under one name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from drcl.lab import networks
from drcl.lab.common.fields import convert
from drcl.lab.data import DataSet, load
from drcl.lab.data.loading import check_options
from drcl.lab.networks import Network
from drcl.lab.streams import BUILDERS, Scenario, Stream, split_parts
from drcl.lab.streams.view import View

Schedule = Literal["constant", "cosine", "plateau"]
# Arguments of a builder that the benchmark sets through its own options.
_GIVEN = ("data", "seed", "tasks", "scenario", "valid", "view", "steps", "batch", "size", "channels")
_PIXELS: dict[str, Any] = {
    "mean": list[float] | float,
    "std": list[float] | float,
    "size": int | None,
    "pad": int,
    "channels": int | None,
    "crop": int,
    "flip": bool,
}


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
        for key, value in self.pixels.items():
            if key not in _PIXELS:
                raise wrong("pixels", f"{key} is unknown; known are {', '.join(_PIXELS)}")
            convert(f"benchmark {self.name}: pixels.{key}", value, _PIXELS[key])
        try:
            self.view()
        except ValueError as error:
            raise wrong("pixels", str(error)) from None
        try:
            networks.check(self.model["kind"], {k: v for k, v in self.model.items() if k != "kind"})
        except (ValueError, TypeError) as error:
            raise ValueError(f"benchmark {self.name}: {error}") from None
        known, open_ = self._arguments()
        for key in self.arguments:
            if key in _GIVEN or (key not in known and not open_):
                raise wrong("arguments", f"{key} is not one of {self.builder}; it has {', '.join(known) or 'none'}")
        if isinstance(self.data, str) == (self.builder == "chain"):
            raise wrong("data", "a chain takes a list of data sets, every other builder one")

    def _arguments(self) -> tuple[list[str], bool]:
        """The builder's known arguments, and whether it also takes others that cannot be known here."""
        parameters = dict(inspect.signature(BUILDERS[self.builder]).parameters)
        rest = [name for name, p in parameters.items() if p.kind is inspect.Parameter.VAR_KEYWORD]
        ours = self.builder in BUILDERS.ours
        if rest and ours:  # our builders pass the rest on to the function that splits the data
            parameters |= inspect.signature(split_parts).parameters
        return [name for name in parameters if name not in (*_GIVEN, *rest)], bool(rest) and not ours

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

        `limit_per_class` limits the images of each class. `tasks` keeps only the first tasks, the same ones that a
        full run has. `data` replaces the named data set by one that is already loaded.
        """
        if tasks is not None and not 1 <= tasks <= self.tasks:
            raise ValueError(f"tasks={tasks}: {self.name} has {self.tasks}; for more, give tasks to benchmarks.get")
        given: dict[str, Any] = dict(self.arguments)
        if self.builder == "chain":
            # The chain converts all sets to one shape, so it has these two arguments itself.
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
        options = self.options_of_data()
        for name, given in options.items():
            # Check before the call, because an argument called `root` would be passed twice.
            check_options(name, given)
        found = [load(name, root=data_root, **options[name]) for name in self._data_names()]
        return found[0] if isinstance(self.data, str) else found

    def options_of_data(self) -> dict[str, dict[str, Any]]:
        """The options of each data set by its name, as its reader takes them."""
        if isinstance(self.data, str):
            return {self.data: dict(self.options)}
        for name, given in self.options.items():
            if name not in self.data:
                raise ValueError(f"options.{name}: {self.name} has no data set {name!r}; it has {', '.join(self.data)}")
            if not isinstance(given, Mapping):
                raise ValueError(f"options.{name}={given!r}: give a table, such as options.{name} = {{key = value}}")
        return {name: dict(self.options.get(name, {})) for name in self.data}

    def _data_names(self) -> Sequence[str]:
        return [self.data] if isinstance(self.data, str) else self.data

    def view(self) -> View:
        """The preprocessing as streams take it."""
        settings = dict(self.pixels)
        if self.builder == "chain":
            settings = {k: v for k, v in settings.items() if k not in ("size", "channels")}
        for key in ("mean", "std"):
            if key in settings:
                given = settings[key]
                settings[key] = tuple(float(v) for v in (given if isinstance(given, list | tuple) else [given]))
        return View(**settings)

    def network(self, stream: Stream, seed: int = 0) -> Network:
        """The default network for `stream`, its weights drawn from `seed`."""
        return networks.build(self.model, stream, seed)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
