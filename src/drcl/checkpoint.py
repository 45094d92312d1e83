"""A sharded model and its optimizer in a folder, by torch.distributed.checkpoint: every process writes its shards.

    save("folder", model, optimizer)      in the middle of a task, or after one
    load("folder", model, optimizer)      into a new model and optimizer, sharded over any number of processes

torch's own functions work too: ``optimizer.state_dict()`` has tensors and plain values, in the form that
``get_optimizer_state_dict`` and ``set_optimizer_state_dict`` need. But they fill only the tensors that an optimizer
already has, and a new one has no anchor. `load` reads everything in the folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from drcl import sharding
from drcl.anchor import own_names
from drcl.optimizer import DRCL
from drcl.preserve import check_model
from drcl.state import folded

__all__ = ["load", "save"]


def save(folder: str | os.PathLike[str], model: nn.Module, optimizer: DRCL) -> None:
    """Write the model's weights and the optimizer's whole state. All processes must call it."""
    _check(folder, model, optimizer)
    sharding.at_rest(model)
    both = {"model": model.state_dict(), "optimizer": folded(optimizer.state_dict())}
    dcp.save(both, checkpoint_id=str(folder))


def load(folder: str | os.PathLike[str], model: nn.Module, optimizer: DRCL) -> None:
    """Continue from what `save` has written; an optimizer that does not fit is refused. All processes must call it."""
    _check(folder, model, optimizer)
    if not (Path(folder) / ".metadata").is_file():
        raise FileNotFoundError(f"{folder}: there is no checkpoint in this folder; drcl.checkpoint.save writes one")
    named = own_names(model)
    about = dcp.FileSystemReader(str(folder)).read_metadata()
    order = [p for group in optimizer.param_groups for p in group["params"]]
    wanted: dict[str, Any] = {"model": model.state_dict()}
    for key, path in (about.planner_data or {}).items():
        if path[0] == "optimizer":
            _put(wanted, path, _empty(about.state_dict_metadata[key], path, named, order))
    if "optimizer" not in wanted:
        raise ValueError(f"{folder}: the checkpoint holds no optimizer; drcl.checkpoint.save writes one with it")
    dcp.load(wanted, checkpoint_id=str(folder))
    optimizer.load_state_dict(wanted["optimizer"])
    model.load_state_dict(wanted["model"])


def _check(folder: Any, model: Any, optimizer: Any) -> None:
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"folder={folder!r} must be the name of a folder")
    check_model(model, "drcl.checkpoint.save(folder, model, optimizer)")
    if not isinstance(optimizer, DRCL):
        raise TypeError(f"optimizer must be a drcl.DRCL, not {type(optimizer).__name__}")


def _empty(about: Any, path: Sequence[Any], named: dict[str, nn.Parameter], order: list[Tensor]) -> Any:
    """An empty tensor to read a saved one into, sharded like its parameter if that has the same shape."""
    if not isinstance(about, TensorStorageMetadata):
        return None
    dtype = about.properties.dtype
    like: Tensor | None = None
    if "state" in path and str(path[-2]).isdigit() and int(path[-2]) < len(order):
        like = order[int(path[-2])]
    elif path[-2] == "free":
        like = named.get(path[-1])
    if like is not None and like.shape == about.size:
        return torch.empty_like(like, dtype=dtype, requires_grad=False)
    # Optimizers count their steps in a tensor on the CPU.
    device = order[0].device if len(about.size) else torch.device("cpu")
    return torch.empty(about.size, dtype=dtype, device=device)


def _put(tree: Any, path: Sequence[Any], value: Any) -> None:
    """Set one leaf of nested dicts and lists, which grow as needed; a number on the path is a place in a list."""
    for at, following in zip(path, [*path[1:], None]):
        empty: Any = [] if isinstance(following, int) else {}
        value_here = value if following is None else empty
        if isinstance(at, int):
            while len(tree) <= at:
                tree.append(None)
            if tree[at] is None or following is None:
                tree[at] = value_here
        elif following is None or at not in tree:
            tree[at] = value_here
        tree = tree[at]
