"""Unpacking tar and zip archives from strangers: nothing lands outside, and nothing without end."""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from drcl.lab.data.errors import DataError

CHUNK = 1 << 20
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, OSError, RuntimeError)


@dataclass(frozen=True)
class Limits:
    """How much an archive may become. The default fits ImageNet, the largest set read here."""

    bytes: int = 200 << 30
    files: int = 3_000_000


def is_archive(path: Path) -> bool:
    """Whether this is a tar (compressed or not) or zip file. A lone .gz file is not an archive."""
    if not path.is_file():
        return False
    try:
        return zipfile.is_zipfile(path) or tarfile.is_tarfile(path)
    except DAMAGE:
        return False


def unpack(archive: Path, target: Path, keep: str = "", limits: Limits | None = None) -> int:
    """Unpack into ``target`` and return the number of files; with ``keep``, only what lies in that folder.

    An absolute name, a name with ``..``, a link, a device, or more than ``limits`` refuses the whole archive.
    """
    limits = limits or Limits()
    if zipfile.is_zipfile(archive):
        return _guarded(archive.name, _zip_members(archive), target, keep, limits)
    return _guarded(archive.name, _tar_members(archive), target, keep, limits)


def unpack_stream(name: str, stream: IO[bytes], target: Path, keep: str = "") -> int:
    """Like ``unpack``, for a tar file that comes through a pipe."""
    return _guarded(name, _tar_members(stream), target, keep, Limits())


@dataclass(frozen=True)
class _Member:
    name: str
    size: int
    kind: str  # "file", "folder", or what makes it unwelcome
    content: IO[bytes] | None


def _guarded(archive: str, members: Iterator[_Member], target: Path, keep: str, limits: Limits) -> int:
    try:
        return _write(archive, members, target, keep, limits)
    except DataError:
        raise
    except DAMAGE as broken:
        raise DataError(f"{archive} is damaged, truncated or not an archive ({broken}); fetch it again.") from broken


def _write(archive: str, members: Iterator[_Member], target: Path, keep: str, limits: Limits) -> int:
    inside = PurePosixPath(keep)
    files = total = 0
    for member in members:
        path = _safe(archive, member)
        if member.kind == "folder":
            continue
        files += 1
        if files > limits.files:
            raise DataError(f"{archive} holds more than {limits.files:,} files; it is not unpacked.")
        if total + member.size > limits.bytes:
            raise DataError(f"{archive} unpacks to more than {limits.bytes:,} bytes; it is not unpacked.")
        if not path.is_relative_to(inside):
            continue
        output = target / path.relative_to(inside)
        output.parent.mkdir(parents=True, exist_ok=True)
        assert member.content is not None
        with member.content as source, output.open("wb") as sink:
            while chunk := source.read(CHUNK):
                total += len(chunk)  # counted as it comes: a zip may lie about its sizes
                if total > limits.bytes:
                    raise DataError(f"{archive} unpacks to more than {limits.bytes:,} bytes; it is not unpacked.")
                sink.write(chunk)
    return files


def _safe(archive: str, member: _Member) -> PurePosixPath:
    name = member.name
    path = PurePosixPath(name)
    drive = len(name) > 1 and name[1] == ":"
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or drive:
        raise DataError(f"{archive} wants to write to {name!r}, outside its own folder; it is not unpacked.")
    if member.kind not in ("file", "folder"):
        raise DataError(f"{archive} contains {member.kind} ({name!r}); it is not unpacked.")
    return path


def _tar_members(source: Path | IO[bytes]) -> Iterator[_Member]:
    if isinstance(source, Path):
        opened = tarfile.open(source, "r:*")  # noqa: SIM115 (closed by the with below)
    else:
        opened = tarfile.open(fileobj=source, mode="r|*")  # noqa: SIM115
    with opened as archive:
        for info in archive:
            if info.isfile():
                yield _Member(info.name, info.size, "file", archive.extractfile(info))
            else:
                kind = "folder" if info.isdir() else "a link" if info.issym() or info.islnk() else "a device"
                yield _Member(info.name, 0, kind, None)


def _zip_members(path: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            mode = info.external_attr >> 16
            if info.is_dir():
                yield _Member(info.filename, 0, "folder", None)
            elif mode & 0o170000 == 0o120000:
                yield _Member(info.filename, 0, "a link", None)
            else:
                yield _Member(info.filename, info.file_size, "file", archive.open(info))
