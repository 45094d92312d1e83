"""`RunConfig`: everything that decides a run, under one name, as a file and from ``key=value`` options."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w

from drcl.lab import benchmarks, methods
from drcl.lab.benchmarks import Benchmark
from drcl.lab.common import fields as options_
from drcl.lab.common import plugins as plugins_
from drcl.lab.common.fields import OptionError
from drcl.lab.common.tables import flat
from drcl.lab.training.settings import OPERATION, Training

PREFIXES = {"benchmark": "benchmark_options", "method": "method_options", "training": "training"}
_TABLES = ("model", "pixels", "arguments", "options")  # settings of a benchmark that are tables themselves
_NOT_OPTIONS = ("name", "about", "reading")


@dataclass(frozen=True)
class RunConfig:
    """What is run. The three tables hold what was asked for; `resolved` fills in every default.

    `plugins` are the modules and files that define names which drcl does not know. They say where to find a method,
    not what is run: moving the file does not change the run.
    """

    benchmark: str
    method: str
    seed: int = 0
    benchmark_options: dict[str, Any] = field(default_factory=dict)
    method_options: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "plugins", loaded(self.plugins))
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise OptionError(f"seed={self.seed!r}: give a whole number of at least 0")
        benchmarks.get(self.benchmark)  # for an unknown name, both errors suggest the nearest one
        methods.get(self.method)
        for prefix, table in PREFIXES.items():
            known, checked = _known(prefix, self.method), {}
            for key, value in getattr(self, table).items():
                if key not in known:
                    raise OptionError(f"{key!r} is not an option of {_owner(self, prefix)}: {_near(key, known)}")
                checked[key] = _converted(key, value, known[key])
            object.__setattr__(self, table, checked)
        # Method, benchmark and training check their own values, now and not in the middle of a sweep.
        self.make_benchmark()
        for key, value in self.make_method().training_defaults().items():
            if self.training.get(key) is None:
                self.training[key] = value
        self.make_training()

    @classmethod
    def make(
        cls,
        benchmark: str,
        method: str,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
        plugins: Sequence[str] = (),
    ) -> RunConfig:
        """A config from flat options: each goes to the method, the benchmark or the training that knows it.

        ``method.key``, ``benchmark.key`` and ``training.key`` say which is meant, ``model.hidden`` sets one entry of
        a table. Text is read as TOML: ``hidden=[64, 64]``, ``lr=0.1``, ``stable=none``.
        """
        plugins = loaded(plugins)
        methods.get(method)
        tables: dict[str, dict[str, Any]] = {"method": {}, "benchmark": {}, "training": {}}
        for key, value in (options or {}).items():
            prefix, rest = _route(key, method)
            head, _, inner = rest.partition(".")
            known = tables[prefix].get(head, {})
            if inner:
                # A network may be given by its kind alone, before or after its arguments.
                known = known if isinstance(known, Mapping) else {"kind": known}
                value = {**known, inner: _plain(options_.read(value))}
            elif head == "model" and known and isinstance(value, str):
                value = {**known, "kind": value}
            tables[prefix][head] = value
        return cls(benchmark, method, seed, tables["benchmark"], tables["method"], tables["training"], plugins)

    # ---- what it means

    def make_benchmark(self) -> Benchmark:
        """The benchmark with its options applied, except `limit_per_class` and `tasks`, which the stream handles."""
        given = {k: v for k, v in self.benchmark_options.items() if k != "limit_per_class"}
        if given.get("tasks", 1 << 62) <= benchmarks.get(self.benchmark).tasks:
            given.pop("tasks")
        return benchmarks.get(self.benchmark, **given)

    def stream_options(self) -> dict[str, Any]:
        """Arguments of `Benchmark.stream` that are options here."""
        made, asked = self.make_benchmark(), self.benchmark_options
        tasks = asked.get("tasks")
        fewer = tasks if tasks is not None and tasks < made.tasks else None
        return {"tasks": fewer, "limit_per_class": asked.get("limit_per_class")}

    def make_method(self) -> methods.Method:
        return methods.get(self.method)(**self.method_options)

    def make_training(self) -> Training:
        return Training(**self.training)

    def resolved(self) -> RunConfig:
        """The same with every default written out, so that later defaults cannot change what was run."""
        made = self.make_benchmark()
        known = _known("benchmark", self.method)
        full = {k: _plain(getattr(made, k)) for k in known if hasattr(made, k)} | self.benchmark_options
        full |= {k: _plain(getattr(made, k)) for k in _TABLES}
        method = self.make_method()
        return RunConfig(
            self.benchmark,
            self.method,
            self.seed,
            {k: v for k, v in full.items() if v is not None},
            {k: getattr(method, k) for k in options_.hints(methods.get(self.method))},
            options_.defaults(Training) | self.training,
            self.plugins,
        )

    # ---- its name and its file

    @property
    def name(self) -> str:
        """Name of its directory; options that differ from the defaults add a short hash."""
        plain = f"{self.benchmark}-{self.method}-seed{self.seed}"
        mine, usual = self.key(), RunConfig(self.benchmark, self.method, self.seed).key()
        if mine == usual:
            return plain
        return f"{plain}-{hashlib.sha256(mine.encode()).hexdigest()[:8]}"

    def key(self) -> str:
        """Equal for two configs exactly if they describe the same run; operational settings do not count."""
        return json.dumps(self._tables(operation=False), sort_keys=True)

    def differences(self, other: RunConfig) -> list[str]:
        """The differences between two configs, as ``key: mine / other``."""
        mine, theirs = (flat(c._tables(operation=False)) for c in (self, other))
        return [
            f"{key}: {mine.get(key, 'none')!r} / {theirs.get(key, 'none')!r}"
            for key in sorted(mine.keys() | theirs.keys())
            if mine.get(key) != theirs.get(key)
        ]

    def to_toml(self) -> str:
        """The resolved config as text."""
        return tomli_w.dumps(self._tables(operation=True))

    @classmethod
    def from_toml(cls, path: str | Path) -> RunConfig:
        """Read what `to_toml` wrote, or a hand-written file with only the settings that differ from the defaults."""
        path = Path(path)
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise OptionError(f"{path} is not TOML ({error}); correct that line") from None
        except RecursionError:
            raise OptionError(f"{path} is not a run's config: its tables are nested too deeply") from None
        known = {f.name for f in fields(cls)} | {"operation"}
        for key in content:
            if key not in known:
                raise OptionError(f"{path}: {key!r} is not part of a run's config: {options_.nearest(key, known)}")
        for key in ("benchmark", "method"):
            if not isinstance(content.get(key), str):
                raise OptionError(f'{path}: {key} is missing: write {key} = "<name>" in its first lines')
        for key in ("benchmark_options", "method_options", "training", "operation"):
            if not isinstance(content.get(key, {}), dict):
                raise OptionError(f"{path}: {key} must be a table: write [{key}] above its options")
        content["training"] = content.get("training", {}) | content.pop("operation", {})
        content["plugins"] = loaded(content.get("plugins", []), path)
        return cls(**content)

    def _tables(self, operation: bool) -> dict[str, Any]:
        full = self.resolved()
        out: dict[str, Any] = {"benchmark": full.benchmark, "method": full.method, "seed": full.seed}
        # TOML has no null: None is omitted if it is the default, otherwise it is a text that is read as None.
        usual = {"method_options": options_.defaults(methods.get(full.method)), "training": options_.defaults(Training)}
        for table in PREFIXES.values():
            told = {k: "none" if v is None else _plain(v) for k, v in getattr(full, table).items()}
            out[table] = {k: v for k, v in told.items() if v != "none" or usual.get(table, {}).get(k) is not None}
        how = {k: out["training"].pop(k) for k in OPERATION if k in out["training"]}
        if not operation:
            return out
        return out | {"operation": how} | ({"plugins": list(full.plugins)} if full.plugins else {})


def loaded(plugins: Sequence[str], file: Path | None = None) -> tuple[str, ...]:
    """Load each plugin and return their names as a config stores them. Plugins named in `file` may lie beside it."""
    if not isinstance(plugins, list | tuple) or not all(isinstance(each, str) for each in plugins):
        start = f"{file}: " if file is not None else ""
        raise OptionError(f'{start}plugins is {plugins!r}; give a list of modules or files, such as ["mine.py"]')
    return tuple(dict.fromkeys(plugins_.load(each, file.parent if file else None) for each in plugins))


def _known(prefix: str, method: str) -> dict[str, Any]:
    # Not cached for a method: a reloaded plugin may have other options.
    return options_.hints(methods.get(method)) if prefix == "method" else _known_to_all(prefix)


@cache
def _known_to_all(prefix: str) -> dict[str, Any]:
    if prefix == "training":
        return options_.hints(Training)
    hints = {k: v for k, v in options_.hints(Benchmark).items() if k not in _NOT_OPTIONS}
    hints["model"] = str | hints["model"]
    hints["data"] = str | list[str]
    return hints | {"limit_per_class": int | None}


def _route(key: str, method: str) -> tuple[str, str]:
    """Which table the option `key` belongs to, and its name there."""
    head, _, rest = key.partition(".")
    if rest and head in PREFIXES:
        prefixes, rest_of = [head], rest
    else:
        prefixes, rest_of = ["method", "benchmark", "training"], key
    name, _, inner = rest_of.partition(".")
    for prefix in prefixes:
        if name in _known(prefix, method):
            if inner and not (prefix == "benchmark" and name in _TABLES):
                raise OptionError(f"{key!r}: {name} is a single value; write {name}=...")
            return prefix, rest_of
    known: dict[str, Any] = {}
    for prefix in prefixes:
        known |= _known(prefix, method)
    whose = f"of the {prefixes[0]}" if len(prefixes) == 1 else f"of method {method!r}, benchmark or training"
    raise OptionError(f"{key!r} is not an option {whose}: {_near(name, known)}")


def _near(key: str, known: Mapping[str, Any]) -> str:
    return options_.nearest(key, known)


def _owner(config: RunConfig, prefix: str) -> str:
    return {"method": f"method {config.method!r}", "benchmark": "a benchmark"}.get(prefix, "training")


def _converted(key: str, value: Any, hint: Any) -> Any:
    return _plain(options_.convert(key, value, hint))


def _plain(value: Any) -> Any:
    """Mappings as dicts, sequences as lists, so that a config equals the one read back from its file."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
