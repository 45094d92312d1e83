"""Unpack tar and zip archives from strangers: nothing outside the folder, nothing endless, nothing incomplete."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from drcl.lab.data.errors import DataError
from drcl.lab.data.files import RATIO, Stream
from drcl.lab.data.formats import zips
from drcl.lab.data.guard import reading, short

CHUNK = 1 << 20
LONGEST_HEADER = 1 << 16  # bytes of one header in a tar file, including long names and attributes
XZ_MEMORY = 128 << 20  # slightly more than `xz -9` needs
ALWAYS_FINE = 1 << 30  # an archive that grows beyond this and beyond RATIO times its size is refused as a bomb
DAMAGE = "is damaged, truncated or not an archive"


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
        with reading(path, DAMAGE):
            return zipfile.is_zipfile(path) or any(True for _ in _tar_members(path))
    except DataError:
        return False


def unpack(archive: Path, target: Path, keep: str = "", limits: Limits | None = None) -> int:
    """Unpack into ``target`` and return the number of files; with ``keep``, only what lies in that folder.

    An absolute name, a name with ``..``, a link, a device, or more than ``limits`` refuses the whole archive.
    """
    limits = limits or Limits()
    with reading(archive.name, DAMAGE, "fetch it again"):
        limits = Limits(min(limits.bytes, max(ALWAYS_FINE, RATIO * archive.stat().st_size)), limits.files)
        members = _zip_members(archive) if zipfile.is_zipfile(archive) else _tar_members(archive)
        return _write(archive.name, members, target, keep, limits)


def unpack_stream(name: str, stream: IO[bytes], target: Path, keep: str = "") -> int:
    """Like ``unpack``, for a tar file that comes through a pipe, which is read to its end."""
    with reading(name, DAMAGE, "fetch it again"):
        return _write(name, _tar_stream(stream), target, keep, Limits())


@dataclass(frozen=True)
class _Member:
    name: str
    size: int
    kind: str  # "file", "folder", or the reason to refuse it
    content: IO[bytes] | None


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
        assert member.content is not None
        with member.content as source, _created(target / path.relative_to(inside), archive) as sink:
            while chunk := source.read(CHUNK):
                total += len(chunk)  # counted as it comes: a zip may lie about its sizes
                if total > limits.bytes:
                    raise DataError(f"{archive} unpacks to more than {limits.bytes:,} bytes; it is not unpacked.")
                sink.write(chunk)
    return files


def _created(path: Path, archive: str) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("wb")
    except (OSError, ValueError) as refused:
        why = getattr(refused, "strerror", None) or "the name is not allowed"
        raise DataError(f"{archive} holds {short(path.name)!r}, which cannot be written here ({why}).") from refused


def _safe(archive: str, member: _Member) -> PurePosixPath:
    name = member.name
    path = PurePosixPath(name)
    drive = len(name) > 1 and name[1] == ":"
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or drive:
        raise DataError(f"{archive} wants to write to {short(name)!r}, outside its own folder; it is not unpacked.")
    if member.kind not in ("file", "folder"):
        raise DataError(f"{archive} contains {member.kind} ({short(name)!r}); it is not unpacked.")
    return path


class _Xz:
    """An .xz stream with a bound on its memory, which a damaged header may announce as gigabytes."""

    def __init__(self, file: Stream) -> None:
        self._file = file
        self._decoder = lzma.LZMADecompressor(memlimit=XZ_MEMORY)

    def read(self, size: int, /) -> bytes:
        while not self._decoder.eof:
            packed = self._file.read(1 << 16) if self._decoder.needs_input else b""
            if self._decoder.needs_input and not packed:
                raise EOFError("it ends too early")
            if content := self._decoder.decompress(packed, size):
                return content
        return b""


class _Forward:
    """A stream as tarfile wants it, read once from front to back, with a bound on what it may ask for at once."""

    def __init__(self, source: Stream) -> None:
        self._source = source
        self._at = 0
        self.most = LONGEST_HEADER
        self.last = b""  # the last bytes read, to check how the archive ends

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= self.most:
            raise ValueError("it announces a header that no tar file has")
        parts, left = [], size
        while left and (part := self._source.read(left)):
            parts.append(part)
            left -= len(part)
        self.last = b"".join(parts)
        self._at += len(self.last)
        return self.last

    def tell(self) -> int:
        return self._at

    def seek(self, position: int) -> int:
        if position < self._at:
            raise ValueError("it announces a negative size")
        while self._at < position and self._skip(min(CHUNK, position - self._at)):
            pass
        return self._at

    def drain(self) -> None:
        """Read to the end, where gzip, bzip2 and xz compare their checksums."""
        while self._skip(CHUNK):
            pass

    def _skip(self, size: int) -> int:
        skipped = len(self._source.read(size))
        self._at += skipped
        return skipped


def _tar_members(path: Path) -> Iterator[_Member]:
    with path.open("rb") as file:
        start = file.read(6)
        file.seek(0)
        source: Stream = file
        if start.startswith(b"\x1f\x8b"):
            source = gzip.GzipFile(fileobj=file)
        elif start.startswith(b"BZh"):
            source = bz2.BZ2File(file)
        elif start == b"\xfd7zXZ\0":
            source = _Xz(file)
        yield from _tar_stream(source)


def _tar_stream(source: Stream) -> Iterator[_Member]:
    stream = _Forward(source)
    with tarfile.open(fileobj=stream, mode="r:") as archive:  # type: ignore[call-overload]
        while True:
            stream.most = LONGEST_HEADER
            info = archive.next()
            if info is None:
                break
            archive.members.clear()  # it would keep all of them
            stream.most = CHUNK
            yield _tar_member(archive, info)
        # tarfile takes a damaged header for the end, and does not notice an archive cut between two files.
        if stream.last.strip(b"\0") or not stream.last:
            raise EOFError("it ends without the mark of its end")
        stream.drain()


def _tar_member(archive: tarfile.TarFile, info: tarfile.TarInfo) -> _Member:
    if info.size < 0:
        raise ValueError("it announces a negative size")
    if info.issparse():
        return _Member(info.name, 0, "a sparse file", None)
    if info.isfile():
        return _Member(info.name, info.size, "file", archive.extractfile(info))
    kind = "folder" if info.isdir() else "a link" if info.issym() or info.islnk() else "a device"
    return _Member(info.name, 0, kind, None)


def _zip_members(path: Path) -> Iterator[_Member]:
    known = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)  # LZMA may ask for gigabytes of memory
    with zipfile.ZipFile(path) as archive:
        for info in zips.members(archive, path):
            mode = info.external_attr >> 16
            if info.is_dir():
                yield _Member(info.filename, 0, "folder", None)
            elif mode & 0o170000 == 0o120000:
                yield _Member(info.filename, 0, "a link", None)
            elif info.compress_type not in known or info.flag_bits & 1:
                yield _Member(info.filename, 0, "a file packed or encrypted in an unusual way", None)
            else:
                yield _Member(info.filename, info.file_size, "file", archive.open(info))
