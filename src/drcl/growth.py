"""A head or an embedding gains rows: the optimizer continues with the larger parameter in place of the old one.

The optimizer's state has one row for each row of a parameter. Old rows keep theirs. A new row starts with the new
parameter's value as its anchor, with importance zero and without momentum. In an eigenbasis each new row is a direction
of its own with importance zero, so the directions of the old rows do not change:

    U_G' = [U_G 0]      eigenvalues' = [eigenvalues]      G' = [G 0]
           [ 0  1]                     [     0     ]           [0 0]
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from drcl import sharding
from drcl.directions.basis import Eigenbasis
from drcl.importance.base import importance_dtype
from drcl.prox import check_on_weights
from drcl.splitting import lowrank
from drcl.splitting.checks import TENSORS
from drcl.splitting.directions import Layer
from drcl.state import stored_dtype

if TYPE_CHECKING:
    from drcl.optimizer import DRCL

# In these, a new row starts at the new parameter's value; in everything else at zero.
WEIGHTS = ("anchor", "z", "start")
# State of torch's optimizers that does not start at zero, and the group option that it starts from.
STARTS = {"step_size": "lr", "sum": "initial_accumulator_value"}


@torch.no_grad()
def grow(optimizer: DRCL, old: Tensor, new: nn.Parameter, rows: Iterable[int] | None = None) -> None:
    """Continue with ``new``, which has more rows, in place of ``old``: classes or tokens were added.

    >>> head = torch.nn.Linear(4, 3)
    >>> opt = drcl.DRCL(head.named_parameters(), lr=0.1)
    >>> wider = torch.nn.Linear(4, 5)
    >>> opt.grow(head.weight, wider.weight)
    >>> opt.grow(head.bias, wider.bias)

    The old rows of ``new`` get the values of ``old``. They keep their anchor, importance, directions and momentum, also
    in a wrapped optimizer. New rows are free, except with ``damping``, ``stable`` or an infinite strength, which also
    hold weights of zero importance. Call this for a layer's weight and its bias, one after the other.

    Args:
        old: a parameter of this optimizer.
        new: the parameter the model uses from now on: more entries in its first dimension, the others the same. Or
            ``old`` itself, if its ``.data`` was replaced by a larger tensor that already holds the old rows.
        rows: the positions of the old rows in ``new``, in order; by default the first rows.
    """
    group, at = _group_of(optimizer, old, new)
    if old in lowrank.factors(optimizer):
        raise ValueError(f"grow: {optimizer.name_of(old)!r} is a factor of an adapter, which is held by its product")
    before = _rows_before(optimizer, old, new)
    places = _places(rows, before, new)
    spread = _Spread(places.to(new.device), new)
    if old is not new:
        _check_free_of(optimizer, new)
    own, inner = _states(optimizer, group, old, spread) if before is not None else ({}, {})
    if "importance" in own:
        wide = importance_dtype(new)
        target = new.detach() if old is new else spread(old.detach(), new.detach())
        check_on_weights(optimizer.solver.prox, {optimizer.name_of(old): (target, own["importance"].to(wide))})
    layers = _layers(optimizer, old, new, places)
    # Nothing has changed so far, and nothing below can fail.
    name, named = optimizer.name_of(old), optimizer.is_named(old)
    if old is not new:
        new.copy_(spread(old.detach(), new.detach()))
    if new.grad is not None and new.grad.shape != new.shape:
        new.grad = None  # it still has the smaller shape
    group["params"][at] = new
    progress = optimizer.progress
    for owner, state in ((optimizer, own), (optimizer.inner, inner)):
        if owner is not None:
            owner.state.pop(old, None)
            if state:
                owner.state[new] = state
    progress.layers = layers
    if old in progress.names:
        progress.names[new] = progress.names.pop(old)
    if named and before is not None and len(progress.free.get(name, ())) == before:
        progress.free[name] = spread(progress.free[name], new.detach())
    if progress.observer is not None:
        progress.observer.picks.pop(old, None)


# -- what is refused ---------------------------------------------------------------------------------------------------


def _group_of(optimizer: DRCL, old: Any, new: Any) -> tuple[dict[str, Any], int]:
    """The group of the old parameter and its place there; an error if either is not a parameter or they do not fit."""
    if isinstance(optimizer.inner, torch.optim.LBFGS):
        raise TypeError(
            "grow: LBFGS keeps all parameters in one vector; make a new optimizer and protect(model, anchor)"
        )
    for which, p in (("old", old), ("new", new)):
        if not isinstance(p, Tensor):
            raise TypeError(f"grow({which}=...) must be a parameter such as model.head.weight, not {type(p).__name__}")
        if sharding.is_sharded(p):
            raise TypeError(
                f"grow({which}=...) is sharded over processes; save opt.anchor, grow the model before fully_shard, and "
                "call protect(model, anchor) on a new optimizer"
            )
    if not new.is_leaf or type(new).__torch_dispatch__ is not Tensor.__torch_dispatch__ or not new.ndim:
        raise TypeError("grow(new=...) must be an ordinary torch.nn.Parameter of at least one dimension")
    if new.dtype is not old.dtype or new.device != old.device:
        raise ValueError(
            f"grow: the new parameter is {new.dtype} on {new.device}, the old one {old.dtype} on {old.device}; make "
            "both the same"
        )
    for group in optimizer.param_groups:
        for i, p in enumerate(group["params"]):
            if p is old:
                return group, i
    raise ValueError(
        f"grow: the old parameter, of shape {tuple(old.shape)}, is not in this optimizer; to add a new one, call "
        "opt.add_param_group({'params': [...]})"
    )


def _check_free_of(optimizer: DRCL, new: Tensor) -> None:
    if any(p is new for group in optimizer.param_groups for p in group["params"]):
        raise ValueError(f"grow: the new parameter is in this optimizer already, as {optimizer.name_of(new)!r}")


def _rows_before(optimizer: DRCL, old: Tensor, new: Tensor) -> int | None:
    """The number of old rows; None if the parameter grew in place and there is no state from before."""
    shape = old.shape
    if old is new:
        kept = [optimizer.state.get(old, {}).get(key) for key in TENSORS]
        inner = {} if optimizer.inner is None else optimizer.inner.state.get(old, {})
        found = [t for t in (*kept, *inner.values()) if isinstance(t, Tensor) and t.ndim == new.ndim]
        if not found:
            return None
        shape = found[0].shape
    if not shape or shape[1:] != new.shape[1:] or shape[0] > new.shape[0]:
        raise ValueError(
            f"grow: parameter {optimizer.name_of(old)!r} has shape {tuple(shape)} and the new one {tuple(new.shape)}; "
            "it may only gain entries in its first dimension"
        )
    return shape[0]


def _places(rows: Any, before: int | None, new: Tensor) -> Tensor:
    """Where the old rows are among the new ones."""
    if rows is None:
        return torch.arange(before or 0)
    try:
        found = torch.as_tensor(list(rows) if not isinstance(rows, Tensor) else rows).cpu()
    except (TypeError, ValueError, RuntimeError):
        found = torch.empty(0)
    if found.ndim != 1 or found.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"grow(rows={rows!r}): rows must be whole numbers, one for each old row")
    places = [int(i) for i in found]
    if len(set(places)) != len(places) or any(not 0 <= i < len(new) for i in places):
        raise ValueError(f"grow(rows={rows!r}): rows must be different positions from 0 to {len(new) - 1}")
    if before is not None and len(places) != before:
        raise ValueError(f"grow: rows has {len(places)} positions, but there are {before} old rows")
    return found.long()


# -- what follows ------------------------------------------------------------------------------------------------------


class _Spread:
    """Old rows at their places in a tensor of the new parameter's shape and memory layout."""

    def __init__(self, at: Tensor, new: Tensor) -> None:
        self.at, self.new = at, new

    def __call__(self, old: Tensor, fill: Tensor | float = 0.0) -> Tensor:
        if old.shape[1:] == self.new.shape[1:]:
            found = torch.empty_like(self.new, dtype=old.dtype, requires_grad=False)
        else:  # such as the row sums that Adafactor keeps
            found = old.new_empty(len(self.new), *old.shape[1:])
        found.copy_(fill) if isinstance(fill, Tensor) else found.fill_(fill)
        found[self.at] = old
        return found


def _states(
    optimizer: DRCL, group: dict[str, Any], old: Tensor, spread: _Spread
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameter's state in the larger shape: ours, and the wrapped optimizer's."""
    rows, new = len(spread.at), spread.new

    def follows(value: Any) -> bool:
        return isinstance(value, Tensor) and value.ndim == new.ndim and len(value) == rows

    own = dict(optimizer.state.get(old, {}))
    for key, value in own.items():
        if follows(value):
            own[key] = spread(value, new.detach() if key in WEIGHTS else 0.0)
    if "importance" in own:
        own["importance"] = own["importance"].to(stored_dtype(optimizer, new))
    inner = {} if optimizer.inner is None else dict(optimizer.inner.state.get(old, {}))
    for key, value in inner.items():
        if follows(value):
            inner[key] = spread(value, float(group.get(STARTS.get(key, ""), 0.0)))
    return own, inner


def _layers(optimizer: DRCL, old: Tensor, new: Tensor, places: Tensor) -> dict[Tensor, Layer]:
    """All layers with directions; the grown layer gets directions for its new rows."""
    found: dict[Tensor, Layer] = {}
    for weight, layer in optimizer.progress.layers.items():
        if layer.bias is old:
            layer = replace(layer, bias=new)
        if weight is old:
            if len(layer.basis.eigenvalues) > 1:
                warnings.warn(
                    f"drcl: the outputs of {optimizer.name_of(old)!r} are in groups, and new outputs change these, so "
                    "its directions are no longer defined; it is held weight by weight until the next consolidate",
                    stacklevel=4,
                )
                continue
            layer = replace(layer, basis=grown(layer.basis, places, len(new)))
        found[new if weight is old else weight] = layer
    return found


def grown(basis: Eigenbasis, at: Tensor, total: int) -> Eigenbasis:
    """The basis with `total` outputs: the old ones are `at` these places, the others are free directions."""
    at = at.to(basis.eigenvalues.device)
    free = torch.ones(total, dtype=torch.bool, device=at.device)
    free[at] = False
    more, kept, values, factor = int(free.sum()), basis.kept[0], basis.eigenvalues, basis.output_factor
    larger = factor.new_zeros(len(factor), *[total] * (factor.ndim - 1))
    if basis.outputs is None:
        larger[:, at] = factor
        rows = values.new_zeros(*values.shape[:2], total, values.shape[3])
        rows[:, :, at] = values
        return replace(basis, eigenvalues=rows, output_factor=larger)
    larger[:, at[:, None], at] = factor
    outputs = basis.outputs.new_zeros(len(factor), total, kept + more)
    outputs[:, at, :kept] = basis.outputs
    outputs[:, free, kept:] = torch.eye(more, dtype=outputs.dtype, device=outputs.device)
    zeros = values.new_zeros(*values.shape[:2], more, values.shape[3])
    rows = torch.cat([values[:, :, :kept], zeros, values[:, :, kept:]], 2)
    return replace(basis, outputs=outputs, eigenvalues=rows, output_factor=larger)
