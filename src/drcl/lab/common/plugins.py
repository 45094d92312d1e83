"""Code from outside the laboratory: modules and files that register methods, benchmarks, data sets and networks.

A plugin is a module (``my_package.methods``) or a file (``mine.py``). To load it is to import it; its decorators, from
`drcl.lab.register`, do the rest. A file of another kind (``mine.toml``) is read by whoever knows that kind, see
`READERS`. Packages that are installed are found by their entry points. A plugin that fails leaves nothing registered
behind.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType

# Each registry adds a function that remembers its entries and returns a function to restore them.
SNAPSHOTS: list[Callable[[], Callable[[], None]]] = []

# Readers for files other than Python, by suffix: each takes path and content and registers what it finds.
READERS: dict[str, Callable[[Path, bytes], None]] = {}

_digests: dict[str, str] = {}  # digests of the loaded files, by path
_supplied: dict[str, bytes] = {}  # files sent along by another machine
_versions: dict[str, str] = {}  # versions of the loaded packages
_roots: set[Path] = set()  # files and folders of plugins
_current: list[str] = []  # what is being loaded now, the innermost last


class PluginError(ValueError):
    """A plugin that cannot be used; the message names it and the reason."""


def load(name: str, beside: Path | None = None) -> str:
    """Import the plugin `name`, once, and return the name a config keeps: a module's own, or a file's whole path.

    A name that ends in ``.py`` (or as one of `READERS`) or holds a slash is a file, looked for in the folder `beside`
    first and then in the current one, where a file that was moved is found by its name alone. Any other name is a
    module on Python's path or in the current folder.
    """
    if not is_file(name) and "/" not in name and os.sep not in name:
        _load_module(name)
        return name
    return _load_file(_found(name, beside))


def is_file(name: str) -> bool:
    """Whether the name of a plugin is that of a file rather than of a module."""
    return name.endswith((".py", *READERS))


def is_code(name: str) -> bool:
    """Whether loading this plugin runs code of somebody else's, which may do anything to the process."""
    return not name.endswith(tuple(READERS))


def current(otherwise: str) -> str:
    """The plugin that is being loaded; outside of any, the name given."""
    return _current[-1] if _current else otherwise


def shown(name: str) -> str:
    """A plugin as a sentence calls it: a file without its folders, which may say where somebody lives."""
    return Path(name).name if is_file(name) else name


# ---- files


def _found(name: str, beside: Path | None) -> Path:
    given = Path(name).expanduser()
    places = [Path.cwd()] if beside is None else [beside.resolve(), Path.cwd()]
    moved = [place / given.name for place in places] if given.is_absolute() else []
    for path in (*(place / given for place in places), *moved):
        if path.is_file() or str(path) in _supplied:
            return path.resolve()
    where = " or in ".join(dict.fromkeys(map(str, places)))
    raise PluginError(f"plugin {name}: there is no such file{'' if given.is_absolute() else f' in {where}'}")


def _load_file(path: Path) -> str:
    key = str(path)
    content = _supplied[key] if key in _supplied else path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    for known, other in _digests.items():  # a copy of a loaded file is not a second plugin
        if other == digest and Path(known).name == path.name:
            return known
    reader = READERS.get(path.suffix)
    if reader is not None:
        with _all_or_nothing(key, path.name):
            reader(path, content)
        _digests[key] = digest
        return key
    # Its name in sys.modules cannot collide with another module's, whatever the file is called.
    module = ModuleType(f"{path.stem}_{hashlib.sha256(key.encode()).hexdigest()[:8]}")
    module.__file__ = key
    _reach(path.parent)
    _roots.add(path)
    with _all_or_nothing(key, "plugin " + path.name):
        sys.modules[module.__name__] = module
        try:
            exec(compile(content, key, "exec"), module.__dict__)
        except BaseException:
            del sys.modules[module.__name__]
            raise
    _digests[key] = digest
    return key


def sources(names: Iterable[str]) -> dict[str, bytes]:
    """The plugins among `names` that are files, with their content: for a machine that does not have them."""
    return {name: Path(name).read_bytes() for name in names if is_file(name)}


def supply(files: Mapping[str, bytes]) -> None:
    """Let `load` find these files, by the paths they have elsewhere."""
    _supplied.update(files)


# ---- modules and packages


def _load_module(name: str) -> None:
    root = name.partition(".")[0]
    _reach(Path.cwd())
    importlib.invalidate_caches()  # the file may be new
    before = set(sys.modules)
    with _all_or_nothing(name, f"plugin {name}"):
        try:
            places = _places(root)
            if not places:
                where = "on Python's path or in the current folder"
                raise PluginError(f"there is no such module {where}; the name of a file ends in .py")
            _roots.update(places)
            importlib.import_module(name)
        except BaseException:
            # Remove the module, because a cached module would not run its decorators again.
            for each in set(sys.modules) - before:
                if each == root or each.startswith(f"{root}."):
                    del sys.modules[each]
            raise


def load_installed(group: str, kind: str, known: Callable[[], Collection[str]]) -> None:
    """Load what installed packages offer as entry points of `group`. A broken one is left out with a warning: it must
    not keep anybody from running something else."""
    for point in metadata.entry_points(group=group):
        package = point.dist.name if point.dist is not None else point.module
        whose = f"the {kind} {point.name!r} of the installed package {package}"
        try:
            with _all_or_nothing(package, whose):
                _roots.update(_places(point.module.partition(".")[0]))
                point.load()
        except PluginError as wrong:
            warnings.warn(f"{wrong}; it is left out", RuntimeWarning, stacklevel=2)
            continue
        if point.name not in known():
            said = f"{whose} is left out: loading {point.value} registers none of that name"
            warnings.warn(said, RuntimeWarning, stacklevel=2)
        elif point.dist is not None:
            _versions[package] = point.dist.version


def _places(root: str) -> list[Path]:
    """Folder or file of a top-level module, imported or not; none if there is no such module."""
    spec = importlib.util.find_spec(root)
    if spec is None:
        return []
    found = spec.submodule_search_locations or [spec.origin or ""]
    return [Path(place).resolve() for place in found if Path(place).exists()]


def _reach(folder: Path) -> None:
    """Let plugins import what lies beside them; what is installed goes first."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


# ---- failures


@contextmanager
def _all_or_nothing(name: str, whose: str) -> Iterator[None]:
    """While `name` is loaded: if it fails, what it registered is forgotten, and the failure becomes a sentence."""
    undo = [remember() for remember in SNAPSHOTS]
    _current.append(name)
    try:
        yield
    except (Exception, SystemExit) as error:
        for back in undo:
            back()
        if isinstance(error, PluginError):
            raise PluginError(f"{whose}: {error}{blame(error)}") from error
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise PluginError(f"{whose} cannot be imported ({reason}){blame(error)}") from error
    finally:
        _current.pop()


def blame(error: BaseException) -> str:
    """Where in a plugin an error arose, as the end of a sentence: ``" (in mine.py, line 12)"``; nothing if nowhere."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = Path(frame.f_code.co_filename)
        for place in (file, *file.parents):
            if place in _roots:
                return f" (in {file.relative_to(place.parent).as_posix()}, line {line})"
    return ""


# ---- where they came from


def describe(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """For ``environment.json``: the SHA-256 of each plugin's source, and the versions of installed packages."""
    found = {package: {"version": version} for package, version in sorted(_versions.items())}
    for name in names:
        facts = found.setdefault(shown(name), {})
        if is_file(name):
            facts["sha256"] = _digests[name]
            continue
        root = name.partition(".")[0]
        facts["sha256"] = _digest(_places(root))
        for package in metadata.packages_distributions().get(root, []):
            facts["version"] = metadata.version(package)
    return found


def _digest(places: Iterable[Path]) -> str:
    """Of one file its own; of a package one over the names and contents of all its modules."""
    files = [file for place in places for file in (sorted(place.rglob("*.py")) if place.is_dir() else [place])]
    if len(files) == 1:
        return hashlib.sha256(files[0].read_bytes()).hexdigest()
    whole = hashlib.sha256()
    for file in files:
        whole.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()
