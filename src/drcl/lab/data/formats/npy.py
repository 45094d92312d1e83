"""numpy's .npy and .npz files, read here because ``numpy.load`` reserves memory for whatever a header announces.

An array is read only if its header agrees with the bytes that the file really has. Pickles are never opened.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from drcl.lab.data.errors import DataError
from drcl.lab.data.files import LARGEST, most_unpacked, read_stream, there
from drcl.lab.data.formats import zips
from drcl.lab.data.guard import reading

LONGEST_HEADER = 10_000  # as in numpy; that of a plain array has about a hundred bytes
KINDS = "biufUS"  # truth values, whole numbers, floats, text


@dataclass(frozen=True)
class Header:
    """What a .npy file says about itself."""

    shape: tuple[int, ...]
    dtype: np.dtype
    columns_first: bool
    length: int  # bytes before the values

    @property
    def size(self) -> int:
        """Bytes of all values, exact even where a 64-bit number would overflow."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: IO[bytes], what: str) -> Header:
    """The header at the beginning of ``file``, of an array of plain numbers or text."""
    start = file.read(8)
    if len(start) < 8 or start[:6] != b"\x93NUMPY" or start[6] not in (1, 2):
        raise DataError(f"{what} is not a .npy file; get it again, or save plain numbers with numpy.")
    count = file.read(2 if start[6] == 1 else 4)
    length = int.from_bytes(count, "little")
    if length > LONGEST_HEADER:
        raise DataError(f"{what} has a header of {length:,} bytes; that of a plain array has about 100. Save it again.")
    with reading(what, "has a damaged header", "save it again with numpy"):
        whole = io.BytesIO(count + file.read(length))
        read = np.lib.format.read_array_header_1_0 if start[6] == 1 else np.lib.format.read_array_header_2_0
        shape, columns_first, dtype = read(whole)
    if dtype.hasobject:
        raise DataError(
            f"{what} holds a pickle, and opening a pickle can run code hidden in it; "
            "save plain number arrays (and class names as a string array) with numpy.savez."
        )
    if dtype.kind not in KINDS or not dtype.itemsize:
        raise DataError(f"{what} has values of type {dtype}; wanted numbers or text. Convert it and save it again.")
    if any(side < 0 for side in shape) or len(shape) > 32:
        raise DataError(f"{what} announces the impossible shape {shape}; save it again.")
    return Header(shape, dtype, columns_first, 8 + len(count) + length)


def read_npy(path: Path, rows: int | None = None) -> np.ndarray:
    """The array in a .npy file, or its first ``rows``."""
    if not there(path):
        raise DataError(f"{path} is not a file that can be read; get it again.")
    with reading(path, "is not a readable .npy file", "fetch it again"), path.open("rb") as file:
        header = read_header(file, str(path))
        held = path.stat().st_size - header.length
        if header.size != held:
            raise DataError(
                f"{path} is not a readable .npy file: it announces {_words(header)} = {header.size:,} bytes "
                f"but holds {held:,}; fetch it again."
            )
        if rows is None or not header.shape:
            return _array(header, read_stream(file, header.size))
        if header.columns_first:
            return _array(header, read_stream(file, header.size))[:rows]
        first = Header((min(rows, header.shape[0]), *header.shape[1:]), header.dtype, False, header.length)
        return _array(first, bytearray(file.read(first.size)))


def map_npy(path: Path) -> np.ndarray:
    """The array in a .npy file as a copy-on-write map: the file is safe, and torch gets writable memory."""
    with reading(path, "is not a readable .npy file"), path.open("rb") as file:
        header = read_header(file, str(path))
        if header.size != path.stat().st_size - header.length or not header.size or header.columns_first:
            raise DataError(f"{path} is not a whole .npy file; get it again.")
        return np.memmap(path, header.dtype, "c", header.length, header.shape)


def read_npz(path: Path, wanted: Collection[str] | None = None) -> tuple[dict[str, np.ndarray], list[str]]:
    """The arrays of an .npz file that are ``wanted`` (None: all), and the names of all it has."""
    with (
        reading(path, "is not a readable .npz file", "save it again with numpy.savez"),
        zipfile.ZipFile(path) as archive,
    ):
        everything = zips.members(archive, path)
        members = [info for info in everything if info.filename.endswith(".npy")]
        names = [info.filename.removesuffix(".npy") for info in members]
        if len(set(names)) != len(names):
            raise DataError(f"{path} holds two arrays of one name; save it again with numpy.savez.")
        arrays, left = {}, LARGEST
        for info in everything:
            archive.open(info).close()  # checks its name against the directory, which has no checksum
        for name, info in zip(names, members, strict=True):
            if wanted is None or name in wanted:
                arrays[name] = _member(archive, info, path, name, left)
                left -= arrays[name].nbytes
    return arrays, names


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, name: str, left: int) -> np.ndarray:
    what = f"{name} in {path}"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
        raise DataError(f"{what} is packed or encrypted in an unusual way; save it again with numpy.savez.")
    packed = min(info.compress_size, path.stat().st_size)
    most = packed if info.compress_type == zipfile.ZIP_STORED else most_unpacked(packed, left)
    if info.file_size > min(most, left):
        raise DataError(
            f"{what} announces {info.file_size:,} bytes in {packed:,} packed ones, far more than it should; "
            "it is not read. If it is right, save it uncompressed with numpy.savez."
        )
    with archive.open(info) as file:
        header = read_header(file, what)
        if header.length + header.size != info.file_size:
            raise DataError(
                f"{what} announces {_words(header)} = {header.size:,} bytes but holds "
                f"{info.file_size - header.length:,}; save it again with numpy.savez."
            )
        return _array(header, read_stream(file, header.size))  # read to the end, where zipfile checks the checksum


def _words(header: Header) -> str:
    return f"{header.dtype} {'x'.join(map(str, header.shape)) or 'one value'}"


def _array(header: Header, content: bytearray) -> np.ndarray:
    flat = np.frombuffer(content, header.dtype)
    if header.columns_first:
        return flat.reshape(header.shape[::-1]).transpose()
    return flat.reshape(header.shape)
