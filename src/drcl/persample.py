"""Sums over samples of powers of per-sample gradients: the engine under every importance estimate.

For sample b and cotangent v_b (the derivative of its loss with respect to the model's output) the gradient is
g_b = J_b^T v_b; what is wanted is the sum over b of |g_b|^power, never a power of the sum. Three routes lead
there: one batched pass with a rule a layer (`drcl.onepass`), `torch.func`, and one sample at a time
(`drcl.routes`). Which parameter takes which is not assumed but tried, on two samples, before the work begins.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import nn

from drcl.layergrads import Moments
from drcl.onepass import OnePass, Shapes, Unsupported, shapes_of_outputs
from drcl.routes import Cotangents, Forward, one_by_one, times_used, vectorised
from drcl.sampling import batch_length, take, tensors

__all__ = ["Cotangents", "Forward", "accumulator", "per_sample_moments"]

# Two routes round differently, and a rounding may switch a ReLU; a wrong route is wrong by far more.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 0.03}


def per_sample_moments(
    model: nn.Module,
    batches: Iterable[Any],
    parameters: dict[str, nn.Parameter],
    forward: Forward,
    directions: Callable[[Any, Any, int], Cotangents],
    power: int,
) -> tuple[Moments, int]:
    """Sum of |per-sample gradient|^power over all samples of `batches` and all directions, and their number.

    `directions(output, target, length)` gives a list of cotangents of the output, each with one tensor for
    every tensor of the output. The model is taken in the mode it is in; call this inside `undisturbed`, since
    it switches `requires_grad` off. Sums are float32, float64 for float64 parameters.
    """
    for p in model.parameters():
        p.requires_grad_(False)
    totals = _zeros(parameters)
    count, plan = 0, None
    for batch in batches:
        length = batch_length(batch)
        if length == 0:
            continue
        if plan is None:
            plan = _Plan(model, batch, parameters, forward, power)
        plan.add(batch, length, directions, totals)
        count += length
    return totals, count


def accumulator(parameter: torch.Tensor) -> torch.dtype:
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32


def _zeros(parameters: dict[str, nn.Parameter]) -> Moments:
    return {
        name: torch.zeros_like(p, dtype=accumulator(p), requires_grad=False) for name, p in parameters.items()
    }


class _Plan:
    """Which parameter takes which route."""

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        parameters: dict[str, nn.Parameter],
        forward: Forward,
        power: int,
    ) -> None:
        self.model, self.parameters, self.forward, self.power = model, parameters, forward, power
        self.onepass = OnePass(model, parameters)
        self.vectorised: dict[str, nn.Parameter] = {}
        self.looped: dict[str, nn.Parameter] = {}
        self._try(take(batch, [0, min(1, batch_length(batch) - 1)]))

    def add(
        self, batch: Any, length: int, directions: Callable[[Any, Any, int], Cotangents], totals: Moments
    ) -> None:
        with self.onepass.listening():
            output, target = self.forward(self.model, batch)
            cotangents = directions(output, target, length)
            try:
                self.onepass.backward(output, cotangents, length, totals, self.power)
                others = self.looped
            except Unsupported:
                others = {**self.looped, **self._some(self.onepass.names)}
        del output
        if self.vectorised:
            vectorised(self.model, batch, self.vectorised, self.forward, cotangents, totals, self.power)
        if others:
            one_by_one(self.model, batch, others, self.forward, cotangents, totals, self.power)

    def _some(self, names: Iterable[str]) -> dict[str, nn.Parameter]:
        wanted = set(names)
        return {name: p for name, p in self.parameters.items() if name in wanted}

    def _try(self, pair: Any) -> None:
        """Compare every route with the definition on two samples; keep the fastest that agrees."""
        probe, truth, shapes = self._definition(pair)
        fast = _zeros(self.parameters)
        with self.onepass.listening():
            output, _ = self.forward(self.model, pair)
            self.onepass.layout(2, shapes)
            try:
                self.onepass.backward(output, probe, 2, fast, self.power)
            except Unsupported:
                self.onepass.forget(self.onepass.names)
        self.onepass.forget(self._disagreeing(self.onepass.names, fast, truth))
        covered = set(self.onepass.names)
        self.vectorised = self._some(name for name in self.parameters if name not in covered)
        if self.vectorised:
            self._try_vectorised(pair, probe, truth)

    def _definition(self, pair: Any) -> tuple[Cotangents, Moments, Shapes]:
        """Random cotangents, the moments the definition gives for them, the layers' shapes for one sample.

        Random, because those of a well trained model can be too small to tell right from wrong.
        """
        truth, probe = _zeros(self.parameters), Cotangents([[]])
        seen: dict[str, Any] = {}

        def look(output: Any) -> None:
            generator = torch.Generator().manual_seed(0)
            probe[0] += [_random_pair(leaf, generator) for leaf in tensors(output)]
            seen["times"], seen["shapes"] = times_used(output, self.parameters), dict(shapes)

        try:
            with shapes_of_outputs(self.onepass.rules) as shapes:
                one_by_one(self.model, pair, self.parameters, self.forward, probe, truth, self.power, look)
        except Exception as error:
            self._explain(pair, error)
        calls = Counter(name for module, _ in seen["shapes"] for name in self.onepass.owned[module].values())
        # A weight that also enters by another door than its layer's (tied by hand, say) has no complete rule.
        self.onepass.forget([name for name in self.onepass.names if seen["times"][name] != calls[name]])
        return probe, truth, seen["shapes"]

    def _explain(self, pair: Any, error: Exception) -> NoReturn:
        """Raise what the model raises for a batch; if nothing, it is the single sample that it refuses."""
        with torch.no_grad():
            self.forward(self.model, pair)
        raise ValueError(
            "the model takes a batch but not a single sample, so its output mixes the samples of a batch and "
            "no sample has a gradient of its own (batch normalisation without running statistics does this); "
            f"it says: {error}"
        ) from error

    def _try_vectorised(self, pair: Any, probe: Cotangents, truth: Moments) -> None:
        found = _zeros(self.vectorised)
        reason = "its output for a sample depends on the others of the batch"
        try:
            vectorised(self.model, pair, self.vectorised, self.forward, probe, found, self.power)
            wrong = self._disagreeing(self.vectorised, found, truth)
        except Exception as error:
            reason = str(error).split("\n")[0]
            wrong = list(self.vectorised)
        if wrong:
            self.looped = self._some(wrong)
            self.vectorised = {n: p for n, p in self.vectorised.items() if n not in self.looped}
            shown = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
            warnings.warn(
                f"the gradients of {shown} are computed one sample at a time, which is slow: they cannot be "
                f"vectorised over samples ({reason})",
                stacklevel=2,
            )

    def _disagreeing(self, names: Iterable[str], found: Moments, truth: Moments) -> list[str]:
        wrong = []
        for name in names:
            tolerance = _TOLERANCE.get(self.parameters[name].dtype, 0.2)
            error = (found[name] - truth[name]).norm()
            if not error <= tolerance * truth[name].norm():
                wrong.append(name)
        return wrong


def _random_pair(leaf: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """For an output of one sample, a random cotangent of two."""
    shape = (2, *leaf.shape[1:])
    if not leaf.is_floating_point():
        return torch.zeros(shape, dtype=leaf.dtype, device=leaf.device)
    return torch.randn(shape, generator=generator).to(leaf)
