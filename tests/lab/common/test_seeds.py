"""Randomness: the documented generator, and uniform orders."""

from __future__ import annotations

import itertools

import numpy as np

from drcl.lab.common import seeds


def test_random_words_are_the_documented_generator():
    """PCG64 seeded by the SHA-256 of the path: recomputed here in the open, so it can be rebuilt anywhere."""
    import hashlib

    digest = hashlib.sha256(b"5\0s:order\0i:3").digest()
    generator = np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "little")))
    expected = generator.random_raw(10)
    assert np.array_equal(seeds.words(10, 5, "order", 3), expected)
    assert np.array_equal(seeds.words(4, 5, "order", 3, skip=6), expected[6:])
    assert seeds.permutation(10, 5, "order", 3).tolist() == sorted(range(10), key=lambda i: expected[i])
    assert seeds.derive(5, "order", 3) == int.from_bytes(digest[:8], "little") // 2
    # A word and a number never share a path.
    assert seeds.derive(5, "3") != seeds.derive(5, 3)


def test_permutations_are_uniform():
    """All 24 orders of four things, 4,800 draws: chi-square with 23 degrees of freedom stays below its
    99.9 % point."""
    counts = dict.fromkeys(itertools.permutations(range(4)), 0)
    for i in range(4800):
        counts[tuple(seeds.permutation(4, i, "test").tolist())] += 1
    assert sum((n - 200) ** 2 / 200 for n in counts.values()) < 49.73
