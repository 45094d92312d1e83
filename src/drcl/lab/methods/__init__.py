"""Methods by name: one file each in this folder, found automatically. A file whose name begins with _ is a helper."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TypeVar

from drcl.lab.common.fields import option
from drcl.lab.common.plugins import PluginError
from drcl.lab.common.registry import Registry
from drcl.lab.methods.base import Batch, Knob, Method, Setting, Where

__all__ = ["METHODS", "Batch", "Knob", "Method", "Setting", "Where", "get", "names", "option", "register"]

Class = TypeVar("Class", bound=type[Method])


def _ours() -> dict[str, type[Method]]:
    known: dict[str, type[Method]] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name.startswith("_") or module.name == "base":
            continue
        content = vars(importlib.import_module(f"{__name__}.{module.name}"))
        for value in content.values():
            if isinstance(value, type) and issubclass(value, Method) and value.__module__.endswith(f".{module.name}"):
                if not value.name:
                    continue  # a base class shared by several methods in one file
                if value.name in known:
                    raise RuntimeError(f"two methods are called {value.name!r}; rename the one in {module.name}.py")
                known[value.name] = value
    return known


METHODS: Registry[type[Method]] = Registry("method", _ours, "drcl.methods")


def names() -> tuple[str, ...]:
    """All methods, in alphabetical order."""
    return tuple(sorted(METHODS))


def get(name: str) -> type[Method]:
    """The class of the method called `name`; its dataclass fields are its options."""
    return METHODS.find(name)


def register(cls: Class) -> Class:
    """Register your own class as a method: a dataclass derived from `Method`, known by its attribute `name`."""
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise PluginError(f"{cls!r} is not a method: decorate a class derived from drcl.lab.methods.Method")
    if not cls.name:
        raise PluginError(f'{cls.__name__} has no name: write name: ClassVar[str] = "..." in the class')
    METHODS.register(cls.name, cls, cls.__module__)
    return cls
