"""What all commands share: the console, and one-sentence errors with a meaningful exit code.

Names may come from files and folders of other people, so all output is made harmless on its way to the terminal.
"""

from __future__ import annotations

import codecs
import io
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from drcl.lab.common.words import clean, reason

USAGE, FAILURE, INTERRUPTED, TERMINATED = 2, 1, 130, 143
_PIPED_WIDTH = 120  # for a file rich assumes 80 columns, which would fold tables
_KEPT = "\n\t"

# Replacements for our symbols, for terminals that support only ASCII.
_PLAIN = {
    **dict(zip("–−·…’×▸✓✗╸\u00a0", ["-", "-", "-", "...", "'", "x", ">", "+", "x", "-", " "])),
    **dict.fromkeys("─━", "-"),
    **dict.fromkeys("│┃", "|"),
    **dict.fromkeys("╭╮╰╯├┤┬┴┼", "+"),
    **dict(zip("▁▂▃▄▅▆▇█", "12345678")),
    "±": "+-",
}


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replacements for characters that the terminal's encoding does not have."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(each, "?") for each in error.object[error.start : error.end]), error.end


def prepare() -> None:
    """Make the streams of this process accept all output; called before anything is printed."""
    codecs.register_error("drcl", _plain)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed before we started
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="drcl")


class Screen(Console):
    """A console on which no text can control the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text, _KEPT), segment.style)


def say(text: object, end: str = "\n", err: bool = False) -> None:
    """Print a line unchanged, for pipes and files."""
    stream = sys.stderr if err else sys.stdout
    stream.write(clean(str(text), _KEPT) + end)
    stream.flush()


def console(stderr: bool = False) -> Console:
    """A fresh console, so that a redirected stdout is respected. If several processes train one run together, only
    the first one prints."""
    stream = sys.stderr if stderr else sys.stdout
    width = None
    if not stream.isatty() and "COLUMNS" not in os.environ:
        width = max(_PIPED_WIDTH, shutil.get_terminal_size().columns)
    return Screen(stderr=stderr, highlight=False, width=width, quiet=not stderr and os.environ.get("RANK", "0") != "0")


def fail(sentence: object, code: int = FAILURE) -> NoReturn:
    """Print what is wrong to stderr and exit."""
    to = console(stderr=True)
    to.print(Text.assemble(("drcl: ", "bold red"), str(sentence)), soft_wrap=not to.is_terminal)
    raise typer.Exit(code)


@contextmanager
def notes(to: Console) -> Iterator[None]:
    """Show each warning once, as a plain note above a live display."""
    seen: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        words = reason(message) if isinstance(message, Warning) else str(message)
        if words not in seen:
            seen.add(words)
            to.print(Text.assemble(("note: ", "yellow"), words), soft_wrap=not to.is_terminal)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.showwarning = show
        yield


@contextmanager
def told(code: int, *kinds: type[Exception]) -> Iterator[None]:
    """Turn exceptions of these kinds (all, if none is named) into a sentence. DRCL_DEBUG=1 shows the traceback."""
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        if os.environ.get("DRCL_DEBUG") or (kinds and not isinstance(error, kinds)):
            raise
        fail(reason(error), code)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which a batch system sends before it kills a process."""


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second signal ends the program at once
    raise Terminated


@contextmanager
def stoppable(words: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block cleanly, with a message that says how to continue."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _terminate) if main else None
    try:
        yield
    except KeyboardInterrupt as stop:
        console().print(Text(f"\n{words()}", style="yellow"), soft_wrap=True)
        raise typer.Exit(TERMINATED if isinstance(stop, Terminated) else INTERRUPTED) from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)
