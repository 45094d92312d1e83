"""What all commands share: the console, and errors told in one sentence with a meaningful exit code."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text

from drcl.lab.words import reason

USAGE, FAILURE, INTERRUPTED = 2, 1, 130
_PIPED_WIDTH = 120  # a table that goes to a file should not be folded to the 80 columns rich assumes there


def console(stderr: bool = False) -> Console:
    """A console for now: made when asked for, so that a redirected stdout is seen."""
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty() or "COLUMNS" in os.environ:
        return Console(stderr=stderr, highlight=False)
    return Console(stderr=stderr, highlight=False, width=max(_PIPED_WIDTH, shutil.get_terminal_size().columns))


def fail(sentence: object, code: int = FAILURE) -> NoReturn:
    """Tell what is wrong on stderr and leave."""
    console(stderr=True).print(Text.assemble(("drcl: ", "bold red"), str(sentence)), soft_wrap=True)
    raise typer.Exit(code)


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
