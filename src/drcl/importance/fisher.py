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

from drcl.importance.arguments import no_samples, not_finite, ready
from drcl.importance.base import Importance
from drcl.importance.labels import (
    exact_cotangents,
    loss_cotangents,
    one_hot_cotangents,
    sampled_cotangents,
    signed_cotangents,
)
from drcl.per_sample.draw import draw, tensors
from drcl.per_sample.plan import Cotangents, Forward, per_sample_moments

__all__ = ["MAS", "Fisher", "Labels"]

Labels = Literal["sampled", "signs", "exact", "empirical"]
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
    def cotangents(self, output: Any, target: Any, length: int, rng: np.random.Generator) -> Cotangents:
        """Derivatives of the per-sample quantity with respect to the model's output."""

    def estimate(
        self,
        model: nn.Module,
        batches: Any,
        parameters: dict[str, nn.Parameter],
        forward: Forward | None = None,
    ) -> dict[str, torch.Tensor]:
        # Labels must not depend on how the samples fall into batches, so they have a stream of their own.
        rng = np.random.default_rng([self.seed, 1])
        with ready(model, parameters, forward, self.seed) as (bare, call):
            sums, count = per_sample_moments(
                bare,
                draw(batches, self.samples, self.seed, self.batch_size),
                parameters,
                call,
                lambda output, target, length: self.cotangents(output, target, length, rng),
                self.power,
                merge=self.batch_size is None,
            )
            if count == 0:
                raise no_samples()
            for name, total in sums.items():
                total /= count
                if total.numel() and not torch.isfinite(total.max()):
                    raise not_finite(name)
        return sums


@dataclass(frozen=True)
class Fisher(_FromSamples):
    """Diagonal Fisher information: the mean over samples of squared per-sample gradients, in eval mode.

    The importance of elastic weight consolidation (Kirkpatrick et al. 2017).

    labels="sampled"    y is drawn from the model's own softmax: an unbiased estimate of the true Fisher.
    labels="exact"      the expectation over y in place of a draw: no noise, classes - 1 backward passes.
    labels="signs"      the terms of "exact" added up with random signs: unbiased too, one backward pass, and it
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

    def cotangents(self, output: Any, target: Any, length: int, rng: np.random.Generator) -> Cotangents:
        if self.loss is not None:
            return loss_cotangents(self.loss, output, target, length)
        if self.labels == "empirical":
            return one_hot_cotangents(output, target, length)
        if self.labels == "exact":
            return exact_cotangents(output, length)
        if self.labels == "signs":
            return signed_cotangents(output, length, rng)
        return sampled_cotangents(output, length, rng)

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
    """Memory aware synapses (Aljundi et al. 2018): the mean over samples of |d ||f(x)||^2 / d theta|. No labels."""

    samples: int = 1000
    seed: int = 0
    batch_size: int | None = None

    power: ClassVar[int] = 1

    def __post_init__(self) -> None:
        self._check()

    def cotangents(self, output: Any, target: Any, length: int, rng: np.random.Generator) -> Cotangents:
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
