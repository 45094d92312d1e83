"""An optimizer's state as tensors and plain values, to save and load it, and to put it back when a step fails.

torch keys optimizer state by position, shares the tensors it returns and casts the tensors it loads to the parameter's
type. This module adds what DRCL needs beyond that: checked shapes, importance in 32 bits, own copies, and names.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from drcl import norms, options, sharding
from drcl.directions.adapters import Adapter, cast
from drcl.directions.basis import Eigenbasis
from drcl.importance.base import importance_dtype
from drcl.splitting import auto
from drcl.splitting.checks import TENSORS
from drcl.splitting.directions import Layer
from drcl.splitting.observation import Observer

if TYPE_CHECKING:
    from drcl.optimizer import DRCL

Mode = Literal["train", "eval"]


@dataclass
class Progress:
    """What DRCL stores apart from its groups and the tensors of each parameter."""

    mode: Mode = "train"  # whether the model holds y or z
    tasks: int = 0  # consolidated so far
    importance_mean: float = 0.0  # what the importance was divided by
    made: list[dict[str, Any]] = field(default_factory=list)  # how each task's importance was estimated
    steps_in_proposal: int = 0
    gammas: list[float] = field(default_factory=list)  # per group: sum of the step sizes in the current proposal
    horizon: int = 0  # steps of the last task; `drcl.splitting.auto` needs these five
    steps: int = 0  # of this one
    travel: list[float] = field(default_factory=list)  # per group: sum of the step sizes of this task
    energy: list[float] = field(default_factory=list)  # of its first gradients, by the importance of their directions
    slope: float = 0.0  # mean square of the loss's derivative with respect to an output, from the first gradients
    names: dict[Tensor, str] = field(default_factory=dict)  # as the model calls them
    layers: dict[Tensor, Layer] = field(default_factory=dict)  # held along directions, by their weight
    adapters: dict[str, Adapter] = field(default_factory=dict)  # held by their product, by the weight they add to
    free: dict[str, Tensor] = field(default_factory=dict)  # unprotected parameters when the last task ended
    buffers: dict[str, Tensor] = field(default_factory=dict)  # and the model's buffers, for the anchor
    normed: list[str] = field(default_factory=list)  # layers with running statistics then
    norm_layers: dict[str, nn.Module] = field(default_factory=dict)  # those of them found in the model so far
    statistics: dict[str, Tensor] = field(default_factory=dict)  # with norms="per-task": theirs, stacked over tasks
    observer: Observer | None = None  # watches negotiations without changing anything

    def plain(self) -> dict[str, Any]:
        """A copy of everything that is not a tensor."""
        return {key: copy.deepcopy(getattr(self, key)) for key in PLAIN}


SAME = ("splitting", "normalise", "norms")  # options that a saved state depends on
FOLDED = "drcl"  # key in the first group for everything of DRCL's, when parameters are sharded
PARTS = ("free", "buffers", "statistics")  # tensors by name
PLAIN = (
    "mode",
    "tasks",
    "importance_mean",
    "made",
    "steps_in_proposal",
    "gammas",
    "normed",
    "horizon",
    "steps",
    "travel",
    "energy",
    "slope",
)


def stored_dtype(optimizer: DRCL, p: Tensor) -> torch.dtype:
    """The type that importance and directions of a parameter are kept in from step to step."""
    return optimizer.solver.storage or importance_dtype(p)


def placed(optimizer: DRCL, p: Tensor, importance: Tensor) -> Tensor:
    """Importance as it is kept: in the type of `stored_dtype`, spread as the parameter is."""
    dtype = stored_dtype(optimizer, p)
    return (
        importance if importance.dtype is dtype and not sharding.is_sharded(p) else laid_out_like(p, importance, dtype)
    )


def laid_out_like(p: Tensor, values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A copy of `values` on p's device and in p's memory layout, as the fused step needs it."""
    made = torch.empty_like(p, dtype=dtype or p.dtype)
    sharding.local(made).copy_(sharding.part(values, p))
    return made


def pack(optimizer: DRCL, base: dict[str, Any]) -> dict[str, Any]:
    """torch's state dict with DRCL's additions."""
    order = _order(optimizer)
    base["drcl"] = optimizer.progress.plain()
    base["drcl"] |= {option: getattr(optimizer.solver, option) for option in SAME}
    base["drcl"]["names"] = [optimizer.progress.names.get(p) for p in order]
    if optimizer.progress.layers:
        base["layers"] = _packed_layers(optimizer)
    if optimizer.progress.adapters:
        base["adapters"] = _packed_adapters(optimizer)
    for part in PARTS:
        base[part] = {name: t.clone() for name, t in getattr(optimizer.progress, part).items()}
    if optimizer.inner is not None:
        base["inner"] = optimizer.inner.state_dict()
    return folded(base) if any(map(sharding.is_sharded, order)) else base


def folded(state_dict: dict[str, Any]) -> dict[str, Any]:
    """The form that torch.distributed.checkpoint needs, a torch optimizer's: everything else is in the first group."""
    first, *others = state_dict["param_groups"]
    if FOLDED in first:
        return state_dict
    more = {key: value for key, value in state_dict.items() if key not in ("state", "param_groups")}
    count = sum(len(g["params"]) for g in state_dict["param_groups"])
    state = {i: state_dict["state"].get(i, {}) for i in range(count)}  # torch needs an entry for every parameter
    return {"state": state, "param_groups": [{**first, FOLDED: more}, *others]}


def _unfolded(state_dict: Any) -> Any:
    """Undo `folded`; anything else is returned unchanged."""
    try:
        first, *others = state_dict["param_groups"]
        more = first[FOLDED]
        # A checkpoint drops empty dicts and turns keys that were numbers into text.
        more = {**{part: {} for part in PARTS}, **more}
        if "inner" in more:
            more["inner"] = {**more["inner"], "state": _with_numbers(more["inner"].get("state", {}))}
        state = _with_numbers(state_dict.get("state", {}))
    except (TypeError, KeyError, ValueError, AttributeError):
        return state_dict
    plain = {key: value for key, value in first.items() if key != FOLDED}
    return {"state": state, "param_groups": [plain, *others], **more}


def _with_numbers(state: Mapping[Any, Any]) -> dict[Any, Any]:
    return {int(key) if str(key).isdigit() else key: value for key, value in state.items()}


def checked(optimizer: DRCL, state_dict: Any) -> dict[str, Any]:
    """A state in the form that `pack` gives for unsharded parameters; an error unless it is complete and fits."""
    state_dict = _unfolded(state_dict)
    _check(optimizer, state_dict)
    found: dict[str, Any] = state_dict
    return found


def _check(optimizer: DRCL, state_dict: Any) -> None:
    """Raise, naming the part or parameter, unless the state is complete, valid and from an optimizer like this one."""
    own = state_dict.get("drcl") if isinstance(state_dict, Mapping) else None
    if not isinstance(own, Mapping):
        raise ValueError("this state dict was not made by DRCL: it has no 'drcl' entry")
    missing = [key for key in ("state", "param_groups", *PARTS) if key not in state_dict]
    missing += [key for key in (*PLAIN, *SAME, "names") if key not in own]
    if missing:
        raise ValueError(f"the state dict is incomplete, it lacks {', '.join(missing)}; use another copy")
    if (optimizer.inner is None) != ("inner" not in state_dict):
        raise ValueError("one of the two optimizers wraps another (DRCL.around) and the other does not")
    for option in SAME:
        ours, theirs = getattr(optimizer.solver, option), own[option]
        if ours != theirs:
            raise ValueError(
                f"the state was saved with {option}={theirs!r}; make this optimizer with the same, not {ours!r}"
            )
    _check_groups(optimizer, state_dict)
    _check_progress(optimizer, own)
    for _ in _unpacked_layers(optimizer, state_dict.get("layers", [])):
        pass
    for _ in _unpacked_adapters(optimizer, state_dict.get("adapters", [])):
        pass
    for part in PARTS:
        kept = state_dict[part]
        if not isinstance(kept, Mapping) or not all(isinstance(t, Tensor) for t in kept.values()):
            raise ValueError(f"the state dict's {part!r} must hold tensors by name; use another copy")
    for p, entry in _entries(optimizer, state_dict):
        _check_entry(optimizer, p, entry)
    if own["tasks"] and not any("anchor" in entry for _, entry in _entries(optimizer, state_dict)):
        raise ValueError(
            f"the state dict is incomplete: it counts {own['tasks']} tasks but has no anchor. "
            "torch.distributed.checkpoint loads only what the optimizer had before; use drcl.checkpoint.load"
        )


def _check_groups(optimizer: DRCL, state_dict: Mapping[str, Any]) -> None:
    sizes = [len(g["params"]) for g in optimizer.param_groups]
    for part in (state_dict, state_dict.get("inner", state_dict)):
        try:
            found = [len(g["params"]) for g in part["param_groups"]]
            sound = isinstance(part["state"], Mapping)
        except (TypeError, KeyError):
            sound = False
        if not sound:
            raise ValueError("the groups or the state in the state dict cannot be read; use another copy")
        if found != sizes:
            raise ValueError(
                f"the saved groups hold {found} parameters, this optimizer's {sizes}; make it over the same model, "
                "with the same groups added in the same order"
            )
    for index, group in enumerate(state_dict["param_groups"]):
        try:
            options.group(group, optimizer.solver, strict=optimizer.inner is None)
        except (TypeError, ValueError, KeyError) as reason:
            raise ValueError(f"group {index} of the state dict: {reason}") from None


def _check_progress(optimizer: DRCL, own: Mapping[str, Any]) -> None:
    """Raise for the first plain value that is impossible."""
    groups, parameters = len(optimizer.param_groups), len(_order(optimizer))
    sound = {
        "mode": own["mode"] in ("train", "eval"),
        "tasks": _whole(own["tasks"]),
        "steps_in_proposal": _whole(own["steps_in_proposal"]),
        "importance_mean": _measure(own["importance_mean"]),
        "made": isinstance(own["made"], Sequence) and all(isinstance(m, Mapping) for m in own["made"]),
        "normed": isinstance(own["normed"], Sequence) and all(isinstance(n, str) for n in own["normed"]),
        "gammas": isinstance(own["gammas"], Sequence)
        and all(map(_measure, own["gammas"]))
        and len(own["gammas"]) in (0, groups),
        "horizon": _whole(own["horizon"]),
        "steps": _whole(own["steps"]),
        "travel": isinstance(own["travel"], Sequence)
        and all(map(_measure, own["travel"]))
        and len(own["travel"]) in (0, groups),
        "energy": isinstance(own["energy"], Sequence)
        and all(map(_measure, own["energy"]))
        and len(own["energy"]) in (0, auto.PLACES),
        "slope": _measure(own["slope"]),
        "names": isinstance(own["names"], Sequence)
        and all(n is None or isinstance(n, str) for n in own["names"])
        and len(own["names"]) == parameters,
    }
    for key, good in sound.items():
        if not good:
            raise ValueError(
                f"the state dict has {key}={own[key]!r}, which is impossible: it is damaged; use another copy"
            )


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _measure(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def _check_entry(optimizer: DRCL, p: Tensor, entry: Any) -> None:
    """Raise unless one parameter's tensors are there, have its shape and are finite, with importance >= 0."""
    name = optimizer.name_of(p)
    if not isinstance(entry, Mapping):
        raise ValueError(f"parameter {name!r}: the saved state cannot be read; use another copy")
    given = {key: entry[key] for key in TENSORS if entry.get(key) is not None}
    needed = {"anchor", "importance"} | ({"z"} if optimizer.solver.splitting != "forward-backward" else set())
    if given.keys() & needed and not needed <= given.keys():
        raise ValueError(f"parameter {name!r}: the saved state lacks {', '.join(sorted(needed - given.keys()))}")
    for key, t in given.items():
        if not isinstance(t, Tensor):
            raise ValueError(f"parameter {name!r}: the saved {key!r} is {type(t).__name__}, not a tensor")
        if t.shape != p.shape:
            raise ValueError(
                f"parameter {name!r} has shape {tuple(p.shape)}, but the saved {key!r} has {tuple(t.shape)}; load it "
                "into an optimizer over the same model"
            )
        if not bool(torch.isfinite(sharding.local(t)).all()):
            raise ValueError(f"parameter {name!r}: the saved {key!r} holds NaN or infinite values; use another copy")
    if "importance" in given and bool((sharding.local(given["importance"]) < 0).any()):
        raise ValueError(f"parameter {name!r}: the saved 'importance' has negative values; use another copy")


def unpack(optimizer: DRCL, state_dict: dict[str, Any]) -> None:
    """After torch has loaded its part: own copies in the right type and layout, the inner optimizer, the rest."""
    for p, entry in _entries(optimizer, state_dict):
        for key in TENSORS:
            if entry.get(key) is not None:
                dtype = stored_dtype(optimizer, p) if key == "importance" else None
                optimizer.state[p][key] = laid_out_like(p, entry[key], dtype)
    if optimizer.inner is not None:
        optimizer.inner.load_state_dict(copy.deepcopy(state_dict["inner"]))
        optimizer.share_groups()
    own = copy.deepcopy(state_dict["drcl"])
    names = {p: name for p, name in zip(_order(optimizer), own["names"]) if name is not None}
    known = optimizer.progress.norm_layers
    optimizer.progress = Progress(
        **{key: own[key] for key in PLAIN},
        names=optimizer.progress.names | names,
        observer=optimizer.progress.observer,
        layers=dict(_unpacked_layers(optimizer, state_dict.get("layers", []))),
        adapters=dict(_unpacked_adapters(optimizer, state_dict.get("adapters", []))),
    )
    for part in PARTS:
        setattr(optimizer.progress, part, {name: t.clone() for name, t in state_dict[part].items()})
    norms.resume(optimizer, known)


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
        try:
            weight = order[entry["weight"]]
            bias = None if entry["bias_at"] is None else order[entry["bias_at"]]
            tensors = {name: t for name, t in entry.items() if isinstance(t, Tensor)}
        except (TypeError, KeyError, IndexError, AttributeError) as reason:
            raise ValueError(f"a layer of the state dict cannot be read ({reason!r}); use another copy") from None
        try:
            basis = Eigenbasis.restored(tensors, entry)
            basis.check(weight)
        except ValueError as reason:
            raise ValueError(
                f"parameter {optimizer.name_of(weight)!r}: {reason}; load it into an optimizer over the same model"
            ) from None
        yield weight, Layer(basis.cast(weight, stored_dtype(optimizer, weight)), bias)


def _packed_adapters(optimizer: DRCL) -> list[dict[str, Any]]:
    """The adapters as tensors and plain values, their factors by position."""
    order = {p: i for i, p in enumerate(_order(optimizer))}
    return [
        {
            "name": name,
            "a_at": order[adapter.a],
            "b_at": order[adapter.b],
            **adapter.facts(),
            **{key: t.clone() for key, t in adapter.tensors().items() if key not in ("a", "b")},
        }
        for name, adapter in optimizer.progress.adapters.items()
    ]


def _unpacked_adapters(optimizer: DRCL, entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Adapter]]:
    """Copies of packed adapters, checked against this optimizer's parameters."""
    order = _order(optimizer)
    for entry in entries:
        try:
            name, a, b = str(entry["name"]), order[entry["a_at"]], order[entry["b_at"]]
            tensors = {"a": a, "b": b, **{key: t for key, t in entry.items() if isinstance(t, Tensor)}}
        except (TypeError, KeyError, IndexError, AttributeError) as reason:
            raise ValueError(f"an adapter of the state dict cannot be read ({reason!r}); use another copy") from None
        try:
            adapter = Adapter.restored(tensors, entry)
            adapter.check()
        except ValueError as reason:
            raise ValueError(
                f"the adapter of {name!r}: {reason}; load it into an optimizer over the same model"
            ) from None
        yield name, cast(adapter, a, b, stored_dtype(optimizer, a))
