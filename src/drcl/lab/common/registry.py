"""`Registry`: things of one kind by name. Ours are found when first asked for; others register theirs beside them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from drcl.lab.common import plugins
from drcl.lab.common.fields import nearest
from drcl.lab.common.plugins import PluginError

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*")


class Registry(Mapping[str, T]):
    """A mapping from names to, say, methods: ours first, then those of others in the order of their coming.

    Our names are taken: nobody can change by accident what ``ewc`` means. A plugin that is loaded again replaces what
    it registered itself.
    """

    def __init__(self, kind: str, ours: Callable[[], Mapping[str, T]], group: str = "") -> None:
        """`kind` is the word for one of them, `group` the entry points in which installed packages offer theirs."""
        self.kind, self.group = kind, group
        self._find_ours = ours
        self._ours: dict[str, T] | None = None
        self._others: dict[str, tuple[T, str]] = {}  # each with the plugin or module it came from
        self._looked = not group
        plugins.SNAPSHOTS.append(self._snapshot)

    def register(self, name: str, thing: T, module: str) -> None:
        """Add one from outside; `module` says whose it is where no plugin is being loaded."""
        whose = plugins.current(module)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            allowed = "letters, digits, -, _ and +, because it becomes part of file names"
            raise PluginError(f"{self.kind} name {name!r}: use {allowed}")
        if name in self.ours:
            raise PluginError(f"{self.kind} {name!r}: drcl has one of that name; give yours another")
        known = self._others.get(name)
        if known is not None and known[1] != whose:
            raise PluginError(
                f"{self.kind} {name!r}: {plugins.shown(known[1])} has one of that name; give yours another"
            )
        self._others[name] = (thing, whose)

    @property
    def ours(self) -> Mapping[str, T]:
        if self._ours is None:
            self._ours = dict(self._find_ours())
        return self._ours

    def whose(self, name: str) -> str:
        """Which plugin registered `name`; empty for our own."""
        return plugins.shown(self._others[name][1]) if name in self._others else ""

    def of(self, plugin: str) -> list[str]:
        """The names that this plugin registered, in its order."""
        return [name for name, (_, whose) in self._others.items() if whose == plugin]

    def find(self, name: str) -> T:
        """The one called `name`, or a sentence with the nearest name there is."""
        known = self._all()
        if name not in known:
            raise ValueError(f"there is no {self.kind} {name!r}: {nearest(name, known)}")
        return known[name]

    def __getitem__(self, name: str) -> T:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, T]:
        if not self._looked:
            self._looked = True  # set before loading, because a plugin may look up names itself
            plugins.load_installed(self.group, self.kind, lambda: self._others)
        return {**self.ours, **{name: thing for name, (thing, _) in self._others.items()}}

    def _snapshot(self) -> Callable[[], None]:
        before = dict(self._others)

        def back() -> None:
            self._others = before

        return back
