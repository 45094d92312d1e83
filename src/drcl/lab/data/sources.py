"""Where a data set can be fetched from: its official address, or a package that carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Download:
    """Files at an official address; archives are unpacked. ``md5`` is the publisher's own checksum."""

    files: Mapping[str, str]  # file name -> address
    md5: Mapping[str, str] = field(default_factory=dict)
    first_bytes: int | None = None  # fetch only the head of each file, for sets far larger than needed


@dataclass(frozen=True)
class Npm:
    """A package fetched with ``npm pack``; ``keep`` is the folder inside it that holds the data."""

    package: str
    version: str
    sha256: str
    keep: str


@dataclass(frozen=True)
class Debian:
    """A package fetched with ``apt-get download``; ``keep`` is the folder inside it that holds the data."""

    package: str
    keep: str


Source = Download | Npm | Debian
