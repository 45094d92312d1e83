"""Layers whose weights are independent normal variables, and what Bayesian methods need of them.

A Gaussian layer is a linear or convolutional layer that keeps its names (`weight` and `bias` are the means) and gains
`weight_scale` and `bias_scale`. Without a generator it computes with the means, exactly as the plain layer does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drcl.lab.common import seeds
from drcl.lab.methods.base import Method
from drcl.lab.streams import Task

Positive = Literal["softplus", "plain"]


class Gaussian(nn.Module):
    """What both kinds of layer share."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    weight_scale: nn.Parameter
    bias_scale: nn.Parameter | None
    positive: Positive = "softplus"
    generator: torch.Generator | None = None  # set during a noisy pass, see `noise`
    local: bool = False
    mask: Tensor | None = None  # set during a masked pass, see `masked`

    def apply_layer(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        raise NotImplementedError

    def sigma(self) -> tuple[Tensor, Tensor | None]:
        """Standard deviations of weight and bias; None where the bias is a plain number."""
        return self._positive(self.weight_scale), None if self.bias_scale is None else self._positive(self.bias_scale)

    def _positive(self, scale: Tensor) -> Tensor:
        return F.softplus(scale) if self.positive == "softplus" else scale

    def forward(self, x: Tensor) -> Tensor:
        if self.generator is None:
            return self._masked(x, self.weight, self.bias)
        weight_sigma, bias_sigma = self.sigma()
        if self.local:
            # The output is normal too; drawing it instead of the weights gives every example its own noise.
            mean = self._masked(x, self.weight, self.bias)
            spread = None if bias_sigma is None else bias_sigma.square()
            variance = self._masked(x.square(), weight_sigma.square().expand_as(self.weight), spread, power=2)
            return mean + variance.clamp(min=1e-16).sqrt() * self._draw(mean)
        weight = self.weight + weight_sigma * self._draw(self.weight)
        bias = self.bias
        if bias is not None and bias_sigma is not None:
            bias = bias + bias_sigma * self._draw(bias)  # type: ignore[assignment]
        return self._masked(x, weight, bias)

    def _masked(self, x: Tensor, weight: Tensor, bias: Tensor | None, power: int = 1) -> Tensor:
        if self.mask is None:
            return self.apply_layer(x, weight, bias)
        units = unit_mask(self.mask)
        return self.apply_layer(x, weight * self.mask**power, None if bias is None else bias * units**power)

    def _draw(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator).to(like)


class GaussianLinear(Gaussian, nn.Linear):  # type: ignore[misc]
    def apply_layer(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)


class GaussianConv2d(Gaussian, nn.Conv2d):  # type: ignore[misc]
    def apply_layer(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._conv_forward(x, weight, bias)


def convert(
    model: nn.Module,
    chosen: Iterable[str],
    start: Callable[[nn.Linear | nn.Conv2d], float],
    positive: Positive = "softplus",
    per_unit: bool = False,
) -> dict[str, Gaussian]:
    """Replace the linear and convolutional layers whose weights are among `chosen` by Gaussian ones with the same
    means. `start(layer)` is the standard deviation to begin with; `per_unit` gives each output unit one for all of its
    incoming weights and leaves biases plain."""
    wanted = set(chosen)
    found: dict[str, Gaussian] = {}
    for name, layer in list(model.named_modules()):
        if not isinstance(layer, nn.Linear | nn.Conv2d) or f"{name}.weight" not in wanted:
            continue
        made = _like(layer)
        made.positive = positive
        value = start(layer)
        raw = value + torch.log(-torch.expm1(torch.tensor(-value))).item() if positive == "softplus" else value
        shape = [len(layer.weight)] + [1] * (layer.weight.dim() - 1) if per_unit else layer.weight.shape
        made.weight_scale = nn.Parameter(layer.weight.new_full(shape, raw))
        made.bias_scale = None
        if layer.bias is not None and not per_unit:
            made.bias_scale = nn.Parameter(torch.full_like(layer.bias, raw))
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, made)
        found[name] = made
    return found


def _like(layer: nn.Linear | nn.Conv2d) -> Gaussian:
    bias = layer.bias is not None
    made: Any
    if isinstance(layer, nn.Linear):
        made = GaussianLinear(layer.in_features, layer.out_features, bias, device="meta")
    else:
        made = GaussianConv2d(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,  # type: ignore[arg-type]
            layer.stride,  # type: ignore[arg-type]
            layer.padding,  # type: ignore[arg-type]
            layer.dilation,  # type: ignore[arg-type]
            layer.groups,
            bias,
            layer.padding_mode,
            device="meta",
        )
    made.weight, made.bias = layer.weight, layer.bias
    return made


@contextmanager
def noise(layers: Iterable[Gaussian], generator: torch.Generator | None, local: bool = False) -> Iterator[None]:
    """Passes inside draw weights (or, `local`, outputs) from `generator`; None leaves the means."""
    chosen = list(layers)
    for layer in chosen:
        layer.generator, layer.local = generator, local
    try:
        yield
    finally:
        for layer in chosen:
            layer.generator = None


@contextmanager
def masked(layers: Mapping[str, Gaussian], masks: Mapping[str, Tensor]) -> Iterator[None]:
    """Passes inside multiply each weight, drawn or not, by its layer's mask, and each bias by that of its unit."""
    for name, layer in layers.items():
        layer.mask = masks[name]
    try:
        yield
    finally:
        for layer in layers.values():
            layer.mask = None


def unit_mask(mask: Tensor) -> Tensor:
    """The factor on each unit's bias: the largest entry of the mask over the unit's inputs."""
    return mask.flatten(1).amax(1)


@contextmanager
def plain(layers: Iterable[Gaussian]) -> Iterator[None]:
    """Inside, the layers are ordinary layers that compute with the means. Code that only knows ordinary layers, such as
    the batched Fisher information, then need not process one example at a time."""
    kinds = [(layer, type(layer)) for layer in layers]
    try:
        for layer, kind in kinds:
            layer.__class__ = nn.Linear if kind is GaussianLinear else nn.Conv2d  # type: ignore[assignment]
        yield
    finally:
        for layer, kind in kinds:
            layer.__class__ = kind


def kl(
    mean: Tensor,
    sigma: Tensor,
    prior_mean: Tensor | float,
    prior_sigma: Tensor | float,
    counted: Tensor | None = None,
) -> Tensor:
    """Sum over all weights, or over those where `counted` is true, of KL(N(mean, sigma^2) || N(prior_mean,
    prior_sigma^2))."""
    ratio = (sigma / prior_sigma).square()
    each = ratio + ((mean - prior_mean) / prior_sigma).square() - 1 - ratio.log()
    return 0.5 * (each if counted is None else each * counted).sum()


def snapshot(layers: Mapping[str, Gaussian]) -> dict[str, dict[str, Tensor]]:
    """The current means and standard deviations, by layer."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, layer in layers.items():
        weight_sigma, bias_sigma = layer.sigma()
        parts = {"weight": layer.weight, "weight_sigma": weight_sigma, "bias": layer.bias, "bias_sigma": bias_sigma}
        found[name] = {word: t.detach().clone() for word, t in parts.items() if t is not None}
    return found


def scale_bytes(layers: Iterable[Gaussian]) -> int:
    """Memory of the standard deviations, in addition to the network's own weights."""
    scales = [s for layer in layers for s in (layer.weight_scale, layer.bias_scale) if s is not None]
    return sum(s.nbytes for s in scales)


class Bayesian(Method):
    """Base of methods whose `layers` are Gaussian."""

    layers: dict[str, Gaussian]  # set in `build`; not a dataclass field, because it is not an option

    def state_bytes(self) -> int:
        """The standard deviations count; the means are the network itself."""
        return super().state_bytes() + scale_bytes(self.layers.values())

    def drawn(self, x: Tensor, task: Task, draws: int) -> Tensor:
        """Log-probabilities of a task's classes, ``[draws, B, C]``, under that many draws of all weights, which are
        always the same ones."""
        generator = torch.Generator().manual_seed(seeds.derive(self.setting.seed, self.name, "answer"))
        with noise(self.layers.values(), generator):
            return torch.stack([F.log_softmax(self.model(x, task.head), dim=1) for _ in range(draws)])
