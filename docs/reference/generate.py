"""Pages of the reference that follow from the code: names, commands, benchmarks and methods.

python docs/reference/generate.py            # writes them beside this file
python docs/reference/generate.py --check    # says which are stale, and changes nothing
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer

import drcl
import drcl.checkpoint
import drcl.importance
import drcl.prox
from drcl.lab import benchmarks, data, methods, networks, register, streams
from drcl.lab.cli.app import app
from drcl.lab.common import fields as options
from drcl.lab.runs.config import RunConfig
from drcl.lab.runs.execute import execute
from drcl.lab.runs.read import Run, find
from drcl.lab.training.settings import Training

HERE = Path(__file__).parent
MADE = "<!-- made by: python docs/reference/generate.py -->\n"
# What each part of the library is for, and its public names in the order of their use.
LIBRARY = {
    "The optimizer": ["drcl.DRCL"],
    "Importance": [
        "drcl.Kronecker",
        "drcl.Fisher",
        "drcl.MAS",
        "drcl.PathIntegral",
        "drcl.importance.Importance",
        "drcl.importance.Measured",
        "drcl.importance.History",
    ],
    "Anchors, drift, retention": [
        "drcl.Anchor",
        "drcl.AnchorError",
        "drcl.drift",
        "drcl.drift.Drift",
        "drcl.drift.LayerDrift",
        "drcl.Retention",
    ],
    "Proximal maps": [f"drcl.prox.{kind.__name__}" for kind in drcl.prox.NAMED.values()],
    "Checkpoints of sharded models": ["drcl.checkpoint.save", "drcl.checkpoint.load"],
}
# Names that cannot be imported without the trainers they serve, and where each is defined.
TRAINERS = {
    "drcl.integrations.huggingface.Continual": "drcl.integrations.huggingface.Continual",
    "drcl.integrations.huggingface.continual": "drcl.integrations.huggingface.continual",
    "drcl.integrations.huggingface.self_samples": "drcl.integrations.generation.self_samples",
    "drcl.integrations.lightning.Continual": "drcl.integrations.lightning.Continual",
    "drcl.integrations.avalanche.Continual": "drcl.integrations.avalanche.Continual",
    "drcl.integrations.task.Continues": "drcl.integrations.task.Continues",
}
_INSIDE = ("BUILDERS", "Scenario", "label_permutations")  # no use to a reader
LAB = {
    "Benchmarks": {benchmarks: ["get", "names", "Benchmark"]},
    "Streams": {streams: [name for name in streams.__all__ if name not in _INSIDE]},
    "Methods": {methods: ["get", "names", "Method", "Batch", "Setting", "Where", "Knob", "option"]},
    "Data sets": {data: list(data.__all__)},
    "Networks": {networks: ["build", "names", "Network"]},
    "Registering your own": {register: ["method", "benchmark", "data", "network"]},
    "Runs": {None: [RunConfig, execute, Run, find]},
}


def library() -> str:
    """Every public name of the library."""
    left = {f"drcl.{name}" for name in drcl.__all__} - {name for names in LIBRARY.values() for name in names}
    if left != {"drcl.__version__", "drcl.prox"}:
        raise SystemExit(f"generate.py: no place on the page for {', '.join(sorted(left))}")
    about = "This page lists every public name of the library."
    parts = ["# The library\n", MADE, f"{about} `drcl.__version__` is the version.\n"]
    for heading, names in LIBRARY.items():
        found = [(name.removeprefix("drcl."), _resolve(name), _path(name)) for name in names]
        parts += [f"## {heading}\n", *_listed([(f"drcl.{short}", _doc(thing), path) for short, thing, path in found])]
    parts += ["## Trainers\n", "[In a trainer](../trainers.md) shows how to use them.\n"]
    parts += _listed([(name, _written(path), path) for name, path in TRAINERS.items()])
    return "\n".join(parts)


def lab() -> str:
    """The public parts of the laboratory."""
    parts = [
        "# The laboratory\n",
        MADE,
        'This page lists the public names of the laboratory. It needs `pip install "drcl[lab]"`.\n',
    ]
    for heading, homes in LAB.items():
        entries = []
        for home, names in homes.items():
            for name in names:
                thing = getattr(home, name) if isinstance(name, str) else name
                shown = f"{home.__name__}.{name}" if home else f"{thing.__module__}.{thing.__name__}"
                entries.append((shown, _doc(thing), f"{thing.__module__}.{thing.__qualname__}"))
        parts += [f"## {heading}\n", *_listed(entries)]
    return "\n".join(parts)


def _resolve(name: str) -> Any:
    module, _, last = _path(name).rpartition(".")
    return getattr(sys.modules[module], last)


def _path(name: str) -> str:
    """Where a public name is defined; `drcl.drift` is both a module and its function."""
    if name.startswith("drcl.drift."):
        return name
    module, _, last = name.rpartition(".")
    thing = getattr(sys.modules[module], last)
    return f"{thing.__module__}.{thing.__qualname__}"


def _listed(entries: list[tuple[str, str, str]]) -> Iterator[str]:
    """A table with a line for each name, for readers of the repository, and what the site makes of the docstrings."""
    yield "\n".join(["| name | what it is |", "|---|---|", *(f"| `{n}` | {_first(d)} |" for n, d, _ in entries)]) + "\n"
    for _, _, path in entries:
        yield f"::: {path}\n"


def _doc(thing: Any) -> str:
    return inspect.getdoc(thing) or ""


def _written(path: str) -> str:
    """A docstring read from the source, without importing it."""
    module, _, name = path.rpartition(".")
    source = HERE.parents[1] / "src" / f"{module.replace('.', '/')}.py"
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node) or ""
    raise SystemExit(f"generate.py: {source} has no {name}")


def _first(doc: str) -> str:
    """The first sentence of a docstring."""
    text = " ".join(doc.split("\n\n")[0].split())
    return _cell(re.split(r"(?<=\.) (?=[A-Z`\"])", text.replace("``", "`"))[0])


def commands() -> str:
    """Every command with its arguments and options."""
    parts = [
        "# Commands\n",
        MADE,
        "This page lists every command. `drcl COMMAND --help` shows the same in the terminal.\n",
    ]
    for name, command in _walk("drcl", typer.main.get_command(app)):
        parts.append(f"## {name}\n\n{_prose(command.help or '')}\n")
        rows = [_parameter(p) for p in command.params if not getattr(p, "hidden", False)]
        if rows:
            parts.append(_table(("argument or option", "default", "what it does"), rows))
    return "\n".join(parts)


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for key, each in inner.items():
        yield from _walk(f"{name} {key}", each)


def _parameter(p: Any) -> tuple[str, str, str]:
    argument = p.param_type_name == "argument"
    names = p.name.upper() if argument else ", ".join(p.opts)
    default = p.default() if callable(p.default) else p.default
    shown = (
        "required"
        if p.required
        else ""
        if default in (None, (), [], False)
        else f"`{getattr(default, 'value', default)}`"
    )
    return f"`{names}`", "required" if p.required else shown, _prose(p.help or "")


def benchmark_page() -> str:
    """Every benchmark with its settings."""
    parts = [
        "# Benchmarks\n",
        MADE,
        "This page lists every benchmark. `drcl run NAME` runs one. `-o key=value` changes any setting; in a table it\n"
        "changes one key, as in `-o model.hidden=[64,64]`. [Settings](#settings) explains them, and your own file\n"
        "([how](../guide/own-data.md#a-benchmark-of-your-own)) has the same.\n",
    ]
    rows = [
        (
            f"[{r['name']}](#{r['name']})",
            r["about"],
            r["data"],
            str(r["tasks"]),
            r["scenario"],
            r["network"],
            re.sub(r"^1 (epoch|step)s$", r"1 \1", r["length"]),
        )
        for r in benchmarks.table()
    ]
    parts.append(_table(("name", "what", "data", "tasks", "scenario", "network", "trained for"), rows))
    parts += ["## Settings\n", _table(("setting", "meaning"), _settings())]
    parts.append(f"Values of `model.kind` are {', '.join(f'`{kind}`' for kind in networks.names())}. Builders:\n")
    builders = [(f"`{name}`", _first(_doc(build)), _arguments(build)) for name, build in streams.BUILDERS.items()]
    parts.append(_table(("builder", "tasks", "arguments"), builders))
    for name in benchmarks.names():
        one = benchmarks.get(name)
        shown = [
            (f"`{f.name}`", f"`{_value(value)}`")
            for f in fields(one)
            if f.name not in ("name", "about", "reading") and (value := getattr(one, f.name)) not in (None, {}, ())
        ]
        parts += [
            f"## {name}\n\n{_prose(one.about[0].upper() + one.about[1:])}.\n",
            _table(("setting", "value"), shown),
        ]
        if one.reading:
            parts.append(f"Our reading of the paper: {_prose(one.reading)}\n")
    return "\n".join(parts)


def _settings() -> list[tuple[str, str]]:
    """The head of benchmarks.toml about each setting: a name, two spaces or more, and a text that may go on."""
    head = (Path(benchmarks.__file__).with_name("benchmarks.toml")).read_text(encoding="utf-8").split("\n\n")[0]
    rows: list[tuple[str, str]] = []
    for line in head.splitlines():
        begun = re.fullmatch(r"# (\S.*?) {2,}(.*)", line)
        if begun:
            rows.append((begun[1], begun[2]))
        elif rows and line.startswith("#   "):
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line[1:].strip()}")
    return [(re.sub(r"\w+", r"`\g<0>`", name).replace("|", "or"), _prose(text)) for name, text in rows]


def _arguments(build: Any) -> str:
    """What a builder's `arguments` may hold; the benchmark gives the rest."""
    given = ("data", "seed", "tasks", "scenario", "valid", "view", "steps", "batch", "size", "channels")
    known = [name for name, p in inspect.signature(build).parameters.items() if p.kind is p.KEYWORD_ONLY]
    return ", ".join(f"`{name}`" for name in known if name not in given)


def method_page() -> str:
    """Every method with its options, and what each needs."""
    known = {name: methods.get(name) for name in methods.names()}
    abilities = {name: method.abilities.words() for name, method in known.items()}
    parts = [
        "# Methods\n",
        MADE,
        "This page lists every method. `drcl run BENCHMARK -m NAME -o key=value` runs one.\n"
        "[Every method](../methods.md) shows their results.\n",
        _table(
            ("name", *next(iter(abilities.values()))),
            [(f"[{name}](#{_anchor(name)})", *cells.values()) for name, cells in abilities.items()],
        ),
        "- **task ids**: the method must be told the task when it answers.\n"
        "- **task ends**: it does something when a task ends.\n"
        "- **old data**: examples of earlier tasks that it trains on again.\n"
        "- **passes**: how often it trains through a task.\n"
        "- **norms**: norm layers that it supports; unshared means layers whose statistics no other task overwrites.\n"
        "- **residual**: it supports networks that are not a plain chain of layers.\n"
        "- **optimizer**: those that it supports; own means that it makes its own steps.\n"
        "- **decay**: it supports weight decay.\n",
    ]
    for name, method in known.items():
        parts.append(f"## {name}\n\n{_prose(method.about[0].upper() + method.about[1:])}.\n")
        parts += [_options(method)]
        if method.tunes is not None:
            knob = method.tunes
            parts.append(f"`drcl tune` chooses `{knob.name}`, at first from {knob.low:g} to {knob.high:g}.\n")
    parts.append("## Training settings\n\nThese are the same for every method. Set them with `-o`, too.\n")
    parts.append(_options(Training))
    return "\n".join(part for part in parts if part)


def _options(cls: type) -> str:
    rows = [(f"`{r['name']}`", f"`{_value(r['default'])}`", _prose(r["help"])) for r in options.table(cls)]
    return _table(("option", "default", "what it does"), rows) if rows else ""


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)


def _prose(text: str) -> str:
    """Text for a terminal as Markdown: names in capitals or with underscores stay as they are written."""
    return re.sub(r"([*_<>\[\]])", r"\\\1", " ".join(text.replace("``", "`").split()))


def _value(value: Any) -> str:
    """A setting as one would write it after ``-o key=``."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_value(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return "none" if value is None else str(value)


PAGES = {
    "library.md": library,
    "lab.md": lab,
    "commands.md": commands,
    "benchmarks.md": benchmark_page,
    "methods.md": method_page,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is stale")
    check = parser.parse_args().check
    stale = []
    for name, make in PAGES.items():
        text = make().rstrip() + "\n"
        page = HERE / name
        if not page.is_file() or page.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                page.write_text(text, encoding="utf-8")
    if check and stale:
        raise SystemExit(f"stale: {', '.join(stale)}; run: python docs/reference/generate.py")


if __name__ == "__main__":
    main()
