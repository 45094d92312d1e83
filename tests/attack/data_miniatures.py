"""A miniature of every data set and every file format, as small as its format allows, for ``test_data_files``."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from drcl.lab.data import images, load
from drcl.lab.data.checks import check_sums, write_sums
from drcl.lab.data.formats.quickdraw_names import NAMES

SEALED = (".gz", ".tgz", ".npz", ".zip", ".png", ".xz", ".bz2", ".sha256")


def by_name(path: Path) -> bool:
    """Whether a format has a checksum over all that it holds, so that no damage can pass as other values."""
    return path.name.endswith(SEALED)


def always(path: Path) -> bool:
    """Sealed by a sum beside it."""
    return True


@dataclass(frozen=True)
class Target:
    """Files that are attacked, and how they are read."""

    name: str
    build: Callable[[Path], None]
    read: Callable[[Path], Any]
    attacked: str = "*"  # which of the files
    sealed: Callable[[Path], bool] = by_name


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def picture(kind: str, seed: int = 0, size: tuple[int, int] = (12, 10), **options: object) -> bytes:
    """A few smooth shapes, so that every compression has something to do."""
    y, x = np.mgrid[: size[1], : size[0]]
    values = np.stack([(x * 20 + seed * 40) % 256, (y * 20) % 256, (x * y) % 256], -1).astype(np.uint8)
    buffer = io.BytesIO()
    image = Image.fromarray(values if kind not in ("GIF", "PGM") else values[..., 0])
    image.save(buffer, "PPM" if kind == "PGM" else kind, **options)
    return buffer.getvalue()


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def idx_set(root: Path, folder: str, names: tuple[str, ...], packed: bool) -> None:
    arrays = (pixels(3, 28, 28), np.array([0, 1, 2]), pixels(2, 28, 28, seed=1), np.array([2, 1]))
    for name, array in zip(names, arrays, strict=True):
        content = gzip.compress(idx(array), mtime=0) if packed else idx(array)
        write(root / folder / (f"{name}.gz" if packed else name), content)


MNIST = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
EMNIST = tuple(
    f"emnist-balanced-{part}-{kind}-ubyte" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")
)


def cifar10(root: Path) -> None:
    for i, file in enumerate((*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")):
        write(root / "cifar10" / file, bytes([i]) + pixels(3072, seed=i).tobytes())


def cifar100(root: Path) -> None:
    for i, file in enumerate(("train.bin", "test.bin")):
        write(root / "cifar100" / file, bytes([i, 5 * i]) + pixels(3072, seed=i).tobytes())
    write(root / "cifar100" / "fine_label_names.txt", "\n".join(f"thing{i}" for i in range(100)))


def arrays(path: Path, save: Callable[..., None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = {"train_images": pixels(4, 6, 5, 3), "test_images": pixels(2, 6, 5, 3, seed=1)}
    labels = {"train_labels": np.array([0, 1, 2, 0]), "test_labels": np.array([1, 2])}
    save(path, **parts, **labels, classes=np.array(["ant", "bee", "cat"]))


def grey_arrays(path: Path, save: Callable[..., None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    images_ = {"train_images": pixels(3, 8, 8) / 255.0, "test_images": pixels(2, 8, 8) / np.float32(255)}
    save(path, **images_, train_labels=np.array([0, 1, 1], np.uint8), test_labels=np.array([1.0, 0.0]))


def quickdraw(root: Path) -> None:
    (root / "quickdraw").mkdir()
    for name in NAMES:
        np.save(root / "quickdraw" / f"{name}.npy", pixels(2, 784))


def gnt(root: Path) -> None:
    for part, writers in (("trn", ("1001", "1002")), ("tst", ("1241",))):
        for i, writer in enumerate(writers):
            content = b""
            for j, character in enumerate("一啊"):
                code = character.encode("gbk")
                content += struct.pack("<I2sHH", 10 + 35, code, 7, 5) + pixels(35, seed=i + j).tobytes()
            write(root / "casia-hwdb" / f"HWDB1.1{part}_gnt" / f"{writer}-c.gnt", content)


def omniglot(root: Path) -> None:
    for part in ("images_background", "images_evaluation"):
        for drawer in (1, 16):
            write(root / "omniglot" / part / "Greek" / "character01" / f"0001_{drawer:02}.png", picture("PNG", drawer))


def tinyimagenet(root: Path) -> None:
    home = root / "tiny-imagenet-200"
    for i, name in enumerate(("n01", "n02")):
        write(home / "train" / name / "images" / "a.JPEG", picture("JPEG", i))
        write(home / "val" / "images" / f"val_{i}.JPEG", picture("JPEG", i + 2))
    write(home / "val" / "val_annotations.txt", "val_0.JPEG\tn02\t0\t0\t1\t1\nval_1.JPEG\tn01\t0\t0\t1\t1\n")
    write(home / "words.txt", "n01\tgoldfish, Carassius\nn02\ttoad\n")


def imagenet_folders(root: Path) -> None:
    home = root / "imagenet"
    write(home / "train" / "n01" / "a.JPEG", picture("JPEG", progressive=True))
    write(home / "train" / "n02" / "b.JPEG", picture("JPEG", 1))
    write(home / "val" / "ILSVRC2012_val_00000001.JPEG", picture("JPEG", 2))
    write(home / "LOC_val_solution.csv", "ImageId,PredictionString\nILSVRC2012_val_00000001,n02 1 2 3 4 \n")


def imagenet_release(root: Path) -> None:
    (root / "imagenet").mkdir()
    for i, file in enumerate((*(f"train_data_batch_{i}" for i in range(1, 11)), "val_data")):
        save = np.savez_compressed if i % 2 else np.savez
        save(root / "imagenet" / f"{file}.npz", data=pixels(1, 3072, seed=i), labels=np.array([i + 1]))
    write(root / "imagenet" / "map_clsloc.txt", "".join(f"n{i:08} {i} thing{i}\n" for i in range(1, 1001)))


def celeba(root: Path) -> None:
    home = root / "celeba"
    names = [f"{i:06}.jpg" for i in (1, 2, 3)]
    for i, name in enumerate(names):
        write(home / "img_align_celeba" / name, picture("JPEG", i))
    write(home / "list_attr_celeba.txt", "3\nYoung Male\n" + "".join(f"{name} 1 -1\n" for name in names))
    write(home / "list_eval_partition.txt", "".join(f"{name} {i}\n" for i, name in enumerate(names)))
    write(home / "identity_CelebA.txt", "".join(f"{name} {i + 70}\n" for i, name in enumerate(names)))


def cub200(root: Path) -> None:
    home = root / "cub200" / "CUB_200_2011"
    for i in (1, 2):
        write(home / "images" / "001.Black_footed_Albatross" / f"{i}.jpg", picture("JPEG", i))
    write(home / "images.txt", "".join(f"{i} 001.Black_footed_Albatross/{i}.jpg\n" for i in (1, 2)))
    write(home / "image_class_labels.txt", "1 1\n2 1\n")
    write(home / "train_test_split.txt", "1 1\n2 0\n")
    write(home / "classes.txt", "1 001.Black_footed_Albatross\n")


def leaf(users: dict[str, tuple[list, list]]) -> str:
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    return json.dumps({"users": list(users), "num_samples": [len(y) for _, y in users.values()], "user_data": data})


def leaf_femnist(root: Path) -> None:
    image = [round(value / 255, 3) for value in pixels(784).tolist()]
    write(root / "leaf-femnist" / "train" / "a.json", leaf({"f01": ([image], [0]), "f02": ([image], [61])}))
    content = leaf({"f03": ([image], [5])}).encode()
    write(root / "leaf-femnist" / "test" / "a.json.gz", gzip.compress(content, mtime=0))


def leaf_celeba(root: Path) -> None:
    home = root / "leaf-celeba" / "data"
    for i in (1, 2):
        write(home / "raw" / "img_align_celeba" / f"{i:06}.jpg", picture("JPEG", i))
    write(home / "train" / "a.json", leaf({"2880": (["000001.jpg"], [1])}))
    write(home / "test" / "a.json", leaf({"2937": (["000002.jpg"], [0])}))


def hanzi(root: Path) -> None:
    strokes = {"十": [[[100, 388], [924, 388]], [[512, 800], [512, -24]]], "一": [[[100, 388], [924.5, 388]]]}
    write(root / "hanzi" / "medians.json", json.dumps(strokes))


PICTURES = {
    "png": picture("PNG"),
    "palette.png": picture("PNG", bits=4),
    "jpg": picture("JPEG"),
    "bmp": picture("BMP"),
    "webp": picture("WEBP"),
    "lossless.webp": picture("WEBP", lossless=True),
    "gif": picture("GIF"),
    "tif": picture("TIFF"),
    "lzw.tif": picture("TIFF", compression="tiff_lzw"),
    "deflate.tiff": picture("TIFF", compression="tiff_adobe_deflate"),
    "jpeg.tif": picture("TIFF", compression="jpeg"),
    "ppm": picture("PPM"),
    "pgm": picture("PGM"),
}


def own_folder(root: Path, kinds: tuple[str, ...]) -> None:
    for part in ("train", "test"):
        for kind in kinds:
            write(root / "own" / part / "cats" / f"a.{kind}", PICTURES[kind])


def archive(name: str, build: Callable[[Path], None], home: str, pack: str) -> Callable[[Path], None]:
    """The files ``build`` makes, as the archive of that name, packed in that way."""

    def make(root: Path) -> None:
        build(root)
        files = {path.relative_to(root / home): path for path in sorted(root.rglob("*")) if path.is_file()}
        contents = {inner.as_posix(): path.read_bytes() for inner, path in files.items()}
        clear(root)
        write(root / name, PACKERS[pack](contents))

    return make


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, content in files.items():
            packed.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def tarred(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as packed:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


PACKERS: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "zip": zipped,
    "tar": tarred,
    "gz": lambda files: gzip.compress(tarred(files), mtime=0),
    "bz2": lambda files: bz2.compress(tarred(files)),
    "xz": lambda files: lzma.compress(tarred(files)),
}


def clear(root: Path) -> None:
    """Remove all that is in ``root``."""
    for path in sorted(root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def kept(build: Callable[[Path], None], read: Callable[[Path], Any]) -> Callable[[Path], None]:
    """A data set whose decoded form is kept in ``.drcl``."""

    def make(root: Path) -> None:
        build(root)
        keeping(read)(root)

    return make


def keeping(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Read with every decoded array kept, however small."""

    def reading(root: Path) -> Any:
        usual, images.WORTH_KEEPING = images.WORTH_KEEPING, 1
        try:
            return read(root)
        finally:
            images.WORTH_KEEPING = usual

    return reading


def noted(root: Path) -> None:
    cifar10(root)
    write_sums(root / "cifar10", "a friend")


def check_noted(root: Path) -> Any:
    """The sums and then the data: what passes both is what was fetched."""
    check_sums(root / "cifar10")
    return load("cifar10", root)


def reader(name: str, **options: Any) -> Callable[[Path], Any]:
    return lambda root: load(name, root, **options)


def own_reader(root: Path) -> Any:
    return load("folder", root, path=root / "own")


def idx_files(folder: str, names: tuple[str, ...], packed: bool = True) -> Callable[[Path], None]:
    return lambda root: idx_set(root, folder, names, packed)


def npz(build: Callable[..., None], file: str, save: Callable[..., None]) -> Callable[[Path], None]:
    return lambda root: build(root / file, save)


def everything() -> list[Target]:
    """All targets. Those of one format stand together."""
    drawn = reader("hanzi", classes=2, writers=2, test_writers=1, size=8)
    casia, birds = reader("casia-hwdb", size=8), reader("cub200", size=8)
    own_png = partial(own_folder, kinds=("png",))
    return [
        Target("mnist", idx_files("mnist", MNIST, False), reader("mnist")),
        Target("mnist, gzipped", idx_files("mnist", MNIST), reader("mnist")),
        Target("fashion-mnist", idx_files("fashion-mnist", MNIST), reader("fashion-mnist")),
        Target("emnist", idx_files("emnist", EMNIST), reader("emnist")),
        Target("cifar10", cifar10, reader("cifar10")),
        Target("cifar100", cifar100, reader("cifar100")),
        Target("quickdraw", quickdraw, reader("quickdraw")),
        Target("npz", npz(arrays, "mine.npz", np.savez), reader("mine")),
        Target("npz, compressed", npz(arrays, "mine.npz", np.savez_compressed), reader("mine")),
        Target("npz of floats", npz(grey_arrays, "mine.npz", np.savez), reader("mine")),
        Target("hwdb100", npz(grey_arrays, "hwdb100/hwdb100.npz", np.savez), reader("hwdb100")),
        Target("imagenet, 32x32", imagenet_release, reader("imagenet")),
        Target("imagenet, folders", imagenet_folders, reader("imagenet", size=8)),
        Target("tinyimagenet", tinyimagenet, reader("tinyimagenet", size=8)),
        Target("celeba", celeba, reader("celeba", size=8)),
        Target("cub200", cub200, birds),
        Target("omniglot", omniglot, reader("omniglot", size=8)),
        Target("folder, PNG", partial(own_folder, kinds=("png", "palette.png")), own_reader),
        Target("folder, others", partial(own_folder, kinds=tuple(k for k in PICTURES if "png" not in k)), own_reader),
        Target("casia-hwdb", gnt, casia),
        Target("leaf-femnist", leaf_femnist, reader("leaf-femnist")),
        Target("leaf-celeba", leaf_celeba, reader("leaf-celeba", size=8)),
        Target("hanzi", hanzi, drawn),
        Target("tar.gz", archive("cifar-10-binary.tar.gz", cifar10, "cifar10", "gz"), reader("cifar10")),
        Target("tar.bz2", archive("CUB_200_2011.tgz", cub200, "cub200", "bz2"), birds),
        Target("tar.xz", archive("CUB_200_2011.tgz", cub200, "cub200", "xz"), birds),
        Target("tar", archive("CUB_200_2011.tgz", cub200, "cub200", "tar"), birds, sealed=lambda path: False),
        Target("zip", archive("tiny-imagenet-200.zip", tinyimagenet, "", "zip"), reader("tinyimagenet", size=8)),
        Target("kept pictures", kept(own_png, own_reader), keeping(own_reader), "*.npy", always),
        Target("kept sums", kept(own_png, own_reader), keeping(own_reader), "*.sha256", always),
        Target("kept index", kept(gnt, casia), keeping(casia), "*index*.npz", always),
        Target("SHA256SUMS", noted, check_noted, sealed=always),
    ]
