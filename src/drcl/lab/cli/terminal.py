"""What all commands share: the console, and errors told in one sentence with a meaningful exit code."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text

from drcl.lab.common.words import reason

USAGE, FAILURE, INTERRUPTED = 2, 1, 130
_PIPED_WIDTH = 120  # a table that goes to a file should not be folded to the 80 columns rich assumes there


def console(stderr: bool = False) -> Console:
    """A console for now: made when asked for, so that a redirected stdout is seen. Of several processes that train one
    run together the first one speaks."""
    stream = sys.stderr if stderr else sys.stdout
    width = None
    if not stream.isatty() and "COLUMNS" not in os.environ:
        width = max(_PIPED_WIDTH, shutil.get_terminal_size().columns)
    return Console(stderr=stderr, highlight=False, width=width, quiet=not stderr and os.environ.get("RANK", "0") != "0")


def fail(sentence: object, code: int = FAILURE) -> NoReturn:
    """Tell what is wrong on stderr and leave."""
    to = console(stderr=True)
    to.print(Text.assemble(("drcl: ", "bold red"), str(sentence)), soft_wrap=not to.is_terminal)
    raise typer.Exit(code)


@contextmanager
def notes(to: Console) -> Iterator[None]:
    """Warnings as notes in the reader's language, above a live display; each one once."""
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
    """Exceptions of these kinds (all, if none is named) become a sentence. DRCL_DEBUG=1 shows where they came from."""
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        if os.environ.get("DRCL_DEBUG") or (kinds and not isinstance(error, kinds)):
            raise
        fail(reason(error), code)
