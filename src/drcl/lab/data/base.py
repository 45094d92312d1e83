"""What a data set is once it is read: plain uint8 arrays. Readers produce it, streams cut tasks from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Split:
    """One part of a data set. ``images`` may be a memory map; nothing here copies it."""

    images: np.ndarray  # uint8, [N, C, H, W]
    labels: np.ndarray  # int64, [N]; or [N, A] with 0/1 entries if a set has attributes instead of classes
    groups: np.ndarray | None = None  # int64, [N]: the writer, celebrity or drawer, if known

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class DataSet:
    """A whole data set with its official split."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]  # class names by label id; attribute names if labels are attributes
    valid: Split | None = None  # only if the official release has one
    synthetic: bool = False
