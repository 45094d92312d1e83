"""Methods by name: one file each in this folder, found by itself. A file whose name begins with _ is a helper."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from drcl.lab.common import options
from drcl.lab.methods.base import Batch, Knob, Method, Setting, Where

__all__ = ["Batch", "Knob", "Method", "Setting", "Where", "get", "names"]


@cache
def _found() -> dict[str, type[Method]]:
    known: dict[str, type[Method]] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name.startswith("_") or module.name == "base":
            continue
        content = vars(importlib.import_module(f"{__name__}.{module.name}"))
        for value in content.values():
            if isinstance(value, type) and issubclass(value, Method) and value.__module__.endswith(f".{module.name}"):
                if not value.name:
                    continue  # a base that several methods of one file share
                if value.name in known:
                    raise RuntimeError(f"two methods are called {value.name!r}; rename the one in {module.name}.py")
                known[value.name] = value
    return dict(sorted(known.items()))


def names() -> tuple[str, ...]:
    """All methods, in alphabetical order."""
    return tuple(_found())


def get(name: str) -> type[Method]:
    """The class of the method called `name`; its dataclass fields are its options."""
    found = _found()
    if name not in found:
        raise ValueError(f"there is no method {name!r}: {options.nearest(name, found)}")
    return found[name]
