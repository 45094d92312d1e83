"""LEAF's CelebA: who smiles, celebrity by celebrity, from LEAF's JSON and the aligned images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from drcl.lab.data.base import DataSet, Split
from drcl.lab.data.errors import DataError
from drcl.lab.data.files import there
from drcl.lab.data.folder import places
from drcl.lab.data.formats import leaf
from drcl.lab.data.guard import short
from drcl.lab.data.images import read_images
from drcl.lab.data.registry import data_set

IMAGES = "img_align_celeba"


def _images(root: Path) -> Path | None:
    layouts = ("raw", "data/raw", "leaf/data/celeba/data/raw", "celeba/data/raw")
    for folder in [*places(root, "leaf-celeba", *layouts), *places(root, "celeba", "Img")]:
        for inner in (folder / IMAGES / IMAGES, folder / IMAGES):
            if inner.is_dir():
                return inner
    return None


@data_set(
    "leaf-celeba",
    "smiling, by celebrity",
    classes="2",
    images="sampled",
    size="32x32",
    present=lambda root: leaf.present(root, "leaf-celeba", "celeba") and _images(root) is not None,
    decodes=True,
    wanted="run data/celeba/preprocess.sh of https://github.com/TalwalkarLab/leaf, take its data/train, "
    f"data/test and {IMAGES} from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
)
def leaf_celeba(root: Path, size: int = 32, fit: str = "crop", budget: int | None = None) -> DataSet:
    """Images [N, 3, size, size] and labels 0 (not smiling) or 1 (smiling); groups are the celebrities."""
    home = _images(root)
    assert home is not None
    rows = {part: leaf.read_leaf(leaf.json_files(root, "leaf-celeba", "celeba", part)) for part in leaf.PARTS}
    people = {user: i for i, user in enumerate(sorted({user for part in rows.values() for user in part.user}))}
    splits = {}
    for part, samples in rows.items():
        if not all(isinstance(name, str) for name in samples.x):
            raise DataError(f"leaf-celeba {part}: an input is not the name of a picture; get it again.")
        paths = [home / Path(name).name for name in samples.x]
        absent = next((path for path in paths if not there(path)), None)
        if absent is not None:
            raise DataError(f"leaf-celeba {part} names {short(absent.name)}, which is not in {home}.")
        labels = np.array(samples.y, np.int64)
        if not np.isin(labels, (0, 1)).all():
            raise DataError(f"leaf-celeba {part} has labels {labels.min()} to {labels.max()}; wanted 0 and 1.")
        images = read_images(paths, root, f"leaf-celeba {part}", size=size, fit=fit, budget=budget)
        splits[part] = Split(images, labels, np.array([people[user] for user in samples.user], np.int64))
    return DataSet("leaf-celeba", splits["train"], splits["test"], ("not smiling", "smiling"))
