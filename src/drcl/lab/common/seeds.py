"""Randomness of the laboratory: every draw comes from its own seed and a path of words and numbers.

Only raw PCG64 words are used, because numpy promises those to stay the same in every release and on every
machine; it does not promise that for `Generator.permutation` and its kin.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def _digest(seed: int, path: tuple[int | str, ...]) -> bytes:
    words = [str(operator.index(seed))]
    words += [f"s:{part}" if isinstance(part, str) else f"i:{operator.index(part)}" for part in path]
    return hashlib.sha256("\0".join(words).encode()).digest()


def derive(seed: int, *path: int | str) -> int:
    """A seed of its own (below 2**63) for what `path` names, e.g. ``derive(0, "network", "trunk")``."""
    return int.from_bytes(_digest(seed, path)[:8], "little") >> 1


def words(count: int, seed: int, *path: int | str, skip: int = 0) -> np.ndarray:
    """`count` random 64-bit words, from word `skip` on; jumping ahead costs the same whatever the
    distance."""
    source = np.random.PCG64(np.random.SeedSequence(int.from_bytes(_digest(seed, path), "little")))
    if skip:
        source.advance(skip)
    return source.random_raw(count) if count else np.empty(0, np.uint64)


def permutation(count: int, seed: int, *path: int | str) -> np.ndarray:
    """A uniformly random order of ``0 .. count-1`` as int64."""
    return np.argsort(words(count, seed, *path), kind="stable").astype(np.int64, copy=False)


@contextmanager
def seeded_torch(seed: int, *path: int | str) -> Iterator[None]:
    """Run a block under its own torch CPU seed and give the caller's generator back as it was."""
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(derive(seed, *path))
    try:
        yield
    finally:
        generator.set_state(before)
