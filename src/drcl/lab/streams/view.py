"""What happens to the pixels between the stored uint8 array and the network, a whole block of images at a
time.

Everything before normalisation is integer arithmetic, so a rotated, resized or permuted image is the same
bytes on every machine and in every block size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class View:
    """How a task sees the images: resize, pad, repeat channels, rotate, (augment,) permute, normalise, in this
    order.

    ``mean`` and ``std`` are per channel (or one for all) and refer to pixels scaled to [0, 1].
    ``crop`` (pixels of zero padding around a random crop) and ``flip`` act on training batches only.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    size: int | None = None
    pad: int = 0  # rows and columns of zeros on every side
    channels: int | None = None
    rotation: float = 0.0
    permutation: np.ndarray | None = None
    crop: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"mean has {len(self.mean)} entries and std {len(self.std)}: give each one entry per channel"
            )
        if min(self.std) <= 0:
            raise ValueError(f"std={self.std} must be positive: leave it at (1.0,) to keep the scale")
        if self.crop < 0:
            raise ValueError(f"crop={self.crop} is the width of the padding in pixels: give 0 or more")
        if self.pad < 0:
            raise ValueError(f"pad={self.pad} is the width of the border in pixels: give 0 or more")
        if self.size is not None and self.size < 1:
            raise ValueError(f"size={self.size} must be at least one pixel")

    @property
    def augments(self) -> bool:
        return self.crop > 0 or self.flip

    def shape(self, stored: tuple[int, ...]) -> tuple[int, int, int]:
        """Shape of one image as the network sees it, from the stored ``(C, H, W)``."""
        channels, height, width = stored
        if self.channels not in (None, channels) and channels != 1:
            raise ValueError(
                f"channels={self.channels}: only one-channel images can be repeated, these have {channels}"
            )
        if self.size is not None:
            height = width = self.size
        return self.channels or channels, height + 2 * self.pad, width + 2 * self.pad

    def pixels(self, images: np.ndarray) -> np.ndarray:
        """Stored uint8 ``[B, C, H, W]`` -> uint8 as this view sees them, not augmented, not normalised."""
        block = self._placed(images, None)
        if self.permutation is not None:
            block = np.take(block.reshape(len(block), -1), self.permutation, axis=1).reshape(block.shape)
        return block

    def tensor(self, images: np.ndarray, draws: np.ndarray | None = None) -> Tensor:
        """Stored uint8 -> normalised float32; `draws`, one random word per image, switches augmentation on."""
        block = torch.from_numpy(self._placed(images, draws)).to(torch.float32)
        scale, shift = self._affine
        # Two roundings, never a fused multiply-add: the same bits in the vector loop, in its tail and
        # elsewhere.
        block.mul_(scale).add_(shift)
        if self.permutation is not None:
            # Last, so that each value is normalised by the channel it comes from. And torch picks columns of
            # floats several times faster than columns of bytes.
            block = block.view(len(block), -1).index_select(1, self._order).view(block.shape)
        return block

    def _placed(self, images: np.ndarray, draws: np.ndarray | None) -> np.ndarray:
        channels = self.shape(images.shape[1:])[0]
        if self.size is not None and images.shape[2:] != (self.size, self.size):
            images = resize(images, self.size)
        if self.pad:
            images = np.pad(images, [(0, 0), (0, 0), (self.pad, self.pad), (self.pad, self.pad)])
        if self.rotation:
            images = rotate(images, self.rotation)
        if draws is not None and self.augments:
            images = augment(images, draws, self.crop, self.flip)
        if images.shape[1] != channels:
            images = np.repeat(images, channels, axis=1)
        return np.ascontiguousarray(images)

    @cached_property
    def _order(self) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.permutation, dtype=np.int64))

    @cached_property
    def _affine(self) -> tuple[Tensor, Tensor]:
        mean, std = np.asarray(self.mean, np.float64), np.asarray(self.std, np.float64)
        scale, shift = 1 / (255 * std), -mean / std
        if len(mean) > 1:
            scale, shift = scale[:, None, None], shift[:, None, None]
        return torch.tensor(scale, dtype=torch.float32), torch.tensor(shift, dtype=torch.float32)


def augment(images: np.ndarray, draws: np.ndarray, crop: int, flip: bool) -> np.ndarray:
    """Random crop of the zero-padded images and random horizontal flip, one 64-bit word deciding for one
    image."""
    if crop:
        count, channels, height, width = images.shape
        span, low = np.uint64(2 * crop + 1), np.uint64(0xFFFF)
        down = ((draws & low) * span >> np.uint64(16)).astype(np.intp)
        right = ((draws >> np.uint64(16) & low) * span >> np.uint64(16)).astype(np.intp)
        tall, wide = height + 2 * crop, width + 2 * crop
        padded = np.zeros((count, channels, tall, wide), np.uint8)
        padded[:, :, crop : crop + height, crop : crop + width] = images
        # One item is a whole row of the crop, items overlap byte by byte: picking items copies rows, which is
        # several times faster than picking pixels or looping over images.
        rows = np.ndarray((padded.size - width + 1,), f"V{width}", padded.data, strides=(1,))
        corner = np.arange(count) * (channels * tall * wide) + down * wide + right
        within = np.arange(channels)[:, None] * (tall * wide) + np.arange(height) * wide
        images = rows[corner[:, None, None] + within].view(np.uint8).reshape(images.shape)
    if flip:
        chosen = np.flatnonzero(draws >> np.uint64(63))
        images = images if crop else images.copy()
        images[chosen] = images[chosen][..., ::-1]
    return images


def rotate(images: np.ndarray, degrees: float) -> np.ndarray:
    """Rotate counter-clockwise about the centre, bilinear in 128ths of a pixel, zeros from outside."""
    count, channels, height, width = images.shape
    index, weight = _rotation(height, width, float(degrees))
    flat = torch.from_numpy(np.ascontiguousarray(images)).view(count * channels, -1).to(torch.float32)
    # Whole numbers below 2**24 throughout: float32 is exact here, and faster than integers.
    total = torch.full_like(flat, 1 << 13)
    for corner in range(4):
        total.addcmul_(flat.index_select(1, index[corner]), weight[corner])
    return total.mul_(2.0**-14).to(torch.uint8).view(images.shape).numpy()


@lru_cache(maxsize=512)
def _rotation(height: int, width: int, degrees: float) -> tuple[Tensor, Tensor]:
    angle = math.radians(degrees)
    y, x = np.mgrid[:height, :width]
    y, x = y - (height - 1) / 2, x - (width - 1) / 2
    # Where each pixel comes from: the inverse rotation. Rows grow downwards, hence the signs.
    from_x = math.cos(angle) * x - math.sin(angle) * y + (width - 1) / 2
    from_y = math.sin(angle) * x + math.cos(angle) * y + (height - 1) / 2
    grid_x, grid_y = np.rint(from_x * 128).astype(np.int64), np.rint(from_y * 128).astype(np.int64)
    left, top = grid_x >> 7, grid_y >> 7
    part_x, part_y = grid_x & 127, grid_y & 127
    index, weight = [], []
    for dy, dx in ((0, 0), (0, 1), (1, 0), (1, 1)):
        row, column = top + dy, left + dx
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        index.append(np.where(inside, row * width + column, 0).ravel())
        share = (part_y if dy else 128 - part_y) * (part_x if dx else 128 - part_x)
        weight.append(np.where(inside, share, 0).ravel())
    return torch.from_numpy(np.stack(index)), torch.from_numpy(np.stack(weight)).to(torch.float32)


def resize(images: np.ndarray, size: int) -> np.ndarray:
    """Bicubic resize with antialiasing to ``size`` x ``size``, width first, rounded to uint8 after each
    axis."""
    images = _resize_last(images, size)
    return np.ascontiguousarray(_resize_last(images.swapaxes(2, 3), size).swapaxes(2, 3))


def _resize_last(images: np.ndarray, size: int) -> np.ndarray:
    old = images.shape[-1]
    if old == size:
        return images
    # Weights are whole 4096ths: every partial sum is a whole number below 2**24, so float32 adds it exactly
    # in whatever order the matrix product chooses.
    product = images.reshape(-1, old).astype(np.float32) @ _resize_weights(old, size).T
    product += 2048
    product *= 1 / 4096
    # Truncation is floor here: clipping has already removed what is negative.
    return np.clip(product, 0, 255, out=product).astype(np.uint8).reshape(*images.shape[:-1], size)


@lru_cache(maxsize=64)
def _resize_weights(old: int, new: int) -> np.ndarray:
    scale = old / new
    stretch = max(scale, 1.0)
    table = np.zeros((new, old))
    for i in range(new):
        centre = (i + 0.5) * scale
        first, last = int(centre - 2 * stretch + 0.5), int(centre + 2 * stretch + 0.5)
        # The filter is cut at the border and renormalised, as Pillow does it.
        inputs = np.arange(max(0, first), min(old, last))
        weight = _cubic((inputs + 0.5 - centre) / stretch)
        table[i, inputs] = weight / weight.sum()
    whole = np.rint(table * 4096)
    # Rounding may lose a few 4096ths: give them to the largest weight so that flat areas stay flat.
    whole[np.arange(new), whole.argmax(1)] += 4096 - whole.sum(1)
    return whole.astype(np.float32)


def _cubic(x: np.ndarray, a: float = -0.5) -> np.ndarray:
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))
