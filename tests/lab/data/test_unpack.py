"""Archives from strangers: nothing escapes, nothing grows without end, and the refusal says why."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from drcl.lab.data import DataError
from drcl.lab.data.unpack import Limits, is_archive, unpack


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
    import gzip

    (tmp_path / "x.gz").write_bytes(gzip.compress(b"\0\0\x08\x03" + bytes(4000)))
    assert not is_archive(tmp_path / "x.gz")
    assert not is_archive(tmp_path / "absent")
