"""Archives from strangers: nothing escapes, nothing grows without end, and the refusal says why."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import pytest

from drcl.lab.data import DataError
from drcl.lab.data.formats.zips import members
from drcl.lab.data.place import unpack_into
from drcl.lab.data.unpack import Limits, is_archive, unpack, unpack_stream


def tar_with(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def everything_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_good_tar_is_unpacked(tmp_path: Path, mode: str) -> None:
    with tarfile.open(tmp_path / "a.tar", mode) as archive:
        archive.addfile(member("set", tarfile.DIRTYPE))
        info = member("set/deep/one.bin")
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
    assert is_archive(tmp_path / "a.tar")
    assert unpack(tmp_path / "a.tar", tmp_path / "out") == 1
    assert (tmp_path / "out" / "set" / "deep" / "one.bin").read_bytes() == b"abc"


def test_only_the_wanted_folder_is_kept(tmp_path: Path) -> None:
    path = tar_with(tmp_path / "a.tgz", (member("package/data/x"), b"x"), (member("package/run.sh"), b"rm"))
    unpack(path, tmp_path / "out", keep="package/data")
    assert everything_below(tmp_path / "out") == ["x"]


@pytest.mark.parametrize("name", ["../escape", "good/../../escape", "/escape", "..\\escape", "C:/escape"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_names_that_escape_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    archive = tmp_path / "inner" / f"a.{kind}"
    archive.parent.mkdir()
    if kind == "tar":
        tar_with(archive, (member(name), b"evil"))
    else:
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr(name, b"evil")
    with pytest.raises(DataError, match=r"wants to write to .* outside its own folder; it is not unpacked"):
        unpack(archive, tmp_path / "inner" / "out")
    assert [path for path in everything_below(tmp_path) if "escape" in path] == []


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_links_are_refused(tmp_path: Path, kind: bytes) -> None:
    secret = tmp_path / "secret"
    secret.write_text("old")
    path = tar_with(tmp_path / "a.tgz", (member("x", kind, str(secret)), b""), (member("x"), b"new"))
    with pytest.raises(DataError, match=r"contains a link \('x'\)"):
        unpack(path, tmp_path / "out")
    assert secret.read_text() == "old"


def test_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("x")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match="contains a link"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


def test_devices_are_refused(tmp_path: Path) -> None:
    path = tar_with(tmp_path / "a.tgz", (member("pipe", tarfile.FIFOTYPE), b""))
    with pytest.raises(DataError, match="contains a device"):
        unpack(path, tmp_path / "out")


def test_a_bomb_stops_at_the_limit(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(3_000_000))
    assert (tmp_path / "a.zip").stat().st_size < 10_000
    with pytest.raises(DataError, match="unpacks to more than 1,000,000 bytes"):
        unpack(tmp_path / "a.zip", tmp_path / "out", limits=Limits(bytes=1_000_000))
    path = tar_with(tmp_path / "a.tgz", (member("a"), bytes(700_000)), (member("b"), bytes(700_000)))
    with pytest.raises(DataError, match="unpacks to more than 1,000,000 bytes"):
        unpack(path, tmp_path / "out", limits=Limits(bytes=1_000_000))


def test_too_many_files(tmp_path: Path) -> None:
    path = tar_with(tmp_path / "a.tgz", *[(member(str(i)), b"") for i in range(11)])
    with pytest.raises(DataError, match="more than 10 files"):
        unpack(path, tmp_path / "out", limits=Limits(files=10))


@pytest.mark.parametrize("kind", ["tar", "zip", "text", "empty"])
def test_damage_is_a_sentence(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    noise = os.urandom(200_000)
    if kind == "tar":
        tar_with(path, (member("x"), noise))
        path.write_bytes(path.read_bytes()[:100_000])
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x", noise)
        content = bytearray(path.read_bytes())
        content[1000:2000] = bytes(1000)
        path.write_bytes(content)
    else:
        path.write_bytes(b"" if kind == "empty" else b"not an archive at all")
    with pytest.raises(DataError, match=r"a is damaged, truncated or not an archive"):
        unpack(path, tmp_path / "out")


def test_a_lone_gzip_file_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"\0\0\x08\x03" + bytes(4000)))
    assert not is_archive(tmp_path / "x.gz")
    assert not is_archive(tmp_path / "absent")


PACKERS = {"plain": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """The 512 bytes before a member, which may announce any size, a negative one too."""
    info = member(name, kind)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def refusal(path: Path, target: Path, most: int = 16 << 20) -> str:
    tracemalloc.start()
    try:
        with pytest.raises(DataError) as refused:
            unpack(path, target)
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    return str(refused.value)


END = bytes(1024)
LYING = {
    "a long name of 7 gigabytes": header("x", 7 << 30, tarfile.GNUTYPE_LONGNAME) + bytes(512) + END,
    "attributes of 7 gigabytes": header("x", 7 << 30, tarfile.XHDTYPE) + bytes(512) + END,
    "attributes of 7 gigabytes for all": header("x", 7 << 30, tarfile.XGLTYPE) + bytes(512) + END,
    "a long name of negative length": header("x", -512, tarfile.GNUTYPE_LONGNAME) + bytes(512) + END,
    "a file of negative length": header("x", -512) + header("y", 0) + END,
    "a folder of negative length": header("x", -1024, tarfile.CONTTYPE) + END,
    "a file of 7 gigabytes": header("x", 7 << 30) + bytes(512) + END,
    "attributes of attributes": header("x", 512, tarfile.XHDTYPE) * 3000 + END,
    "a sparse file": header("x", 512, tarfile.GNUTYPE_SPARSE) + bytes(512) + END,
}


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("lie", LYING)
def test_headers_that_lie(tmp_path: Path, lie: str, packer: str) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(PACKERS[packer](LYING[lie]))
    assert refusal(path, tmp_path / "out").startswith("a.tar ")
    is_archive(path)
    with pytest.raises(DataError):
        unpack_stream("a.tar", io.BytesIO(LYING[lie]), tmp_path / "out")


@pytest.mark.parametrize("packer", PACKERS)
def test_an_archive_that_ends_too_early_is_not_a_whole_one(tmp_path: Path, packer: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in "abc":
            info = member(name)
            info.size = 512
            archive.addfile(info, io.BytesIO(name.encode() * 512))
    whole = buffer.getvalue()
    path = tmp_path / "a.tar"
    path.write_bytes(PACKERS[packer](whole))
    assert unpack(path, tmp_path / "out") == 3
    for cut in (512, 1024, 1500, 2048, 3000, 3072):  # between two files, inside one, inside a header
        path.write_bytes(PACKERS[packer](whole[:cut]))
        assert "is damaged, truncated or not an archive" in refusal(path, tmp_path / "out")
    damaged = bytearray(whole)
    damaged[1024 + 3] ^= 1  # in the name of the second file
    path.write_bytes(PACKERS[packer](bytes(damaged)))
    assert "is damaged, truncated or not an archive" in refusal(path, tmp_path / "out")


@pytest.mark.parametrize("packer", ["gz", "bz2", "xz"])
def test_every_damaged_byte_of_a_compressed_archive_is_noticed(tmp_path: Path, packer: str) -> None:
    """Every byte that matters: bz2 ends with up to seven bits that nothing reads."""
    content = os.urandom(2000)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        info = member("a")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    good = PACKERS[packer](buffer.getvalue())
    path = tmp_path / "a.tar"
    for at in range(0, len(good), 13):
        if packer == "gz" and at in range(4, 10):
            continue  # the time it was made, and on what system
        bad = bytearray(good)
        bad[at] ^= 4
        path.write_bytes(bad)
        if packer == "bz2" and at == len(good) - 1:
            with contextlib.suppress(DataError):
                unpack(path, tmp_path / "last")
                assert (tmp_path / "last" / "a").read_bytes() == content
            continue
        with pytest.raises(DataError):
            unpack(path, tmp_path / "out")


def test_an_xz_header_that_asks_for_gigabytes(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(member("a"), io.BytesIO())
    content = bytearray(lzma.compress(buffer.getvalue(), filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 4096}]))
    at = content.index(b"\x21\x01\x00")  # the filter, one byte of properties: the dictionary's size
    content[at + 2] = 40  # 4 gigabytes
    content[24 - 4 : 24] = struct.pack("<I", zlib.crc32(content[12:20]))
    (tmp_path / "a.tar").write_bytes(content)
    assert "a.tar" in refusal(tmp_path / "a.tar", tmp_path / "out")


@pytest.mark.parametrize("kind", [zipfile.ZIP_LZMA])
def test_a_zip_that_is_packed_strangely(tmp_path: Path, kind: int) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", kind) as archive:
        archive.writestr("x", b"abc")
    assert "packed or encrypted in an unusual way" in refusal(tmp_path / "a.zip", tmp_path / "out")


def test_names_that_cannot_be_written(tmp_path: Path) -> None:
    path = tar_with(tmp_path / "a.tgz", (member("x" * 300), b"abc"))
    assert "which cannot be written here" in refusal(path, tmp_path / "out")
    path = tar_with(tmp_path / "a.tgz", (member("a"), b"abc"), (member("a/b"), b"abc"))
    assert "which cannot be written here" in refusal(path, tmp_path / "out")


def test_a_small_archive_does_not_become_a_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drcl.lab.data.unpack.ALWAYS_FINE", 1 << 20)
    path = tar_with(tmp_path / "a.tgz", (member("a"), bytes(4 << 20)))
    assert "unpacks to more than 1,048,576 bytes" in refusal(path, tmp_path / "out")


def test_a_zip_whose_directory_hides_entries(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in "abc":
            archive.writestr(name, b"abc")
    good = path.read_bytes()
    at = good.rindex(b"PK\x01\x02", 0, good.rindex(b"PK\x01\x02"))  # the entry before the last
    path.write_bytes(good[: at + 32] + b"\x2f" + good[at + 33 :])  # a comment as long as the last entry
    assert "does not have as many entries as it announces" in refusal(path, tmp_path / "out")
    end = good.rindex(b"PK\x05\x06")
    path.write_bytes(good[:end] + good[end : end + 12] + bytes(4) + struct.pack("<I", end) + good[end + 20 :])
    assert "a.zip" in refusal(path, tmp_path / "out")


@pytest.mark.parametrize("count", [65_534, 65_535, 65_536, 65_540])
def test_a_zip_of_many_files_is_whole(tmp_path: Path, count: int) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for i in range(count):
            archive.writestr(zipfile.ZipInfo(str(i)), b"")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert len(members(archive, tmp_path / "a.zip")) == count


def test_an_archive_without_files_is_a_sentence(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w"):
        pass
    with pytest.raises(DataError, match=r"a\.zip holds no files; get it again"):
        unpack_into(tmp_path / "a.zip", tmp_path / "out")
