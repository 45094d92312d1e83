"""Parameters that are spread over processes, as the DTensors of FSDP2's ``fully_shard``.

Every process holds some rows of each parameter, its shard, and the same rows of anchor, importance and momentum.
Arithmetic on single weights works on shards, without communication. Code that needs a whole tensor gathers it with
`full`, which all processes must call; `part` cuts this process's rows out of the result.

Importance is measured on a model without shards (`whole`), and added up over processes (`drcl.ranks`).
"""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drcl import ranks

_PLAIN = (Tensor, nn.Parameter)
# Attributes that DeepSpeed and the first FSDP leave on parameters whose values they keep in flattened pieces.
_FLAT = {"ds_id": "DeepSpeed", "ds_tensor": "DeepSpeed", "_fsdp_flattened": "FullyShardedDataParallel"}


def is_sharded(t: Any) -> bool:
    """Whether it is a DTensor. Their module takes a second to load, so we look only if it is loaded already."""
    if type(t) in _PLAIN:
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(t, module.DTensor)


def refusal(p: Tensor) -> str | None:
    """Why DRCL cannot train this parameter; None if it is an ordinary tensor or sharded by FSDP2."""
    for mark, who in _FLAT.items():
        if getattr(p, mark, None) not in (None, False):
            return (
                f"is held by {who} in flattened pieces without rows; DRCL needs ordinary tensors or those of "
                "FSDP2: shard with torch.distributed.fsdp.fully_shard(model) instead"
            )
    if type(p) in _PLAIN or type(p).__torch_dispatch__ is Tensor.__torch_dispatch__:
        return None
    if not is_sharded(p):
        return (
            f"is a {type(p).__name__}, whose values are stored in other tensors (as in quantisation); DRCL needs "
            "ordinary tensors or those of FSDP2: give it to another optimizer"
        )
    one: Any = p
    kinds = sys.modules["torch.distributed.tensor"]
    if any(type(place) not in (kinds.Shard, kinds.Replicate) for place in one.placements):
        return (
            f"is a DTensor placed as {one.placements}; DRCL supports only the shards of "
            "torch.distributed.fsdp.fully_shard(model): leave out tensor parallelism"
        )
    if one.device.type not in (one.device_mesh.device_type, "meta"):
        return (
            f"is a DTensor on {one.device.type}, but its processes work on {one.device_mesh.device_type}; call "
            "fully_shard(model) without offload_policy"
        )
    return None


# -- one tensor --------------------------------------------------------------------------------------------------------


def local(t: Tensor) -> Tensor:
    """This process's shard, without a copy; any other tensor unchanged."""
    if not is_sharded(t):
        return t
    one: Any = t
    with torch.no_grad():
        found: Tensor = one.to_local()
        return found


def full(t: Tensor) -> Tensor:
    """The whole tensor, gathered; all processes must call this. Any other tensor unchanged."""
    one: Any = t
    return one.detach().full_tensor() if is_sharded(t) else t


def wrap(shard: Tensor, like: Tensor) -> Tensor:
    """A shard as part of a tensor that is sharded like `like`."""
    if not is_sharded(like):
        return shard
    one: Any = like
    kind = sys.modules["torch.distributed.tensor"].DTensor
    made: Tensor = kind.from_local(
        shard, one.device_mesh, one.placements, run_check=False, shape=one.shape, stride=one.stride()
    )
    return made


def gathered(shard: Tensor, like: Tensor) -> Tensor:
    """The whole tensor of which this is the shard, if `like` is sharded."""
    return full(wrap(shard, like))


def part(values: Tensor, like: Tensor) -> Tensor:
    """The part of `values`, whole or sharded in any way, that belongs to this process's shard of `like`."""
    if not is_sharded(like):
        return full(values)
    one: Any = like
    if is_sharded(values):
        other: Any = values
        if other.placements == one.placements and other.device_mesh == one.device_mesh:
            return local(values)
        values = full(values)
    for d, place in enumerate(one.placements):
        if place.is_shard():
            pieces, at = values.chunk(one.device_mesh.size(d), place.dim), one.device_mesh.get_local_rank(d)
            values = pieces[at] if at < len(pieces) else values.narrow(place.dim, 0, 0)
    return values


def put(t: Tensor, values: Tensor) -> None:
    """Write into a tensor; of `values` for the whole of a sharded one this process's part."""
    local(t).copy_(part(values, t))


def apart(t: Tensor, p: Tensor) -> bool:
    """Whether the two tensors are sharded in different ways."""
    if not is_sharded(t) and not is_sharded(p):
        return False
    one: Any = t
    other: Any = p
    if not is_sharded(t) or not is_sharded(p):
        return True
    return bool(one.placements != other.placements or one.device_mesh != other.device_mesh)


def added(value: Tensor, like: Tensor) -> Tensor:
    """The sum, over all processes that share `like`, of the values each has computed."""
    if is_sharded(like):
        one: Any = like
        value = value.clone()
        for d, place in enumerate(one.placements):
            if place.is_shard():
                dist.all_reduce(value, group=one.device_mesh.get_group(d))
    return value


def joined(values: Tensor, like: Tensor) -> Tensor:
    """The values that the processes computed on their shards of `like`, in any number, one after the other."""
    if not is_sharded(like):
        return values
    one: Any = like
    for d, place in enumerate(one.placements):
        if place.is_shard():
            group, count = one.device_mesh.get_group(d), one.device_mesh.size(d)
            sizes = [torch.zeros((), dtype=torch.long, device=values.device) for _ in range(count)]
            dist.all_gather(sizes, torch.tensor(len(values), device=values.device), group=group)
            longest = max(int(n) for n in sizes)
            parts = [values.new_empty(longest) for _ in range(count)]
            dist.all_gather(parts, nn.functional.pad(values, (0, longest - len(values))), group=group)
            values = torch.cat([part[: int(n)] for part, n in zip(parts, sizes)])
    return values


def squared(t: Tensor) -> Tensor:
    """The sum of squares, in double; over all shards."""
    return added(torch.linalg.vector_norm(local(t), dtype=torch.float64).square(), t)


def exchange(one: Tensor, other: Tensor) -> None:
    """Swap the values of two tensors."""
    kept = one.clone()
    one.copy_(other)
    other.copy_(kept)


# -- a whole model -----------------------------------------------------------------------------------------------------

# All sharded models seen so far: what they gathered for a forward pass is stale once weights are exchanged.
_MET: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def _sharded_modules(model: nn.Module) -> Iterator[Any]:
    module = sys.modules.get("torch.distributed.fsdp")
    if module is not None:
        yield from (m for m in model.modules() if isinstance(m, module.FSDPModule))


def at_rest(model: nn.Module) -> None:
    """Free what a forward pass has gathered, so that the model's parameters are the optimizer's again."""
    for module in _sharded_modules(model):
        module.reshard()
        _MET.add(model)


def weights_changed() -> None:
    """Make the next forward pass gather again: FSDP2 keeps the outermost parameters after one in evaluation."""
    for model in list(_MET):
        at_rest(model)


@contextmanager
def whole(model: nn.Module, named: Mapping[str, nn.Parameter]) -> Iterator[dict[str, nn.Parameter]]:
    """Inside, the model is an ordinary one with all its parameters on every process; yields those named in `named`.

    Per-sample gradients need plain layers that do not communicate, because processes may have different numbers of
    batches and torch.func calls the layers. This takes the memory of the whole model once. Do not write to the weights.
    """
    spread = [p for p in model.parameters() if is_sharded(p)]
    if not spread:
        yield dict(named)
        return
    wrappers = list(_sharded_modules(model))
    if not wrappers:
        raise TypeError(
            "the model has DTensors that fully_shard did not make; importance can be measured only on models that are "
            "not sharded, or sharded by torch.distributed.fsdp.fully_shard(model)"
        )
    made = {p: nn.Parameter(full(p).detach(), requires_grad=p.requires_grad) for p in spread}
    places = [(m._parameters, key, p) for m in model.modules() for key, p in m._parameters.items() if is_sharded(p)]
    kinds = [(m, m.__class__) for m in wrappers]
    hooks = [(m, m._forward_pre_hooks, m._forward_hooks) for m in model.modules()]
    one: Any = spread[0]
    try:
        for parameters, key, p in places:
            assert p is not None
            parameters[key] = made[p]
        for module, kind in kinds:
            module.__class__ = kind.__mro__[kind._orig_cls_mro_index]
        for module, before, after in hooks:
            module._forward_pre_hooks, module._forward_hooks = _without_sharding(before), _without_sharding(after)
        with ranks.of(one.device_mesh):
            yield {name: made.get(p, p) for name, p in named.items()}
    finally:
        for module, before, after in hooks:
            module._forward_pre_hooks, module._forward_hooks = before, after
        for module, kind in kinds:
            module.__class__ = kind
        for parameters, key, p in places:
            parameters[key] = p
        for plain in made.values():
            plain.data = plain.data.new_empty(0)  # free the memory even if someone still refers to the parameter


def _without_sharding(hooks: Any) -> Any:
    """The hooks without those of FSDP2, which would gather and free parameters."""
    return OrderedDict((key, hook) for key, hook in hooks.items() if not _of_sharding(hook))


def _of_sharding(hook: Any) -> bool:
    """Whether it is a method of FSDP2's own objects, or wrapped around one."""
    while hook is not None:
        if type(getattr(hook, "__self__", None)).__module__.startswith("torch.distributed.fsdp."):
            return True
        hook = getattr(hook, "__wrapped__", None)
    return False
