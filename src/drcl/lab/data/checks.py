"""Is it really that data set? Known SHA-256 sums, sums noted when it was fetched, official counts."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Collection
from pathlib import Path

from drcl.lab.data.base import DataSet
from drcl.lab.data.errors import DataError
from drcl.lab.data.files import inside, read_lines, there
from drcl.lab.data.folder import data_folder
from drcl.lab.data.guard import reading, short
from drcl.lab.data.images import check_kept
from drcl.lab.data.loading import load
from drcl.lab.data.registry import Entry, entry

SUMS = "SHA256SUMS"


def sha256(path: Path, unzip: bool = False) -> str:
    """SHA-256 of a file, or of what a .gz file holds."""
    with (
        reading(path, "is a damaged or truncated gzip file", "delete it and fetch it again"),
        gzip.open(path, "rb") if unzip else path.open("rb") as file,
    ):
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_hashes(known: Entry, folder: Path) -> list[str]:
    """The files in or below ``folder`` that have their known sum; a wrong sum is an error."""
    good = []
    for name, expected in known.hashes.items():
        for path in sorted([*folder.rglob(name), *folder.rglob(f"{name}.gz")]):
            found = sha256(path, unzip=path.suffix == ".gz")
            if found != expected:
                raise DataError(
                    f"{path} has SHA-256 {found}, but {known.name}'s is {expected}; it is damaged or another "
                    f"file: delete it and run `drcl data fetch {known.name}`."
                )
            good.append(path.name)
    return good


def check_counts(known: Entry, data: DataSet) -> None:
    """The official number of images in each split."""
    for split, expected in known.counts.items():
        part = getattr(data, split)
        found = 0 if part is None else len(part)
        if found != expected:
            raise DataError(
                f"{known.name} should have {expected:,} {split} images but has {found:,}; it is incomplete."
            )


def check_staged(known: Entry, stage: Path) -> None:
    """Everything that can be checked quickly before fetched files get their name."""
    good = check_hashes(known, stage / known.name)
    absent = [name for name in known.hashes if name not in good and f"{name}.gz" not in good]
    if absent or not known.present(stage):
        raise DataError(f"what arrived lacks {', '.join(absent) or 'some of the files'}")
    if not known.hashes and not known.decodes and known.counts:
        check_counts(known, known.read(stage))


def write_sums(folder: Path, source: str) -> None:
    """Note every file's SHA-256, in the format of ``sha256sum``, for ``verify`` to compare later."""
    lines = [f"# fetched from: {source}"]
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS):
        lines.append(f"{sha256(path)}  {path.relative_to(folder).as_posix()}")
    (folder / SUMS).write_text("\n".join(lines) + "\n", encoding="utf-8")


def check_sums(folder: Path, known: Collection[str] = ()) -> int:
    """Compare with the noted sums, except of ``known`` good files; return how many are noted."""
    noted = folder / SUMS
    if not noted.is_file():
        return 0
    count = 0
    for line in read_lines(noted):
        if line.startswith("#"):
            continue
        expected, _, name = line.partition("  ")
        if not re.fullmatch("[0-9a-f]{64}", expected):
            raise DataError(f"{noted} is damaged ({short(line)!r} is not a sum and a name); fetch the data set again.")
        path = inside(folder, name, noted)
        if not there(path):
            raise DataError(f"{short(str(path), 300)} was fetched but is no longer there; fetch it again.")
        if path.name not in known and sha256(path) != expected:
            raise DataError(f"{path} has changed since it was fetched; delete it and fetch it again.")
        count += 1
    return count


def verify(name: str, root: str | Path | None = None) -> str:
    """Check data set ``name`` thoroughly; return one line on what was checked, or raise DataError."""
    known = entry(name)
    folder = data_folder(root)
    data = load(name, folder)
    parts = []
    if not known.embedded:
        good = check_hashes(known, folder / name) if (folder / name).is_dir() else []
        count = max(len(good), check_sums(folder / name, good))
        if count:
            parts.append(f"{count} files by SHA-256")
        check_kept(folder, name)
    check_counts(known, data)
    sizes = " + ".join(f"{len(part):,}" for part in (data.train, data.valid, data.test) if part is not None)
    parts.append(f"{sizes} images in {len(data.classes):,} classes")
    return ", ".join(parts)
