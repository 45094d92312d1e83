"""Nested state as JSON and tensors: what checkpoints are made of. Nothing here can run code when it is read.

JSON has lists, objects with text keys, and no infinities; state has tuples, dicts keyed by numbers, NaN and tensors.
So everything that JSON would change is written as an object with one special key, and no other objects are written.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


class NestedError(ValueError):
    """A value that cannot be stored, or text that `pack` did not write."""


def pack(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """A JSON value and the tensors it refers to. The tensors are copies on the CPU: later steps do not change them."""
    found: dict[str, Tensor] = {}
    return _pack(value, found, "state"), found


def unpack(text: Any, tensors: dict[str, Tensor], device: torch.device | str = "cpu") -> Any:
    """The value again, bit for bit, strides included; tensors that were not on the CPU go to `device`."""
    if isinstance(text, list):
        return [unpack(v, tensors, device) for v in text]
    if not isinstance(text, dict):
        return text
    if len(text) != 1:
        raise NestedError(f"an object with the keys {sorted(text)} was not written by pack")
    [(kind, content)] = text.items()
    if kind == "tuple":
        return tuple(unpack(v, tensors, device) for v in content)
    if kind == "dict":
        return {unpack(k, tensors, device): unpack(v, tensors, device) for k, v in content}
    if kind == "float":
        return float(content)
    if kind == "tensor":
        return _restore(content, tensors, device)
    raise NestedError(f"an object called {kind!r} was not written by pack")


def _pack(value: Any, found: dict[str, Tensor], path: str) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, Tensor):
        return {"tensor": _keep(value, found, path)}
    if isinstance(value, list):
        return [_pack(v, found, f"{path}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": [_pack(v, found, f"{path}[{i}]") for i, v in enumerate(value)]}
    if isinstance(value, dict):
        # Optimizers key their state by number; insertion order is kept, because float sums depend on it.
        return {"dict": [[_key(k, path), _pack(v, found, f"{path}[{k!r}]")] for k, v in value.items()]}
    raise NestedError(
        f"{path} is a {type(value).__name__}, which cannot be stored without pickle; use tensors, numbers, "
        "text, lists, tuples and dicts of them"
    )


def _key(key: Any, path: str) -> Any:
    if isinstance(key, tuple):
        return {"tuple": [_key(k, path) for k in key]}
    if key is None or isinstance(key, bool | str) or type(key) is int:
        return key
    raise NestedError(f"{path} has the key {key!r}; use text, whole numbers or tuples of them")


def _keep(tensor: Tensor, found: dict[str, Tensor], path: str) -> dict[str, Any]:
    if tensor.is_sparse or tensor.is_quantized or tensor.is_complex():
        raise NestedError(f"{path} is a sparse, quantised or complex tensor; use a dense real one")
    number = str(len(found))
    found[number] = tensor.detach().to("cpu", copy=True).contiguous()
    about: dict[str, Any] = {"at": number}
    if tensor.device.type != "cpu":
        about["moved"] = True
    if not tensor.is_contiguous() and 0 not in tensor.stride():
        # A matrix product with a transposed factor may round differently from one with its copy.
        about["stride"] = list(tensor.stride())
    return about


def _restore(about: dict[str, Any], tensors: dict[str, Tensor], device: torch.device | str) -> Tensor:
    try:
        kept = tensors[about["at"]]
    except (KeyError, TypeError):
        raise NestedError(f"the tensor {about!r} is missing") from None
    # Always copy: torch's own memory is aligned, and kernels may round differently on unaligned memory.
    if "stride" in about:
        value = torch.empty_strided(kept.shape, about["stride"], dtype=kept.dtype)
        value.copy_(kept)
    else:
        value = kept.clone(memory_format=torch.contiguous_format)
    return value.to(device) if about.get("moved") else value
