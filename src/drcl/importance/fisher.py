"""How much each weight matters to the task just learned: Fisher and MAS, from samples of its data.

Each gives `DRCL.consolidate` one tensor per protected parameter: the mean over samples of a function of the
*per-sample* gradient. (The squared gradient of a whole batch would shrink with the batch's size.)
`drcl.importance.path_integral` has the path integral of synaptic intelligence, which is gathered during training.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from torch import nn

from drcl import ranks
from drcl.importance.arguments import bare, no_samples, not_finite, ready
from drcl.importance.base import History, Importance, Measured
from drcl.importance.labels import (
    exact_cotangents,
    loss_cotangents,
    observed_cotangents,
    output_cotangents,
    sampled_cotangents,
    signed_cotangents,
)
from drcl.importance.likelihood import Likelihood, of_loss, of_model
from drcl.importance.outputs import scored
from drcl.per_sample.draw import draw, tensors
from drcl.per_sample.plan import Cotangents, Forward, per_sample_moments

__all__ = ["MAS", "Fisher", "Labels"]

Labels = Literal["sampled", "signs", "exact", "empirical", "outputs"]
Loss = Callable[[Any, Any], torch.Tensor]


class _FromSamples(Importance):
    """What Fisher and MAS share: draw samples, differentiate each of them, take the mean, check it."""

    samples: int
    seed: int
    batch_size: int | None
    power: ClassVar[int]
    adds_over_ranks: ClassVar[bool] = True

    def _check(self) -> None:
        name = type(self).__name__
        for option in ("samples", "batch_size"):
            value = getattr(self, option)
            if option == "batch_size" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name}({option}={value!r}): {option} must be a whole number of at least 1")
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
        # Labels have a random stream of their own, so that they do not depend on the batches of the samples.
        seed = ranks.seed(self.seed)
        rng = np.random.default_rng([seed, 1])
        with ready(model, parameters, forward, seed) as (inside, call):
            with ranks.together():
                sums, count = per_sample_moments(
                    inside,
                    draw(batches, self.samples, seed, self.batch_size),
                    parameters,
                    call,
                    lambda output, target, length: self.cotangents(output, target, length, rng),
                    self.power,
                    merge=self.batch_size is None,
                )
                if count == 0:
                    raise no_samples()
            ranks.add_(sums.values())
            count = ranks.added(count)
            for name, total in sums.items():
                total /= count
                if total.numel() and not torch.isfinite(total.max()):
                    raise not_finite(name)
        return sums


@dataclass(frozen=True)
class Fisher(_FromSamples):
    """Diagonal Fisher information: the mean over samples of squared per-sample gradients, in eval mode.

    The importance of elastic weight consolidation (Kirkpatrick et al. 2017).

    labels="sampled"    y is drawn from the model's own likelihood: an unbiased estimate of the true Fisher.
    labels="exact"      the expectation over y instead of a draw: no noise, but for a softmax it takes classes - 1
                        backward passes per position of a sample.
    labels="signs"      the terms of "exact" added up with random signs: unbiased too, with one backward pass, and it
                        does not vanish where the model is certain. Exact with two classes.
    labels="empirical"  y is the label in the data, as in most published code.
    labels="outputs"    no labels: how far the output itself moves, as a mean over its numbers (for a softmax, relative
                        to their mean) and positions. It does not fade as the model becomes certain, and
                        ``DRCL(strength="auto")`` needs it.

    The default is "sampled", or "outputs" for an optimizer with strength "auto".

    `samples` are drawn uniformly without replacement; a smaller data set is used completely, each sample once.

    `likelihood` connects the output to y: "softmax" over classes, "bernoulli" (independent yes-or-no labels, one logit
    each) or "gaussian" (numbers, observed with variance one). By default it follows from a torch `loss` (cross entropy,
    binary cross entropy with logits, squared error) or from `config.problem_type` of a transformers model; otherwise it
    is "softmax", and targets that are not labels are refused. The anchor's provenance records it.

    Logits of a softmax are `[samples, classes]`, `[samples, tokens, classes]` or `[samples, classes, height, width]`
    (`drcl.importance.outputs`). Numbers may have any shape after the samples. If there are several outputs, each needs
    its own labels, under the same name or in the same order; if one is called `logits`, only that one is used. One
    sample is one row of the first dimension: a sequence has one gradient, that of the sum over its tokens. Positions
    labelled -100 do not count, nor do those outside the `attention_mask` of a batch that is a dict.

    For any other loss pass labels="empirical" and `loss(output, target)`, which returns either a vector with the loss
    of each sample or a scalar, their mean. A scalar is evaluated for each sample alone, so that a mean over valid
    tokens, or a weighted mean, is taken per sample. The loss may depend on the parameters only through the output.

    If a model's output for one sample depends on the others in its batch, a batch has no per-sample gradients. Such a
    model is detected and evaluated one sample at a time.
    """

    samples: int = 1000
    labels: Labels | None = None
    loss: Loss | None = None
    seed: int = 0
    batch_size: int | None = None
    likelihood: Likelihood | None = field(default=None, kw_only=True)

    power: ClassVar[int] = 2
    usual_labels: ClassVar[Labels] = "sampled"

    def __post_init__(self) -> None:
        self._check()
        name = self._name()
        if self.labels is not None and self.labels not in get_args(Labels):
            allowed = ", ".join(get_args(Labels))
            raise ValueError(f"{name}(labels={self.labels!r}): labels must be None or one of {allowed}")
        if self.loss is not None and not callable(self.loss):
            raise TypeError(f"{name}(loss={self.loss!r}): loss must be a function: loss(output, target)")
        if self.likelihood is not None and self.likelihood not in get_args(Likelihood):
            allowed = ", ".join(get_args(Likelihood))
            raise ValueError(f"{name}(likelihood={self.likelihood!r}): likelihood must be None or one of {allowed}")
        if self.loss is not None and self._labels() != "empirical" and self._likelihood() is None:
            raise ValueError(
                f"{name}(labels={self._labels()!r}, loss=...): these labels come from a softmax over classes or "
                "another likelihood, which does not follow from a loss of your own; give likelihood= instead of the "
                "loss, or use labels='empirical' with it"
            )

    def cotangents(self, output: Any, target: Any, length: int, rng: np.random.Generator) -> Cotangents:
        labels = self._labels()
        if self.loss is not None and labels == "empirical":
            return loss_cotangents(self.loss, output, target, length)
        about: dict[str, Any] = {"likelihood": self._likelihood(), "estimator": self._name()}
        if labels == "empirical":
            return observed_cotangents(output, target, length, **about)
        if labels == "exact":
            return exact_cotangents(output, length, target, **about)
        if labels == "signs":
            return signed_cotangents(output, length, rng, target, **about)
        if labels == "outputs":
            return output_cotangents(output, length, rng, target, **about)
        return sampled_cotangents(output, length, rng, target, **about)

    def answers(self, output: Any, target: Any, length: int) -> int:
        """How many labels a sample has: one, or one per position."""
        if self.loss is not None and self._labels() == "empirical":
            return 1
        return max(1, sum(part.positions for part in scored(output, target, length, self._likelihood(), self._name())))

    def _labels(self) -> Labels:
        """As given, or the default of this estimator."""
        return self.usual_labels if self.labels is None else self.labels

    def _likelihood(self) -> Likelihood | None:
        """As given, or the likelihood of the loss; None if neither says, which means a softmax."""
        return of_loss(self.loss) if self.likelihood is None and self.loss is not None else self.likelihood

    def _name(self) -> str:
        """The name for messages; that of a private subclass would not help the reader."""
        return "Kronecker" if self.finds_directions else "Fisher"

    def for_model(self, model: nn.Module) -> Self:
        """With the likelihood from the model's config, if neither the caller nor the loss says."""
        guessed = of_model(bare(model)) if self._likelihood() is None and isinstance(model, nn.Module) else None
        return self if guessed is None else replace(self, likelihood=guessed)

    def estimate(
        self,
        model: nn.Module,
        batches: Any,
        parameters: dict[str, nn.Parameter],
        forward: Forward | None = None,
    ) -> dict[str, torch.Tensor]:
        return _FromSamples.estimate(self.for_model(model), model, batches, parameters, forward)

    def measure(
        self,
        model: nn.Module,
        batches: Any,
        parameters: dict[str, nn.Parameter],
        forward: Forward | None = None,
        history: History | None = None,
    ) -> Measured:
        """The estimate, and the likelihood it used."""
        measured = super().measure(model, batches, parameters, forward, history)
        return replace(measured, notes={"likelihood": self.for_model(model).describe()["likelihood"]})

    def describe(self) -> dict[str, Any]:
        loss = None if self.loss is None else getattr(self.loss, "__qualname__", type(self.loss).__name__)
        return {
            "estimator": "Fisher",
            "samples": int(self.samples),
            "labels": str(self._labels()),
            "loss": loss,
            "seed": int(self.seed),
            "likelihood": str(self._likelihood() or ("softmax" if self.loss is None else "of the loss")),
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
