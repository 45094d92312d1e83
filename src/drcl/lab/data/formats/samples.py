"""One sample at a time to arrays: PIL images, uint8 or float tensors, as any Dataset may give them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from PIL import Image

from drcl.lab.data.base import Split
from drcl.lab.data.decoding import check_pixels, in_mode
from drcl.lab.data.errors import DataError
from drcl.lab.data.formats.arrays import CHANNELS, as_bytes, as_labels
from drcl.lab.data.guard import reading


def as_picture(image: Any, what: str) -> np.ndarray:
    """uint8 [C, H, W] from a PIL image, [H, W], [C, H, W] or, for arrays and PIL images, [H, W, C]."""
    is_tensor = hasattr(image, "detach")
    if is_tensor:
        with reading(what, "is not a picture that can be read", "give uint8 tensors, or floats in 0..1"):
            pixels = image.detach().cpu().numpy()
    elif isinstance(image, Image.Image):
        check_pixels(*image.size, what)
        grey = image.mode in ("1", "L", "LA", "I", "F") or image.mode.startswith("I;16")
        with reading(what, "is not a readable picture"):
            pixels = np.asarray(in_mode(image, "L" if grey else "RGB", what))
    else:
        with reading(what, "is not a picture that can be read", "give an array, a tensor or a PIL image"):
            pixels = np.asarray(image)
    if pixels.ndim == 2:
        pixels = pixels[None]
    elif pixels.ndim == 3:
        channels_last = not is_tensor and pixels.shape[2] in CHANNELS
        if channels_last:
            pixels = pixels.transpose(2, 0, 1)
    if pixels.ndim != 3 or pixels.shape[0] not in CHANNELS:
        raise DataError(f"{what} has shape {pixels.shape}; wanted a picture with 1, 3 or 4 channels.")
    return as_bytes(pixels, what)


def as_split(samples: Iterable[tuple[Any, Any]], what: str) -> Split:
    """All samples as one split; a sample of another shape is an error that names it."""
    images: list[np.ndarray] = []
    labels: list[Any] = []
    for number, (image, label) in enumerate(samples):
        pixels = as_picture(image, f"{what}, sample {number}")
        if images and pixels.shape != images[0].shape:
            raise DataError(
                f"{what}, sample {number} has shape {pixels.shape} but the first has {images[0].shape}; "
                "resize all to one size in the data set's transform."
            )
        images.append(pixels)
        with reading(f"{what}, sample {number}", "has no label that can be read", "give whole numbers"):
            labels.append(np.asarray(label))
    if not images:
        raise DataError(f"{what} has no samples.")
    if len({label.shape for label in labels}) > 1:
        raise DataError(f"{what} has labels of different shapes; wanted one whole number per image, or its attributes.")
    return Split(np.stack(images), as_labels(np.stack(labels), len(images), f"{what}'s labels"))
