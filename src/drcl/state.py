"""An optimizer's state as tensors and plain values: saved and loaded between processes, and put back when a step fails.

torch keys optimizer state by position, shares the tensors it hands out and casts what it takes in to the parameter's
type; what DRCL needs beyond that (shapes checked, importance in 32 bits, nothing shared, names) is here.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from drcl.directions.basis import Eigenbasis
from drcl.splitting.checks import TENSORS
from drcl.splitting.directions import Layer

if TYPE_CHECKING:
    from drcl.optimizer import DRCL

Mode = Literal["train", "eval"]


@dataclass
class Progress:
    """What DRCL knows beside its groups and the tensors of each parameter."""

    mode: Mode = "train"  # whether the model holds y or z
    tasks: int = 0  # consolidated so far
    importance_mean: float = 0.0  # what the importance was divided by
    made: list[dict[str, Any]] = field(default_factory=list)  # how each task's importance was estimated
    steps_in_proposal: int = 0
    gammas: list[float] = field(default_factory=list)  # of each group: the rates of the steps in the proposal, summed
    names: dict[Tensor, str] = field(default_factory=dict)  # as the model calls them
    layers: dict[Tensor, Layer] = field(default_factory=dict)  # held along directions, by their weight

    def plain(self) -> dict[str, Any]:
        """A copy of what is no tensor."""
        return {key: copy.deepcopy(getattr(self, key)) for key in PLAIN}


PLAIN = ("mode", "tasks", "importance_mean", "made", "steps_in_proposal", "gammas")


def importance_dtype(p: Tensor) -> torch.dtype:
    """Importance spans many orders of magnitude: never kept in 16 bits."""
    return torch.float32 if p.dtype in (torch.float16, torch.bfloat16) else p.dtype


def laid_out_like(p: Tensor, values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A copy of `values` on p's device and in p's memory layout, which is what lets the fused step run."""
    return torch.empty_like(p, dtype=dtype or p.dtype).copy_(values)


def pack(optimizer: DRCL, base: dict[str, Any]) -> dict[str, Any]:
    """torch's state dict and what DRCL has to add to it."""
    order = _order(optimizer)
    base["drcl"] = optimizer.progress.plain()
    base["drcl"] |= {"splitting": optimizer.solver.splitting, "normalise": optimizer.solver.normalise}
    base["drcl"]["names"] = [optimizer.progress.names.get(p) for p in order]
    if optimizer.progress.layers:
        base["layers"] = _packed_layers(optimizer)
    if optimizer.inner is not None:
        base["inner"] = optimizer.inner.state_dict()
    return base


def check(optimizer: DRCL, state_dict: dict[str, Any]) -> None:
    """Raise, naming the parameter, unless the state belongs to an optimizer like this one."""
    if "drcl" not in state_dict:
        raise ValueError("this state dict was not made by DRCL: it has no 'drcl' entry")
    missing = [key for key in (*PLAIN, "splitting", "normalise", "names") if key not in state_dict["drcl"]]
    if missing:
        raise ValueError(f"the state dict lacks {', '.join(missing)} in its 'drcl' entry: it is not whole")
    if (optimizer.inner is None) != ("inner" not in state_dict):
        raise ValueError("one of the two optimizers wraps another (DRCL.around) and the other does not")
    for option in ("splitting", "normalise"):
        ours, theirs = getattr(optimizer.solver, option), state_dict["drcl"][option]
        if ours != theirs:
            raise ValueError(
                f"the state was saved with {option}={theirs!r}; make this optimizer with the same, not {ours!r}"
            )
    sizes = [len(g["params"]) for g in optimizer.param_groups]
    for groups in (d["param_groups"] for d in (state_dict, state_dict.get("inner", state_dict))):
        found = [len(g["params"]) for g in groups]
        if found != sizes:
            raise ValueError(
                f"the saved groups hold {found} parameters, this optimizer's {sizes}; make it over the same model, "
                "with the same groups added in the same order"
            )
    for _ in _unpacked_layers(optimizer, state_dict.get("layers", [])):
        pass
    for p, entry in _entries(optimizer, state_dict):
        for key in TENSORS:
            if key in entry and entry[key] is not None and entry[key].shape != p.shape:
                raise ValueError(
                    f"parameter {optimizer.name_of(p)!r} has shape {tuple(p.shape)}, but the saved {key!r} has "
                    f"{tuple(entry[key].shape)}; load it into an optimizer over the same model"
                )


def unpack(optimizer: DRCL, state_dict: dict[str, Any]) -> None:
    """After torch has loaded its part: own copies in the right type and layout, the inner optimizer, the rest."""
    for p, entry in _entries(optimizer, state_dict):
        for key in TENSORS:
            if entry.get(key) is not None:
                dtype = importance_dtype(p) if key == "importance" else None
                optimizer.state[p][key] = laid_out_like(p, entry[key], dtype)
    if optimizer.inner is not None:
        optimizer.inner.load_state_dict(copy.deepcopy(state_dict["inner"]))
        optimizer.share_groups()
    own = copy.deepcopy(state_dict["drcl"])
    names = {p: name for p, name in zip(_order(optimizer), own["names"]) if name is not None}
    optimizer.progress = Progress(
        **{key: own[key] for key in PLAIN},
        names=optimizer.progress.names | names,
        layers=dict(_unpacked_layers(optimizer, state_dict.get("layers", []))),
    )


def _order(optimizer: DRCL) -> list[Tensor]:
    """All parameters, in the order in which torch counts them."""
    return [p for g in optimizer.param_groups for p in g["params"]]


def _entries(optimizer: DRCL, state_dict: dict[str, Any]) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    indices = [i for g in state_dict["param_groups"] for i in g["params"]]
    for index, p in zip(indices, _order(optimizer)):
        yield p, state_dict["state"].get(index, {})


def _packed_layers(optimizer: DRCL) -> list[dict[str, Any]]:
    """The layers as tensors and plain values, by the position of their parameters."""
    order = {p: i for i, p in enumerate(_order(optimizer))}
    return [
        {
            "weight": order[p],
            "bias_at": None if layer.bias is None else order[layer.bias],
            **layer.basis.facts(),
            **{name: t.clone() for name, t in layer.basis.tensors().items()},
        }
        for p, layer in optimizer.progress.layers.items()
    ]


def _unpacked_layers(optimizer: DRCL, entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Tensor, Layer]]:
    """Copies of packed layers, checked against this optimizer's parameters."""
    order = _order(optimizer)
    for entry in entries:
        weight = order[entry["weight"]]
        bias = None if entry["bias_at"] is None else order[entry["bias_at"]]
        tensors = {name: t for name, t in entry.items() if isinstance(t, Tensor)}
        basis = Eigenbasis.restored(tensors, entry)
        try:
            basis.check(weight)
        except ValueError as reason:
            raise ValueError(
                f"parameter {optimizer.name_of(weight)!r}: {reason}; load it into an optimizer over the same model"
            ) from None
        yield weight, Layer(basis.cast(weight, importance_dtype(weight)), bias)


@contextlib.contextmanager
def all_or_nothing(optimizer: DRCL) -> Iterator[None]:
    """For what may fail after weights have changed, such as steps of several evaluations: then all is as before."""
    weights = [(p, p.detach().clone()) for g in optimizer.param_groups for p in g["params"]]
    owners = [optimizer] if optimizer.inner is None else [optimizer, optimizer.inner]
    states = [{p: {k: _own(v) for k, v in s.items()} for p, s in owner.state.items()} for owner in owners]
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    progress = optimizer.progress.plain()
    try:
        yield
    except BaseException:
        for p, before in weights:
            p.copy_(before)
        for owner, state in zip(owners, states):
            owner.state.clear()
            owner.state.update(state)
        for group, before in zip(optimizer.param_groups, groups):
            group.update(before)
        for key, value in progress.items():
            setattr(optimizer.progress, key, value)
        raise


def _own(value: Any) -> Any:
    """Optimizers write into their tensors and append to their lists; tensors inside lists they leave alone."""
    return value.clone() if isinstance(value, Tensor) else list(value) if isinstance(value, list) else value
