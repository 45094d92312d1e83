"""An optimizer's state as tensors and plain values: saved and loaded between processes, and put back when a step fails.

torch keys optimizer state by position, shares the tensors it hands out and casts what it takes in to the parameter's
type; what DRCL needs beyond that (shapes checked, importance in 32 bits, nothing shared, names) is here.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drcl.splitting import directions

if TYPE_CHECKING:
    from drcl.optimizer import DRCL

# Of the parameter's shape; everything else in the state of DRCL itself is a mistake.
TENSORS = ("anchor", "importance", "z", "start", "momentum_buffer")


def importance_dtype(p: Tensor) -> torch.dtype:
    """Importance spans many orders of magnitude: never kept in 16 bits."""
    return torch.float32 if p.dtype in (torch.float16, torch.bfloat16) else p.dtype


def laid_out_like(p: Tensor, values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A copy of `values` on p's device and in p's memory layout, which is what lets the fused step run."""
    return torch.empty_like(p, dtype=dtype or p.dtype).copy_(values)


def saved(optimizer: DRCL, base: dict[str, Any]) -> dict[str, Any]:
    """torch's state dict and what DRCL has to add to it."""
    order = [p for g in optimizer.param_groups for p in g["params"]]
    base["drcl"] = copy.deepcopy(optimizer._progress)
    base["drcl"] |= {"splitting": optimizer.solver.splitting, "normalise": optimizer.solver.normalise}
    base["drcl"]["names"] = [optimizer._names.get(p) for p in order]
    if optimizer._layers:
        base["layers"] = directions.saved(optimizer)
    if optimizer.inner is not None:
        base["inner"] = optimizer.inner.state_dict()
    return base


def check(optimizer: DRCL, state_dict: dict[str, Any]) -> None:
    """Raise, naming the parameter, unless the state belongs to an optimizer like this one."""
    if "drcl" not in state_dict:
        raise ValueError("this state dict was not made by DRCL: it has no 'drcl' entry")
    if (optimizer.inner is None) != ("inner" not in state_dict):
        raise ValueError("one of the two optimizers wraps another (DRCL.around) and the other does not")
    made = {"normalise": "global"} | state_dict["drcl"]  # states of the first version do not name it
    for option in ("splitting", "normalise"):
        ours, theirs = getattr(optimizer.solver, option), made[option]
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
    for _ in directions.loaded(optimizer, state_dict.get("layers", [])):
        pass
    for p, entry in _entries(optimizer, state_dict):
        for key in TENSORS:
            if key in entry and entry[key] is not None and entry[key].shape != p.shape:
                raise ValueError(
                    f"parameter {optimizer.name_of(p)!r} has shape {tuple(p.shape)}, but the saved {key!r} has "
                    f"{tuple(entry[key].shape)}; load it into an optimizer over the same model"
                )


def fill(optimizer: DRCL, state_dict: dict[str, Any]) -> None:
    """After torch has loaded its part: own copies in the right type and layout, the inner optimizer, the rest."""
    for p, entry in _entries(optimizer, state_dict):
        for key in TENSORS:
            if entry.get(key) is not None:
                dtype = importance_dtype(p) if key == "importance" else None
                optimizer.state[p][key] = laid_out_like(p, entry[key], dtype)
    optimizer._layers = dict(directions.loaded(optimizer, state_dict.get("layers", [])))
    if optimizer.inner is not None:
        optimizer.inner.load_state_dict(copy.deepcopy(state_dict["inner"]))
        optimizer._link()
    own = copy.deepcopy(state_dict["drcl"])
    optimizer._progress = {k: own[k] for k in optimizer._progress}
    order = [p for g in optimizer.param_groups for p in g["params"]]
    optimizer._names |= {p: name for p, name in zip(order, own["names"]) if name is not None}


def _entries(optimizer: DRCL, state_dict: dict[str, Any]) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    order = [p for g in optimizer.param_groups for p in g["params"]]
    indices = [i for g in state_dict["param_groups"] for i in g["params"]]
    for index, p in zip(indices, order):
        yield p, state_dict["state"].get(index, {})


@contextlib.contextmanager
def all_or_nothing(optimizer: DRCL) -> Iterator[None]:
    """For what may fail after weights have changed, such as steps of several evaluations: then all is as before."""
    weights = [(p, p.detach().clone()) for g in optimizer.param_groups for p in g["params"]]
    owners = [optimizer] if optimizer.inner is None else [optimizer, optimizer.inner]
    states = [{p: {k: _own(v) for k, v in s.items()} for p, s in owner.state.items()} for owner in owners]
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    progress = copy.deepcopy(optimizer._progress)
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
        optimizer._progress = progress
        raise


def _own(value: Any) -> Any:
    """Optimizers write into their tensors and append to their lists; tensors inside lists they leave alone."""
    return value.clone() if isinstance(value, Tensor) else list(value) if isinstance(value, list) else value
