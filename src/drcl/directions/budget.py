"""Makes the directions of layers coarser until all of them fit into a number of bytes.

A layer with n inputs and m outputs holds its factors (n^2 + m^2 numbers), directions (n k + m j) and their importance
(j k). Step by step the largest layer becomes coarser: first it keeps fewer directions separately, then a convolution
rotates its channels without its kernel positions, then the longer side is no longer rotated, and in the end the layer
has no directions at all and gets the diagonal Fisher.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from drcl.directions.basis import kept_of

__all__ = ["Choice", "Size", "as_bytes", "fit"]

_UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SMALLEST_RANK = 32


def as_bytes(memory: Any) -> int:
    """A number of bytes, or a text such as "2GB" or "512 MiB"."""
    if isinstance(memory, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", memory.lower())
        size = float(found[1]) * _UNITS[found[2] or ""] if found else 0
    else:
        size = memory if isinstance(memory, int | float) and not isinstance(memory, bool) else 0
    if not 1 <= size < float("inf"):
        raise ValueError(f"Kronecker(memory={memory!r}): memory must be bytes, a number or a text such as '2GB'")
    return int(size)


@dataclass(frozen=True)
class Choice:
    """How finely one layer is held."""

    rank: int | None
    apart: bool  # a convolution's kernel positions are kept separately
    bias: bool  # the bias is part of the layer
    inputs: bool  # the side is rotated
    outputs: bool
    output_rank: int | None = None  # a smaller rank for the outputs

    def told(self) -> str:
        """In words."""
        still = [side for side in ("inputs", "outputs") if not getattr(self, side)]
        words = ["all directions" if self.rank is None else f"rank {self.rank}"]
        words += ["channels only"] if self.apart else []
        return ", ".join([*words, *(f"{side} not rotated" for side in still)])


@dataclass(frozen=True)
class Size:
    """The dimensions of a layer; a convolution has `kernel` positions."""

    outputs: int
    inputs: int  # channels
    kernel: int
    groups: int
    itemsize: int

    @classmethod
    def of(cls, module: nn.Module) -> Size:
        weight: Any = module.weight
        groups = int(getattr(module, "groups", 1))
        kernel = weight[0, 0].numel()
        wide = max(weight.element_size(), 4)  # half precision is accumulated in single
        return cls(weight.shape[0] // groups, weight.shape[1], kernel, groups, wide)

    def bytes(self, choice: Choice) -> int:
        """The memory of the layer's factors, directions and their importance."""
        positions = self.kernel if choice.apart else 1
        n, m = self.inputs * self.kernel // positions + int(choice.bias), self.outputs
        held, kept = 0, []
        for side, rotated, most in ((n, choice.inputs, None), (m, choice.outputs, choice.output_rank)):
            k = kept_of(side, choice.rank, most) if rotated else side
            held += side * side + side * k if rotated else side
            kept.append(k + (k < side))
        return self.groups * (held + positions * kept[0] * kept[1]) * self.itemsize

    def coarser(self, choice: Choice) -> Iterator[Choice]:
        """Coarser and coarser choices, one step at a time."""
        rank = choice.rank or 2 ** max(self.outputs, self.inputs * self.kernel).bit_length()
        while rank // 2 >= _SMALLEST_RANK:
            rank //= 2
            choice = replace(choice, rank=rank)
            yield choice
        if self.kernel > 1 and not choice.apart:
            choice = replace(choice, apart=True, bias=False)
            yield choice
        if choice.inputs and choice.outputs:
            n = self.inputs * (1 if choice.apart else self.kernel)
            yield replace(choice, inputs=False) if n >= self.outputs else replace(choice, outputs=False)


def fit(sizes: Mapping[str, Size], choices: Mapping[str, Choice], memory: int) -> dict[str, Choice | None]:
    """The finest choices that fit, starting from these; None for a layer that gets the diagonal Fisher."""
    found: dict[str, Choice | None] = dict(choices)
    steps = {name: sizes[name].coarser(choice) for name, choice in choices.items()}
    taken = {name: sizes[name].bytes(choice) for name, choice in choices.items()}
    while sum(taken.values()) > memory:
        name = max(taken, key=lambda n: taken[n])
        lower = (c for c in steps[name] if sizes[name].bytes(c) < taken[name])
        found[name] = coarser = next(lower, None)
        taken[name] = 0 if coarser is None else sizes[name].bytes(coarser)
    return found
