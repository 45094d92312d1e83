"""Options of the library as options of a method, with the library's types, defaults and help texts."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from drcl import DRCL
from drcl.lab.common.fields import option
from drcl.options import HELP, KINDS, PRESETS

Class = TypeVar("Class", bound=type)


def takes(
    source: type, *names: str, before: str | None = None, defaults: Mapping[str, Any] | None = None
) -> Callable[[Class], Class]:
    """A decorator for a method's class, below ``@dataclass``: the method also takes these options of `source`.

    They are listed before its own option `before`, or at the end. `defaults` replace the library's. Options that the
    class declares itself do not change.
    """
    kinds = KINDS if source is DRCL else typing.get_type_hints(source)
    signature = inspect.signature(source).parameters

    def add(cls: Class) -> Class:
        own = list(inspect.get_annotations(cls).items())
        declared = dict(own)
        place = len(own) if before is None else list(declared).index(before)
        new = [name for name in names if name not in declared]
        cls.__annotations__ = dict([*own[:place], *((name, kinds[name]) for name in new), *own[place:]])
        for name in new:
            setattr(cls, name, option((defaults or {}).get(name, signature[name].default), HELP[name]))
        return cls

    return add


def fills_in_presets(cls: Class) -> Class:
    """A decorator for a method's class, above ``@dataclass``: `preset` sets the options that are not given explicitly.

    It does not set the learning rate, which belongs to the run, or the policy of norm layers, which belongs to the
    network. If the preset has a value, None does not count as given, because a config file cannot express None.
    """
    init = cls.__init__  # type: ignore[misc]

    @functools.wraps(init)
    def filled(self: Any, *args: Any, **given: Any) -> None:
        stands_for = {k: v for k, v in PRESETS.get(given.get("preset") or "", {}).items() if k not in ("lr", "norms")}
        init(self, *args, **stands_for | {k: v for k, v in given.items() if v is not None or k not in stands_for})

    cls.__init__ = filled  # type: ignore[misc]
    return cls
