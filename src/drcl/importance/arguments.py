"""Prepares and checks the arguments of an estimator: the model, its parameters, and how to call it.

`drcl.Fisher`, `drcl.MAS` and `drcl.Kronecker` begin here and share these error messages.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from drcl.importance.batches import default_forward, plain_output
from drcl.per_sample.plan import Forward
from drcl.preserve import check_model, undisturbed
from drcl.sharding import is_sharded

__all__ = ["bare", "check_parameters", "checked", "no_samples", "not_finite", "ready"]

_PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)


@contextmanager
def ready(
    model: nn.Module, parameters: dict[str, nn.Parameter], forward: Forward | None, seed: int
) -> Iterator[tuple[nn.Module, Forward]]:
    """The model in eval mode and without wrappers, and how to call it; afterwards the model is as it was."""
    check_model(model, "estimate(model, batches, parameters)")
    if forward is not None and not callable(forward):
        raise TypeError(f"forward={forward!r} must be a function: forward(model, batch) returns (output, target)")
    model = bare(model)
    check_parameters(model, parameters)
    with undisturbed(model, seed=seed):
        model.eval()
        yield model, default_forward if forward is None else checked(forward)


def checked(forward: Forward) -> Forward:
    """The caller's own `forward`, with a check of what it returns."""

    def hook(model: nn.Module, batch: Any) -> tuple[Any, Any]:
        pair = forward(model, batch)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(
                f"forward(model, batch) must return a pair (output, target), got {type(pair).__name__}; "
                "the target may be None when labels are not needed"
            )
        return plain_output(pair[0]), pair[1]

    return hook


def bare(model: nn.Module) -> nn.Module:
    """The module inside a compiled or data-parallel wrapper: the wrapper would hide its layers from us."""
    while True:
        inner = getattr(model, "module" if isinstance(model, _PARALLEL) else "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def check_parameters(model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
    """Raise unless there are some, all of them the model's own."""
    if not isinstance(parameters, Mapping) or not all(isinstance(p, torch.Tensor) for p in parameters.values()):
        raise TypeError(f"parameters must be tensors by name, dict(model.named_parameters()), not {parameters!r}")
    if not parameters:
        raise ValueError("parameters is empty: there is nothing to estimate the importance of")
    own = {id(p) for p in model.parameters()}
    for name, p in parameters.items():
        if id(p) not in own:
            raise ValueError(f"parameter {name!r} does not belong to the model; pass the model it was taken from")
        if is_sharded(p):
            raise TypeError(
                f"parameter {name!r} is sharded over processes, so no process sees its whole gradient; call "
                "DRCL.consolidate(model, batches, importance=...), which gathers the model first"
            )


def no_samples() -> ValueError:
    """The error for empty data."""
    return ValueError(
        "batches holds no samples: the loader is empty, or it is a generator already used up; "
        "pass a loader or a list, or make a new generator"
    )


def not_finite(name: str) -> FloatingPointError:
    """The error for a parameter whose gradients overflow."""
    return FloatingPointError(
        f"the gradient of parameter {name!r} is not finite on some samples (nan, inf or too "
        "large to square); look for diverged training or bad values in the data first"
    )
