"""Three likelihoods of labels given an output, and the derivatives of their logarithms with respect to the output.

Outputs come as rows `[rows, numbers]`, one row per label: the logits of a softmax over classes, logits of independent
yes-or-no labels (Bernoulli), or means of numbers with variance one (Gaussian). Each likelihood has its derivative at a
drawn label and at the data's label. It also has factors of the covariance C of the derivative over labels, from which
importance is computed: columns with sum_k s_k s_k^T = C, and random vectors with E[v v^T] = C.
`drcl.importance.outputs` turns outputs into rows, `drcl.importance.labels` each derivative into a backward pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["LIKELIHOODS", "Family", "Likelihood", "of_loss", "of_model"]

Likelihood = Literal["softmax", "bernoulli", "gaussian"]
# Numbers to process at once, in double, so that a vocabulary of 100,000 tokens does not need several large arrays.
CHUNK = 2**20


class Family(ABC):
    """One likelihood; its methods do not change the rows and return their type."""

    name: ClassVar[str]

    def drawn(self, rows: Tensor, rng: np.random.Generator) -> Tensor:
        """The derivative of -log p at labels drawn from it."""
        return _by_parts(rows, lambda part: self._drawn(part, rng))

    def signed(self, rows: Tensor, rng: np.random.Generator) -> Tensor:
        """v with E[v v^T] = C, from random signs; in every draw it has the size of what it estimates."""

        def signs(part: Tensor) -> Tensor:
            drawn = rng.integers(0, 2, (len(part), self.columns(part))) * 2.0 - 1.0
            return self.combined(part, torch.from_numpy(drawn).to(part.device))

        return _by_parts(rows, signs)

    @abstractmethod
    def columns(self, rows: Tensor) -> int:
        """The number of columns s_k."""

    @abstractmethod
    def column(self, rows: Tensor, k: int) -> Tensor:
        """s_k of every row."""

    @abstractmethod
    def combined(self, rows: Tensor, signs: Tensor) -> Tensor:
        """sum_k signs[:, k] s_k, with signs `[rows, columns]` in double."""

    @abstractmethod
    def observed(self, rows: Tensor, labels: Tensor) -> Tensor:
        """The derivative of -log p at the data's own labels."""

    @abstractmethod
    def _drawn(self, rows: Tensor, rng: np.random.Generator) -> Tensor: ...


def _by_parts(rows: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    step = max(1, CHUNK // max(1, rows.shape[1]))
    if len(rows) <= step:
        return function(rows)
    out = torch.empty_like(rows)
    for start in range(0, len(rows), step):
        out[start : start + step] = function(rows[start : start + step])
    return out


class _Softmax(Family):
    """One label out of several classes: C = diag(p) - p p^T.

    It has a triangular factor in closed form, with one column fewer than there are classes. With
    q_k = p_{k+1} + ... + p_K:  s_k[k] = sqrt(p_k q_k / q_{k-1}) and s_k[i] = -p_i sqrt(p_k / (q_{k-1} q_k)) for i > k.
    So sum_k e_k s_k needs no columns but running sums: v_i = e_i s_i[i] - p_i sum_{k<i} e_k sqrt(p_k / (q_{k-1} q_k)).
    With two classes there is one column, and v v^T is C itself.
    """

    name = "softmax"

    def columns(self, rows: Tensor) -> int:
        return rows.shape[1] - 1

    def column(self, rows: Tensor, k: int) -> Tensor:
        p, tail = _probabilities(rows)
        here, rest, before = p[:, k], tail[:, k + 1], tail[:, k]
        column = torch.zeros_like(p)
        column[:, k] = (here * rest / before).sqrt()
        column[:, k + 1 :] = -p[:, k + 1 :] * (here / (before * rest)).sqrt()[:, None]
        # If the classes after k have no mass, or too little for a finite quotient, the column is zero.
        enough = before * rest >= torch.finfo(p.dtype).tiny
        return torch.where(enough[:, None], column, 0.0).to(rows.dtype)

    def combined(self, rows: Tensor, signs: Tensor) -> Tensor:
        p, tail = _probabilities(rows)
        before, rest = tail[:, :-1], tail[:, 1:]
        enough = before * rest >= torch.finfo(p.dtype).tiny
        signed = torch.where(enough, signs * (p[:, :-1] / (before * rest)).sqrt(), 0.0)
        v = torch.zeros_like(p)
        v[:, 1:] = -p[:, 1:] * signed.cumsum(1)
        v[:, :-1] += signed * rest
        return v.to(rows.dtype)

    def observed(self, rows: Tensor, labels: Tensor) -> Tensor:
        if labels.is_floating_point():  # probabilities of the classes
            return rows.softmax(1) - labels.to(rows.dtype)
        return rows.softmax(1).scatter_(1, labels.long()[:, None], -1.0, reduce="add")

    def _drawn(self, rows: Tensor, rng: np.random.Generator) -> Tensor:
        """Labels by inverting the distribution function: one uniform number per row."""
        p = rows.softmax(1)
        uniform = torch.from_numpy(rng.random((len(rows), 1))).to(p.device)
        below = p.cumsum(1, dtype=torch.float64) <= uniform
        label = below.sum(1, keepdim=True).clamp_(max=p.shape[1] - 1)
        return p.scatter_(1, label, -1.0, reduce="add")


def _probabilities(rows: Tensor) -> tuple[Tensor, Tensor]:
    """p and q_{k-1} = p_k + ... + p_K, in double and summed from the last class, so that no tail is rounded away."""
    p = F.softmax(rows.double(), 1)
    return p, p.flip(1).cumsum(1).flip(1)


class _Elementwise(Family):
    """Independent labels, one per number: C is diagonal, so its root times random signs is v."""

    def columns(self, rows: Tensor) -> int:
        return rows.shape[1]

    def column(self, rows: Tensor, k: int) -> Tensor:
        column = torch.zeros_like(rows)
        column[:, k] = self._deviation(rows[:, k]).to(rows.dtype)
        return column

    def combined(self, rows: Tensor, signs: Tensor) -> Tensor:
        return (self._deviation(rows) * signs).to(rows.dtype)

    @abstractmethod
    def _deviation(self, rows: Tensor) -> Tensor:
        """The root of C's diagonal, in double."""


class _Bernoulli(_Elementwise):
    """Each number is the logit of a yes: C = diag(p (1 - p))."""

    name = "bernoulli"

    def observed(self, rows: Tensor, labels: Tensor) -> Tensor:
        return rows.sigmoid() - labels.to(rows.dtype)

    def _drawn(self, rows: Tensor, rng: np.random.Generator) -> Tensor:
        uniform = torch.from_numpy(rng.random(tuple(rows.shape))).to(rows.device)
        return rows.sigmoid() - (uniform < rows.double().sigmoid()).to(rows.dtype)

    def _deviation(self, rows: Tensor) -> Tensor:
        wide = rows.double()
        return (wide.sigmoid() * (-wide).sigmoid()).sqrt()


class _Gaussian(_Elementwise):
    """Each number is the mean of a number observed with variance one: -log p = (output - label)^2 / 2, C = 1."""

    name = "gaussian"

    def observed(self, rows: Tensor, labels: Tensor) -> Tensor:
        return rows - labels.to(rows.dtype)

    def _drawn(self, rows: Tensor, rng: np.random.Generator) -> Tensor:
        return torch.from_numpy(rng.standard_normal(tuple(rows.shape))).to(rows)

    def _deviation(self, rows: Tensor) -> Tensor:
        return torch.ones_like(rows, dtype=torch.float64)


LIKELIHOODS: dict[str, Family] = {family.name: family for family in (_Softmax(), _Bernoulli(), _Gaussian())}

# -- guessing it -------------------------------------------------------------------------------------------------------

_LOSSES: dict[Any, Likelihood] = {
    nn.CrossEntropyLoss: "softmax",
    nn.BCEWithLogitsLoss: "bernoulli",
    nn.MSELoss: "gaussian",
    F.cross_entropy: "softmax",
    F.binary_cross_entropy_with_logits: "bernoulli",
    F.mse_loss: "gaussian",
}
# The names that transformers uses for kinds of classification heads.
_PROBLEMS: dict[Any, Likelihood] = {
    "single_label_classification": "softmax",
    "multi_label_classification": "bernoulli",
    "regression": "gaussian",
}


def of_loss(loss: Any) -> Likelihood | None:
    """The likelihood whose negative logarithm is this loss, up to a factor; None if it is not known."""
    if isinstance(loss, nn.Module):
        settings = {name: getattr(loss, name, None) for name in ("weight", "pos_weight", "label_smoothing")}
        if any(value is not None and value is not False and value != 0 for value in _plain(settings)):
            return None
        if getattr(loss, "ignore_index", -100) != -100:
            return None
        return _LOSSES.get(type(loss))
    try:
        return _LOSSES.get(loss)
    except TypeError:  # some callables cannot be looked up
        return None


def _plain(settings: dict[str, Any]) -> Iterator[Any]:
    for value in settings.values():
        yield True if isinstance(value, Tensor) else value


def of_model(model: nn.Module) -> Likelihood | None:
    """The likelihood from the config of a transformers model; None if the config does not say."""
    config = getattr(model, "config", None)
    problem = getattr(config, "problem_type", None)
    if isinstance(problem, str) and problem in _PROBLEMS:
        return _PROBLEMS[problem]
    one = getattr(config, "num_labels", None) == 1 and "ForSequenceClassification" in type(model).__name__
    return "gaussian" if one else None  # as in the model's own loss
