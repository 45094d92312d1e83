"""Coordinates in which a layer's weights do not interact: the eigenbasis of Kronecker-factored importance.

A layer's weight is a matrix W, its bias a last column. With A the second moment of the layer's inputs and G that of
its output derivatives, U_A and U_G their eigenvectors, the directions are the products of a column of U_G and one of
U_A, and D = U_G^T (w - a) U_A says how far the weights have moved along each. The basis is orthonormal, so a proximal
map on D is the exact proximal map of the penalty on D. Of all importances that are diagonal in this basis, the mean
squared gradients along it are closest to the Fisher matrix (EK-FAC: George et al. 2018).
`drcl.directions.kronecker` makes these bases; the optimizer uses them.

Matrices here are `[groups, positions, outputs, inputs]`: a grouped convolution has one matrix per group, and with
separate kernel positions (``convolutions="channels"``) one per position, all with the same basis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

TENSORS = ("inputs", "outputs", "eigenvalues", "input_factor", "output_factor")


@dataclass(frozen=True)
class Eigenbasis:
    """One layer's directions, the importance of each, and the factors to which the next task's are added.

    `inputs` and `outputs` hold directions as columns; None if a side is too long to be rotated. With fewer columns than
    rows, only the most important directions are kept separately. The others share one more row or column of
    `eigenvalues`, the last one, which has their mean importance.
    """

    inputs: Tensor | None  # [groups, n, kept]
    outputs: Tensor | None  # [groups, m, kept]
    eigenvalues: Tensor  # [groups, positions, kept outputs (+ 1), kept inputs (+ 1)]
    input_factor: Tensor  # A, summed over tasks: [groups, n, n], or [groups, n] for a side that is not rotated
    output_factor: Tensor  # G
    bias: bool  # the last input is the constant one, so the matrix includes the bias
    count: float = 1.0  # number of tasks in the sum of the factors, decayed as they are

    # -- shapes ----------------------------------------------------------------------------------------------------

    @property
    def kept(self) -> tuple[int, int]:
        """How many output directions and how many input directions are kept separately."""
        u, v = self.inputs, self.outputs
        return (
            self.output_factor.shape[1] if v is None else v.shape[2],
            self.input_factor.shape[1] if u is None else u.shape[2],
        )

    @property
    def size(self) -> tuple[int, int]:
        """How many outputs and inputs there are."""
        return self.output_factor.shape[1], self.input_factor.shape[1]

    @property
    def complete(self) -> bool:
        """Whether every direction of the layer is kept."""
        return self.kept == self.size

    @property
    def directions(self) -> int:
        """How many directions are kept."""
        groups, positions = self.eigenvalues.shape[:2]
        return groups * positions * self.kept[0] * self.kept[1]

    @property
    def left_out(self) -> int:
        """How many directions are not kept."""
        groups, positions = self.eigenvalues.shape[:2]
        return groups * positions * self.size[0] * self.size[1] - self.directions

    @cached_property
    def own_columns(self) -> int:
        """How many of the first kept inputs have an importance of their own for the outputs left out."""
        (j, k), (m, n) = self.kept, self.size
        if j == m or k == n:
            return k
        if not self.eigenvalues.is_cpu:
            return k  # reading the values would wait for the device
        other = (self.eigenvalues[..., j, :k] != self.eigenvalues[..., j, k:]).flatten(0, -2).any(0).nonzero()
        return int(other.max()) + 1 if len(other) else 0

    def with_shared_columns(self, count: int) -> Eigenbasis:
        """With one mean importance for the outputs left out, over all inputs after the first `count`."""
        (j, k), (m, n) = self.kept, self.size
        if j == m or k == n or k <= count:
            return self
        values = self.eigenvalues.clone()
        mean = (values[..., j, count:k].sum(-1) + values[..., j, k] * (n - k)) / (n - count)
        values[..., j, count:] = mean[..., None]
        return replace(self, eigenvalues=values)

    def counts(self) -> tuple[Tensor, Tensor]:
        """How many directions each row and each column of the eigenvalues represents."""
        rows, columns = self.eigenvalues.shape[2:]
        (j, k), (m, n) = self.kept, self.size
        out, into = self.eigenvalues.new_ones(rows), self.eigenvalues.new_ones(columns)
        out[j:], into[k:] = m - j, n - k
        return out, into

    @property
    def floats(self) -> int:
        """Numbers held in memory."""
        return sum(t.numel() for t in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        found = {name: getattr(self, name) for name in TENSORS}
        return {name: t for name, t in found.items() if t is not None}

    def cast(self, like: Tensor, dtype: torch.dtype) -> Eigenbasis:
        """A copy of its own on another device or in another type."""
        wide = self.at_work(dtype, TENSORS) if dtype.itemsize > 2 else self
        made = {n: t.detach().to(like.device, dtype, copy=True).contiguous() for n, t in wide.tensors().items()}
        return replace(self, **made)  # type: ignore[arg-type]

    def at_work(self, wide: torch.dtype, names: Sequence[str] = TENSORS[:3]) -> Eigenbasis:
        """What a step computes with: parts that are stored in 16 bits are widened, directions orthonormal again."""
        narrow = {name: t for name, t in self.tensors().items() if name in names and t.dtype is torch.bfloat16}
        made = {n: orthonormal(t.to(wide)) if n in ("inputs", "outputs") else t.to(wide) for n, t in narrow.items()}
        return replace(self, **made) if made else self  # type: ignore[arg-type]

    def difference(self, weight: tuple[Tensor, Tensor], bias: tuple[Tensor, Tensor] | None) -> Tensor:
        """The difference of each pair, as [groups, positions, outputs, inputs]; a missing bias is zero."""
        groups, positions = self.eigenvalues.shape[:2]
        one, other = (as_matrix(t, groups, positions) for t in weight)
        if not self.bias:
            return one - other
        n = one.shape[-1] + 1
        # Align rows to cache lines: products with them are 1.5 times as fast.
        d = one.new_empty(*one.shape[:-1], -(-n // 16) * 16)[..., :n]
        torch.sub(one, other, out=d[..., :-1])
        d[..., -1] = 0 if bias is None else (bias[0] - bias[1]).reshape(groups, 1, -1)
        return d

    # -- the rotation ----------------------------------------------------------------------------------------------

    def rotate(self, d: Tensor) -> Tensor:
        """U_G^T d U_A: coordinates along the kept directions."""
        u, v = self.sides()
        if u is None or v is None or self._outputs_first():
            d = d if v is None else v.mT @ d
            return d if u is None else d @ u
        return v.mT @ (d @ u)

    def rotate_back(self, d: Tensor) -> Tensor:
        """U_G d U_A^T."""
        u, v = self.sides()
        if u is None or v is None or self._outputs_first(back=True):
            d = d if v is None else v @ d
            return d if u is None else d @ u.mT
        return v @ (d @ u.mT)

    def sides(self) -> tuple[Tensor | None, Tensor | None]:
        """U_A and U_G, to be multiplied with matrices [groups, positions, ...]."""
        u, v = self.inputs, self.outputs
        return (None if u is None else u[:, None]), (None if v is None else v[:, None])

    def _outputs_first(self, back: bool = False) -> bool:
        """Whether it costs less to multiply by the outputs' directions first."""
        assert self.inputs is not None
        assert self.outputs is not None
        (n, k), (m, j) = self.inputs.shape[1:], self.outputs.shape[1:]
        first, second = j * n * (m + k), m * k * (n + j)
        return second < first if back else first < second

    # -- what it says in other coordinates -------------------------------------------------------------------------

    def diagonal(self) -> tuple[Tensor, Tensor | None]:
        """The importance of each weight (matrix, bias): the diagonal of U diag(eigenvalues) U^T, with the same sum."""
        whole = self._between(_overlap(None, self.outputs), _overlap(None, self.inputs))
        return (whole[..., :-1], whole[..., -1]) if self.bias else (whole, None)

    def seen_in(self, other: Eigenbasis) -> Tensor:
        """The diagonal of this importance in the directions of `other`."""
        return self._between(_overlap(other.outputs, self.outputs), _overlap(other.inputs, self.inputs))

    def see(self, weights: Tensor) -> Tensor:
        """The diagonal, in these directions, of an importance that is diagonal in weights and bias."""
        return replace(self, inputs=None, outputs=None, eigenvalues=weights).seen_in(self)

    def _between(self, left: Tensor | None, right: Tensor | None) -> Tensor:
        rows, columns = self.eigenvalues.shape[2:]
        d = self.eigenvalues if left is None else left[:, None, :, :rows] @ self.eigenvalues
        return (d if right is None else d @ right[:, None, :, :columns].mT).clamp(min=0)

    @property
    def total(self) -> float:
        """The trace: the importance of all directions together."""
        out, into = self.counts()
        return float((self.eigenvalues.double() * out.double()[:, None] * into.double()).sum())

    def scaled(self, factor: float) -> Eigenbasis:
        """With another unit of importance; the factors keep theirs."""
        return replace(self, eigenvalues=self.eigenvalues * factor)

    # -- being stored ----------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        return {"bias": self.bias, "count": float(self.count)}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Eigenbasis:
        """From `tensors()` and `facts()`; ValueError if they do not belong together."""
        needed = {"eigenvalues", "input_factor", "output_factor"}
        if not needed <= set(tensors) <= set(TENSORS) or not {f.name for f in fields(cls)} - set(TENSORS) <= set(facts):
            raise ValueError("a Kronecker basis is incomplete")
        made = {name: tensors.get(name) for name in TENSORS}
        return cls(**made, bias=bool(facts["bias"]), count=float(facts["count"]))  # type: ignore[arg-type]

    def check(self, weight: torch.Size | Tensor) -> None:
        """ValueError unless the tensors are finite and fit a weight of this shape."""
        shape = tuple(weight.shape if isinstance(weight, Tensor) else weight)
        if self.eigenvalues.ndim != 4 or len(shape) < 2:
            raise ValueError(f"a Kronecker basis does not fit a weight of shape {shape}")
        groups, positions = self.eigenvalues.shape[:2]
        outputs = shape[0] // max(groups, 1)
        size = 1
        for n in shape[1:]:
            size *= n
        n = size // max(positions, 1) + int(self.bias)
        kept_out, kept_in = (
            side if u is None else u.shape[-1] for u, side in ((self.outputs, outputs), (self.inputs, n))
        )
        expected = {
            "inputs": (groups, n, min(kept_in, n)),
            "outputs": (groups, outputs, min(kept_out, outputs)),
            "eigenvalues": (groups, positions, kept_out + (kept_out < outputs), kept_in + (kept_in < n)),
            "input_factor": (groups, n, n) if self.inputs is not None else (groups, n),
            "output_factor": (groups, outputs, outputs) if self.outputs is not None else (groups, outputs),
        }
        fits = groups and positions and not shape[0] % groups and not size % positions
        for name, t in self.tensors().items():
            if not fits or tuple(t.shape) != expected[name]:
                raise ValueError(f"the {name} of a Kronecker basis have shape {tuple(t.shape)}, which does not fit")
            if not bool(torch.isfinite(t).all()):
                raise ValueError(f"the {name} of a Kronecker basis hold NaN or infinite values")
        if bool((self.eigenvalues < 0).any()):
            raise ValueError("the eigenvalues of a Kronecker basis must be >= 0")


def orthonormal(directions: Tensor) -> Tensor:
    """Columns that rounding to 16 bits made slightly oblique, orthonormal again, by Newton's iteration."""
    for _ in range(2):
        directions = 1.5 * directions - 0.5 * directions @ (directions.mT @ directions)
    return directions


def bias_of(name: str) -> str:
    """The name of the bias that belongs to the weight of this name."""
    head, dot, last = name.rpartition(".")
    # weight, in_proj_weight; and weight_ih_l0, where the word comes first
    own = last.removesuffix("weight") + "bias" if last.endswith("weight") else last.replace("weight", "bias", 1)
    return head + dot + own


def as_matrix(weight: Tensor, groups: int, positions: int) -> Tensor:
    """[groups, positions, outputs, inputs]; with one position the inputs are whole patches."""
    outputs = weight.shape[0] // groups
    if positions == 1:
        return weight.reshape(groups, 1, outputs, -1)
    return weight.reshape(groups, outputs, -1, positions).permute(0, 3, 1, 2)


def as_weight(matrix: Tensor, like: Tensor) -> Tensor:
    """The inverse of `as_matrix`."""
    if matrix.shape[1] == 1:
        return matrix.reshape(like.shape)
    return matrix.permute(0, 2, 3, 1).reshape(like.shape)


def _overlap(new: Tensor | None, old: Tensor | None) -> Tensor | None:
    """Squared cosines between new and old directions, [groups, new, old]; None if they are the same.

    If directions are left out, the last column is for all old ones left out, the last row the mean over the new ones.
    """
    if new is None:
        if old is None:
            return None
        found = old.square()
    else:
        found = new.mT.square() if old is None else (new.mT @ old).square()
    if old is not None:
        found = torch.cat([found, 1 - found.sum(-1, keepdim=True)], -1)
    if new is not None and new.shape[2] < new.shape[1]:
        n, k = new.shape[1:]
        everything = found.new_ones(found.shape[-1])
        if old is not None:
            everything[-1] = n - old.shape[2]
        found = torch.cat([found, (everything - found.sum(1, keepdim=True)) / (n - k)], 1)
    return found.clamp_(min=0)


# Up to the first length, double precision costs next to nothing. From the second length on, if at most half of the
# eigenvectors are kept, subspace iteration finds them.
SHORT, LONG, STEPS, SPARE = 400, 768, 4, 32


def kept_of(side: int, rank: int | None, most: int | None = None) -> int:
    """How many directions of a side are kept: `rank`, and at most `most`, if the side is longer than 1.5 times `rank`;
    otherwise all, because nothing would be saved."""
    if rank is None or 2 * side <= 3 * rank:
        return side
    return rank if most is None else min(rank, most)


def eigenvectors(factor: Tensor, rank: int | None, start: Tensor | None = None, most: int | None = None) -> Tensor:
    """Orthonormal columns [groups, n, kept], largest eigenvalue first.

    For a long side this is subspace iteration with four multiplications by the factor. It begins with `start`, if
    directions are known already, and with random columns from a fixed seed.
    """
    n = factor.shape[-1]
    kept = kept_of(n, rank, most)
    wide = factor.double() if n <= SHORT else factor
    scale = wide.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=torch.finfo(wide.dtype).tiny)
    wide = wide / scale[:, None, None]
    if n >= LONG and 2 * kept <= n:
        return _leading(wide, kept, start)
    return _eigh(wide).flip(-1)[..., :kept].to(factor.device, factor.dtype).contiguous()


def _leading(factor: Tensor, kept: int, start: Tensor | None) -> Tensor:
    groups, n = factor.shape[:2]
    drawn = torch.randn(groups, n, kept + SPARE, generator=torch.Generator().manual_seed(n)).to(factor)
    if start is not None:
        known = min(start.shape[-1], kept)
        # Add a little noise to each, so that directions that were left out so far can be found too.
        drawn[..., :known] = start[..., :known] + drawn[..., :known] * (0.1 / n**0.5)
    for _ in range(STEPS):
        drawn = torch.linalg.qr(factor @ drawn).Q
    inside = drawn.mT @ (factor @ drawn)
    turned = _eigh(((inside + inside.mT) / 2).double()).flip(-1)[..., :kept]
    return (drawn @ turned.to(drawn)).contiguous()


def _eigh(symmetric: Tensor) -> Tensor:
    wide = symmetric.cpu() if symmetric.device.type == "mps" else symmetric
    try:
        return torch.linalg.eigh(wide).eigenvectors
    except torch.linalg.LinAlgError:
        nudge = 1e-10 * torch.eye(wide.shape[-1], dtype=torch.float64).to(wide.device)
        return torch.linalg.eigh(wide.double() + nudge).eigenvectors
