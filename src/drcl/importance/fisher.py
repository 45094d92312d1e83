"""How much each weight matters to the task just learned: Fisher and MAS, from samples of its data.

`DRCL.consolidate` asks one of these for one tensor a protected parameter. Each is a mean over samples of a
function of the *per-sample* gradient: the squared gradient of a batch would shrink with the batch's size.
The path integral of synaptic intelligence, gathered while training, is in `drcl.importance.path_integral`.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import nn

from drcl.importance.base import Importance
from drcl.importance.labels import (
    exact_directions,
    loss_directions,
    one_hot_direction,
    sampled_direction,
    signed_direction,
)
from drcl.per_sample.draw import draw, map_tensors, tensors
from drcl.per_sample.plan import Cotangents, Forward, per_sample_moments
from drcl.preserve import undisturbed

__all__ = ["MAS", "Fisher", "Labels"]

Labels = Literal["sampled", "signs", "exact", "empirical"]
_PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)
Loss = Callable[[Any, Any], torch.Tensor]


class _FromSamples(Importance):
    """The part Fisher and MAS share: draw, differentiate each sample, take the mean, check it."""

    samples: int
    seed: int
    batch_size: int | None
    power: ClassVar[int]

    def _check(self) -> None:
        name = type(self).__name__
        for field in ("samples", "batch_size"):
            value = getattr(self, field)
            if field == "batch_size" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name}({field}={value!r}): {field} must be a whole number of at least 1")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int | np.integer) or self.seed < 0:
            raise ValueError(f"{name}(seed={self.seed!r}): seed must be a whole number of at least 0")

    @abstractmethod
    def _directions(self, output: Any, target: Any, length: int, rng: np.random.Generator) -> Cotangents:
        """Derivatives of the per-sample quantity with respect to the model's output."""

    def estimate(
        self,
        model: nn.Module,
        batches: Any,
        parameters: dict[str, nn.Parameter],
        forward: Forward | None = None,
    ) -> dict[str, torch.Tensor]:
        model = _bare(model)
        _check_parameters(model, parameters)
        # Labels must not depend on how the samples fall into batches, so they have a stream of their own.
        rng = np.random.default_rng([self.seed, 1])
        with undisturbed(model, seed=self.seed):
            model.eval()
            hook = default_forward if forward is None else _checked(forward)
            sums, count = per_sample_moments(
                model,
                draw(batches, self.samples, self.seed, self.batch_size),
                parameters,
                hook,
                lambda output, target, length: self._directions(output, target, length, rng),
                self.power,
                merge=self.batch_size is None,
            )
            if count == 0:
                raise ValueError(
                    "batches holds no samples: the loader is empty, or it is a generator already used up; "
                    "pass a loader or a list, or make the generator anew"
                )
            for name, total in sums.items():
                total /= count
                if total.numel() and not torch.isfinite(total.max()):
                    raise FloatingPointError(
                        f"the gradient of parameter {name!r} is not finite on some samples (nan, inf or too "
                        "large to square); look for diverged training or bad values in the data first"
                    )
        return sums


@dataclass(frozen=True)
class Fisher(_FromSamples):
    """Diagonal Fisher information: the mean over samples of squared per-sample gradients, in eval mode.

    labels="sampled"    y is drawn from the model's own softmax: an unbiased estimate of the true Fisher.
    labels="exact"      the expectation over y in place of a draw: no noise, classes - 1 backward passes.
    labels="signs"      the directions of "exact" added up with random signs: unbiased too, one backward pass, and it
                        does not vanish where the model is sure of itself. Exact with two classes.
    labels="empirical"  y is the label in the data; the form most published code uses.

    `samples` are drawn uniformly without replacement; all data, each sample once, when there is no more.
    The output must be logits `[samples, classes]`. For anything else pass labels="empirical" and
    `loss(output, target)`, which returns either the vector of the samples' losses or a scalar, their mean.
    One sample is one row of the first dimension: with token logits `[samples, tokens, classes]` a sequence
    has one gradient. A scalar loss is evaluated for each sample alone, so that a mean over valid tokens, or
    a weighted one, is each sample's own. The loss reaches the parameters through the output only.

    A model whose output for one sample depends on the others of its batch has no per-sample gradient in a
    batch; such a model is noticed and evaluated one sample at a time.
    """

    samples: int = 1000
    labels: Labels = "sampled"
    loss: Loss | None = None
    seed: int = 0
    batch_size: int | None = None

    power: ClassVar[int] = 2

    def __post_init__(self) -> None:
        self._check()
        if self.labels not in get_args(Labels):
            raise ValueError(f"Fisher(labels={self.labels!r}): labels must be one of {', '.join(get_args(Labels))}")
        if self.loss is not None and self.labels != "empirical":
            raise ValueError(
                f"Fisher(labels={self.labels!r}, loss=...): these labels come from a softmax over classes, "
                "which a loss of your own does not have; use labels='empirical' with it"
            )

    def _directions(self, output: Any, target: Any, length: int, rng: np.random.Generator) -> Cotangents:
        if self.loss is not None:
            return loss_directions(self.loss, output, target, length)
        if self.labels == "empirical":
            return one_hot_direction(output, target, length)
        if self.labels == "exact":
            return exact_directions(output, length)
        if self.labels == "signs":
            return signed_direction(output, length, rng)
        return sampled_direction(output, length, rng)

    def describe(self) -> dict[str, Any]:
        loss = None if self.loss is None else getattr(self.loss, "__qualname__", type(self.loss).__name__)
        return {
            "estimator": "Fisher",
            "samples": int(self.samples),
            "labels": str(self.labels),
            "loss": loss,
            "seed": int(self.seed),
        }


@dataclass(frozen=True)
class MAS(_FromSamples):
    """Memory aware synapses: the mean over samples of |d ||f(x)||^2 / d theta|. Needs no labels."""

    samples: int = 1000
    seed: int = 0
    batch_size: int | None = None

    power: ClassVar[int] = 1

    def __post_init__(self) -> None:
        self._check()

    def _directions(self, output: Any, target: Any, length: int, rng: np.random.Generator) -> Cotangents:
        leaves = tensors(output)
        if not leaves:
            raise TypeError(f"MAS needs a model that returns tensors, got {type(output).__name__}; pass forward=")
        for leaf in leaves:
            if leaf.ndim == 0 or len(leaf) != length:
                raise ValueError(
                    f"the model returned a tensor of shape {list(leaf.shape)} for {length} samples; MAS "
                    "needs the samples along the first dimension"
                )
        return [[2 * leaf.detach() for leaf in leaves]]

    def describe(self) -> dict[str, Any]:
        return {"estimator": "MAS", "samples": int(self.samples), "seed": int(self.seed)}


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


def _checked(forward: Forward) -> Forward:
    def hook(model: nn.Module, batch: Any) -> tuple[Any, Any]:
        pair = forward(model, batch)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(
                f"forward(model, batch) must return a pair (output, target), got {type(pair).__name__}; "
                "the target may be None when labels are not needed"
            )
        return pair

    return hook


def _bare(model: nn.Module) -> nn.Module:
    """The module inside a compiled or data-parallel wrapper: the wrapper would hide its layers from us."""
    while True:
        inner = getattr(model, "module" if isinstance(model, _PARALLEL) else "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _check_parameters(model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
    if not parameters:
        raise ValueError("parameters is empty: there is nothing to estimate the importance of")
    own = {id(p) for p in model.parameters()}
    for name, p in parameters.items():
        if id(p) not in own:
            raise ValueError(f"parameter {name!r} does not belong to the model; pass the model it was taken from")
