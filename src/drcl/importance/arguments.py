"""What a caller hands to an estimator, made ready and checked: the model, its parameters, and how to call it.

`drcl.Fisher`, `drcl.MAS` and `drcl.Kronecker` begin here; the refusals they share are here too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from drcl.per_sample.draw import map_tensors
from drcl.per_sample.plan import Forward
from drcl.preserve import undisturbed

__all__ = ["bare", "check_parameters", "checked", "default_forward", "no_samples", "not_finite", "ready"]

_PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)


@contextmanager
def ready(
    model: nn.Module, parameters: dict[str, nn.Parameter], forward: Forward | None, seed: int
) -> Iterator[tuple[nn.Module, Forward]]:
    """The model in eval mode and without wrappers, and how to call it; it is left as it was found."""
    model = bare(model)
    check_parameters(model, parameters)
    with undisturbed(model, seed=seed):
        model.eval()
        yield model, default_forward if forward is None else checked(forward)


def default_forward(model: nn.Module, batch: Any) -> tuple[Any, Any]:
    """A batch is `(inputs, labels, ...)`, or inputs alone; inputs go to the model's device."""
    if isinstance(batch, torch.Tensor):
        batch = (batch,)
    if not isinstance(batch, tuple | list) or len(batch) == 0:
        raise TypeError(
            f"a batch must be (inputs, labels), got {type(batch).__name__}; "
            "pass forward=lambda model, batch: (output, target) to read batches of another kind"
        )
    device = next(model.parameters()).device
    inputs = map_tensors(lambda t: t.to(device), batch[0])
    return model(inputs), batch[1] if len(batch) > 1 else None


def checked(forward: Forward) -> Forward:
    """The caller's own way to call the model; what it returns is looked at before it is used."""

    def hook(model: nn.Module, batch: Any) -> tuple[Any, Any]:
        pair = forward(model, batch)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(
                f"forward(model, batch) must return a pair (output, target), got {type(pair).__name__}; "
                "the target may be None when labels are not needed"
            )
        return pair

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
    if not parameters:
        raise ValueError("parameters is empty: there is nothing to estimate the importance of")
    own = {id(p) for p in model.parameters()}
    for name, p in parameters.items():
        if id(p) not in own:
            raise ValueError(f"parameter {name!r} does not belong to the model; pass the model it was taken from")


def no_samples() -> ValueError:
    """What to say of data that hold nothing."""
    return ValueError(
        "batches holds no samples: the loader is empty, or it is a generator already used up; "
        "pass a loader or a list, or make the generator anew"
    )


def not_finite(name: str) -> FloatingPointError:
    """What to say of a parameter whose gradients overflow."""
    return FloatingPointError(
        f"the gradient of parameter {name!r} is not finite on some samples (nan, inf or too "
        "large to square); look for diverged training or bad values in the data first"
    )
