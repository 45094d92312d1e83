"""How to call the model on a batch if the caller does not say: `(inputs, labels)`, or a dict by names.

Loaders of transformers give dicts; all entries but the labels go to the model by name. This module knows only the names
that library uses. For a model that predicts the next token, labels move by one position, as in the model's own loss,
and positions outside the attention mask do not count.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from drcl.importance.outputs import IGNORED, Target
from drcl.per_sample.draw import map_tensors, tensors

__all__ = ["default_forward"]

_LABELS = ("labels", "label")
_REMEDY = "pass forward=lambda model, batch: (output, target) to read batches of another kind"


def default_forward(model: nn.Module, batch: Any) -> tuple[Any, Any]:
    """The output and its target; inputs go to the model's device.

    A batch is `(inputs, labels)`, inputs alone, or a dict whose entries are arguments of the model. A batch with more
    tensors is refused, because only the caller knows what they are.
    """
    device = next(model.parameters()).device
    if isinstance(batch, Mapping):
        return _by_name(model, batch, device)
    if isinstance(batch, Tensor):
        batch = (batch,)
    if not isinstance(batch, tuple | list) or len(batch) == 0:
        raise TypeError(f"a batch must be (inputs, labels), got {type(batch).__name__}; {_REMEDY}")
    if any(tensors(part) for part in batch[2:]):
        parts = ", ".join(str(list(part.shape)) if isinstance(part, Tensor) else "..." for part in batch)
        raise TypeError(
            f"a batch holds {len(batch)} parts ({parts}), but drcl understands only (inputs, labels); say which is "
            "which, for instance forward=lambda model, batch: (model(batch[0], batch[1]), batch[2])"
        )
    inputs = map_tensors(lambda t: t.to(device), batch[0])
    target = batch[1] if len(batch) > 1 else None
    if _predicts_next(model) and _unmoved(inputs, target):
        raise ValueError(
            f"{type(model).__name__} predicts the next token, but the labels are its inputs themselves; give batches "
            "as dicts, {'input_ids': ..., 'labels': ...}: drcl moves their labels by one position"
        )
    return plain_output(model(inputs)), target


def plain_output(output: Any) -> Any:
    """The logits of an output object that is not itself a container of tensors; anything else unchanged."""
    if isinstance(output, Tensor | Mapping | tuple | list):
        return output
    logits = getattr(output, "logits", None)
    return logits if isinstance(logits, Tensor) else output


def _by_name(model: nn.Module, batch: Mapping[str, Any], device: torch.device) -> tuple[Any, Any]:
    labelled = next((name for name in _LABELS if name in batch), None)
    takes = inspect.signature(model.forward).parameters
    inputs = {name: value for name, value in batch.items() if name not in _LABELS}
    if not any(p.kind is p.VAR_KEYWORD for p in takes.values()):
        unknown = [name for name in inputs if name not in takes]
        if unknown or not inputs:
            raise TypeError(
                f"a batch must be (inputs, labels), got {type(batch).__name__}; {_REMEDY}, or give its entries the "
                f"names of the arguments of {type(model).__name__}.forward({', '.join(takes)})"
                + (f": {unknown[0]!r} is none of them" if unknown else "")
            )
    if labelled is not None and _needs_labels(model, takes, labelled):
        inputs[labelled] = batch[labelled]
    if "use_cache" in takes:
        inputs.setdefault("use_cache", False)  # no more tokens follow, so a cache would only waste memory
    output = plain_output(model(**map_tensors(lambda t: t.to(device), inputs)))
    if isinstance(output, Mapping) and isinstance(output.get("logits"), Tensor):
        output = output["logits"]
    return output, _target(model, batch, None if labelled is None else batch[labelled], output)


def _needs_labels(model: nn.Module, takes: Mapping[str, inspect.Parameter], name: str) -> bool:
    """Whether the model needs its labels: as a required argument, or as input of a decoder."""
    insists = name in takes and takes[name].default is inspect.Parameter.empty
    return insists or bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def _target(model: nn.Module, batch: Mapping[str, Any], labels: Any, output: Any) -> Any:
    """The labels, moved by one if the model predicts the next token, and the positions inside the attention mask."""
    if not isinstance(output, Tensor) or output.ndim != 3:
        return labels
    positions = output.shape[:2]
    decodes = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    mask = batch.get("decoder_attention_mask" if decodes else "attention_mask")
    counted = mask.to(output.device).bool() if isinstance(mask, Tensor) and mask.shape == positions else None
    if not _predicts_next(model) or decodes:
        return labels if counted is None else Target(labels, counted)
    if counted is None:
        counted = torch.ones(positions, dtype=torch.bool, device=output.device)
    counted = counted & _next(counted, False)
    if isinstance(labels, Tensor) and labels.shape == positions:
        labels = _next(labels, IGNORED)
    return Target(labels, counted)


def _next(values: Tensor, last: Any) -> Tensor:
    """The values moved by one position, with `last` at the end."""
    return torch.cat([values[:, 1:], torch.full_like(values[:, :1], last)], 1)


def _predicts_next(model: nn.Module) -> bool:
    """Whether this is a language model of transformers whose logits at a token predict the next one."""
    inner = getattr(model, "get_base_model", None)  # of adapters
    models = [model, inner()] if callable(inner) else [model]
    names = [type(m).__name__ for m in models]
    told = any(getattr(m, "loss_type", None) == "ForCausalLM" for m in models)
    return told or any("ForCausalLM" in name or "LMHeadModel" in name for name in names)


def _unmoved(inputs: Any, labels: Any) -> bool:
    """Whether the labels equal the inputs wherever they count."""
    if not isinstance(inputs, Tensor) or not isinstance(labels, Tensor) or inputs.shape != labels.shape:
        return False
    labels = labels.to(inputs.device)
    return bool(((labels == inputs) | (labels == IGNORED)).all())
