"""Options by name: what a dataclass accepts, how text becomes a value of the right kind, and what to say otherwise.

Methods, training settings and benchmarks are dataclasses; their fields are the options of a run. This file knows
nothing else about them.
"""

from __future__ import annotations

import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, field, fields
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin


class OptionError(ValueError):
    """An option that does not exist, or a value it does not take; the message names both and the remedy."""


def option(default: Any, help: str) -> Any:
    """A dataclass field with a line of help: how methods and settings declare their options."""
    return field(default=default, metadata={"help": help})


def hints(cls: type) -> dict[str, Any]:
    """The options of a dataclass: the types of its public fields, by name."""
    return dict(_hints(cls))


@cache  # annotations are text, and evaluating them for each of a thousand runs would take minutes
def _hints(cls: type) -> dict[str, Any]:
    found = typing.get_type_hints(cls)
    return {f.name: found[f.name] for f in fields(cls) if f.init and not f.name.startswith("_")}


def defaults(cls: type) -> dict[str, Any]:
    """The default of every option that has one."""
    known: dict[str, Any] = {}
    for f in fields(cls):
        if f.name not in hints(cls):
            continue
        if f.default is not MISSING:
            known[f.name] = f.default
        elif f.default_factory is not MISSING:
            known[f.name] = f.default_factory()
    return known


def table(cls: type) -> list[dict[str, Any]]:
    """One row an option, for listing: name, kind in words, default, help."""
    values = defaults(cls)
    return [
        {
            "name": f.name,
            "kind": words(hints(cls)[f.name]),
            "default": values.get(f.name),
            "help": f.metadata.get("help", ""),
        }
        for f in fields(cls)
        if f.name in hints(cls)
    ]


def words(hint: Any) -> str:
    """A type as a reader of an error message says it."""
    if hint is type(None):
        return "none"
    simple = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if hint in simple:
        return simple[hint]
    origin = get_origin(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(words(part) for part in get_args(hint)))
    if origin in (list, tuple, Sequence):
        return f"a list such as [1, 2] with {words(get_args(hint)[0])} in each place"
    return "a table such as {key = value}"


def convert(name: str, value: Any, hint: Any) -> Any:
    """`value` as the type `hint`; text is read as TOML would read it. Refused with what is allowed otherwise."""
    for candidate in _readings(value):
        kept = _match(candidate, hint)
        if kept is not _NO:
            return kept
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    raise OptionError(f"{name}={shown}: give {words(hint)}")


def read(value: Any) -> Any:
    """What a text stands for where no type is known: a TOML value if it is one, else itself."""
    return _readings(value)[0]


def nearest(key: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown key."""
    names = sorted(set(known))
    near = get_close_matches(key, names, n=1, cutoff=0.55)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"


_NO = object()
_SHOWN = 200  # characters of a wrong value to show in an error


def _readings(value: Any) -> list[Any]:
    """The values a text may stand for, the text itself last; anything else stands for itself."""
    if not isinstance(value, str):
        return [value]
    text = value.strip()
    if text.lower() in ("none", "null"):
        return [None, value]
    if text.lower() in ("true", "false"):
        return [text.lower() == "true", value]
    try:
        return [tomllib.loads(f"value = {text}")["value"], value]
    except (tomllib.TOMLDecodeError, RecursionError):
        pass
    for kind in (int, float):  # numbers that TOML does not accept, such as .5 and 1_0.
        try:
            return [kind(text), value]
        except ValueError:
            continue
    return [value]


def _match(value: Any, hint: Any) -> Any:
    """The value if it is of that type (a whole number passes as a float), else `_NO`."""
    origin = get_origin(hint)
    if hint is Any:
        return value
    if hint is type(None):
        return None if value is None else _NO
    if hint is bool:
        return value if isinstance(value, bool) else _NO
    if hint is int:
        if isinstance(value, float) and value.is_integer() and math.isfinite(value):
            return int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else _NO
    if hint is float:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else _NO
    if hint is str:
        return value if isinstance(value, str) else _NO
    if origin is Literal:
        for choice in get_args(hint):
            if type(value) is type(choice) and value == choice:
                return choice
        return _NO
    if origin in (Union, types.UnionType):
        # Try the value's own type first, so that 1.0 stays a float where int and float are both allowed.
        parts = sorted(get_args(hint), key=lambda part: type(value) is not part)
        found = [_match(value, part) for part in parts]
        return next((kept for kept in found if kept is not _NO), _NO)
    if origin in (list, tuple, Sequence):
        if not isinstance(value, list | tuple):
            return _NO
        kept = [_match(each, get_args(hint)[0]) for each in value]
        return _NO if any(each is _NO for each in kept) else tuple(kept) if origin is tuple else kept
    return dict(value) if isinstance(value, Mapping) else _NO
