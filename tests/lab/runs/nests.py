"""Nested state of every kind, drawn at random, and what it means for two of them to be the same."""

from __future__ import annotations

import math
import struct

import numpy as np
import torch
from hypothesis import strategies as st

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


@st.composite
def some_tensor(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    made = torch.from_numpy(np.random.default_rng(draw(st.integers(0, 99))).integers(0, 255, shape, np.uint8))
    made = made.to(draw(st.sampled_from(DTYPES)))
    if draw(st.booleans()) and made.ndim > 1:
        made = made.transpose(0, 1)
    return made[..., ::2] if draw(st.booleans()) and made.ndim else made


keys = st.one_of(st.text(max_size=4), st.integers(), st.booleans(), st.none(), st.tuples(st.integers(), st.text()))


leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), some_tensor())


trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=12,
)


def same(a, b) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        # Of a dimension of length one (or of nothing at all) the stride means nothing.
        laid = a.numel() == 0 or all(m == n for m, n, size in zip(a.stride(), b.stride(), a.shape) if size > 1)
        return laid and torch.equal(a, b)
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict):
        return [*map(repr, a)] == [*map(repr, b)] and all(same(x, y) for x, y in zip(a.values(), b.values()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return a == b
