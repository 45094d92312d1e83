"""Reading files from strangers: whatever error a parser raises, the user gets one sentence about the file."""

from __future__ import annotations

import errno
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drcl.lab.common.words import reason
from drcl.lab.data.errors import DataError

# Errors whose message is about the file. That of a KeyError or TypeError is about the parser, so it is not shown.
TELLING = (OSError, ValueError, SyntaxError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError)


@contextmanager
def reading(path: Path | str, fault: str, remedy: str = "get it again") -> Iterator[None]:
    """Turn any error inside into a DataError: ``path`` ``fault`` (why); ``remedy``.

    numpy, Pillow, zlib, tarfile and json raise nearly every kind of error on a damaged file, so every kind is
    caught. Wrap their calls in it and nothing else.
    """
    try:
        yield
    except DataError:
        raise
    except MemoryError as full:
        raise DataError(f"{path} needs more memory than there is; {remedy}, or use a machine with more.") from full
    except Exception as broken:
        if isinstance(broken, OSError) and broken.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(f"{path} does not fit on the disk ({broken.strerror}); make room there.") from broken
        if isinstance(broken, OSError) and broken.errno is not None:
            raise DataError(f"{path} cannot be read ({broken.strerror}).") from broken
        words = reason(broken)
        tells = isinstance(broken, TELLING) and " at 0x" not in words  # the address of some object
        why = f" ({short(words)})" if tells else ""
        raise DataError(f"{path} {fault}{why}; {remedy}.") from broken


def short(text: str, most: int = 160) -> str:
    """The beginning of a text from a file, so that a huge line does not become a huge message."""
    return text if len(text) <= most else f"{text[:most]}..."
