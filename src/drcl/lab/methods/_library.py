"""Options of the library as options of a method: their types, defaults and help are the library's own."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from drcl import DRCL
from drcl.lab.common.fields import option
from drcl.options import HELP, KINDS

Class = TypeVar("Class", bound=type)


def takes(
    source: type, *names: str, before: str | None = None, defaults: Mapping[str, Any] | None = None
) -> Callable[[Class], Class]:
    """For a method's class, between ``@dataclass`` and its body: it takes these options of `source` too.

    They are listed in front of its own option `before`, or at the end. `defaults` are others than the library's. What
    the class declares itself stays as it is.
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
