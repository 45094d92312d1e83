"""Sums over samples of powers of per-sample gradients: the engine under every importance estimate.

For sample b and cotangent v_b (the derivative of its loss with respect to the model's output) the gradient is
g_b = J_b^T v_b. This module computes the sum over b of |g_b|^power, never a power of the sum. There are three routes:
one batched pass with a rule per layer (`drcl.per_sample.hooks`), `torch.func`, and one sample at a time
(`drcl.per_sample.fallback`). A test on two samples decides, before the work begins, which parameter takes which route.
"""

import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import nn

from drcl.per_sample.draw import batch_length, map_tensors, regroup, take, tensors
from drcl.per_sample.fallback import Cotangents, Forward, one_by_one, times_used, vectorised
from drcl.per_sample.hooks import OnePass, Shapes, Unsupported, shapes_of_outputs
from drcl.per_sample.layers import Moments, add_power
from drcl.per_sample.moments import MomentVisitor

__all__ = ["Cotangents", "Forward", "accumulator", "per_sample_moments"]

Differentiate = Callable[[Any, Any, int], Cotangents]

# Two routes round differently, and rounding may switch a ReLU; a wrong route is wrong by much more.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 0.03}

# Activations with fewer elements than this (4 MB) are small; then batches are merged up to that many samples.
_LIGHT, _MERGED = 2**20, 128


def per_sample_moments(
    model: nn.Module,
    batches: Iterable[Any],
    parameters: dict[str, nn.Parameter],
    forward: Forward,
    differentiate: Differentiate,
    power: int,
    merge: bool = True,
) -> tuple[Moments, int]:
    """Sum of |per-sample gradient|^power over all samples of `batches` and all cotangents, and their number.

    `differentiate(output, target, length)` returns a list of cotangents of the output, each with one tensor for every
    tensor of the output. The model stays in its current mode; call this inside `undisturbed`, because it switches
    `requires_grad` off. Small batches are joined if `merge` allows it. Sums are float32, or float64 for float64
    parameters.
    """
    for p in model.parameters():
        p.requires_grad_(False)
    filled = (_detached(batch) for batch in batches if batch_length(batch))
    first = next(filled, None)
    if first is None:
        return {}, 0
    count, onepass = 0, OnePass(model, parameters)
    with onepass.tapped():
        plan = _Plan(model, first, parameters, forward, differentiate, power, onepass)
        rows = plan.rows(batch_length(first), merge)
        for batch in regroup(itertools.chain([first], filled), rows):
            length = batch_length(batch)
            plan.add(batch, length)
            count += length
    return plan.totals, count


def _detached(batch: Any) -> Any:
    if any(t.requires_grad for t in tensors(batch)):
        return map_tensors(torch.Tensor.detach, batch)
    return batch


def accumulator(parameter: torch.Tensor) -> torch.dtype:
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32


class _Plan:
    """Which parameter takes which route, and the sums so far."""

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        parameters: dict[str, nn.Parameter],
        forward: Forward,
        differentiate: Differentiate,
        power: int,
        onepass: OnePass,
    ) -> None:
        self.model, self.parameters, self.forward, self.power = model, parameters, forward, power
        self.differentiate = differentiate
        self.onepass = onepass
        self.vectorised: dict[str, nn.Parameter] = {}
        self.looped: dict[str, nn.Parameter] = {}
        pair = take(batch, [0, min(1, batch_length(batch) - 1)])
        probe, truth, shapes = self._definition(pair)
        self.activations = sum(shape.numel() for shape in shapes.values())
        self.totals = {
            name: torch.zeros_like(p, dtype=accumulator(p), requires_grad=False) for name, p in parameters.items()
        }
        self._try_onepass(pair, probe, truth, shapes)
        covered = {*self.onepass.names, *self.looped}
        self.vectorised = self._some(name for name in parameters if name not in covered)
        if self.vectorised:
            self._try_vectorised(pair, probe, truth)
        for total in self.totals.values():
            total.zero_()

    def rows(self, length: int, merge: bool) -> int:
        """How many samples to process at once, if the data come in batches of `length`.

        The sums are in memory together with all activations, while an ordinary pass frees activations as gradients
        appear. So with large activations half a batch is used, which needs no more memory. With small activations the
        number of batches decides the time, so two are joined.
        """
        if self.looped is self.parameters:
            return 1
        if self.activations * length > _LIGHT:
            return (length + 1) // 2 if length >= 16 else length
        if not merge or self.vectorised or self.looped:
            return length
        return max(length, min(2 * length, _MERGED))

    def add(self, batch: Any, length: int) -> None:
        with self.onepass.listening():
            output, target = self.forward(self.model, batch)
            cotangents = self.differentiate(output, target, length)
            others = self.looped
            try:
                self.onepass.backward(output, cotangents, length, self._visitor())
            except Unsupported as reason:
                others = {**others, **self._some(self.onepass.names)}
                self._warn(others, str(reason))
        del output
        if self.vectorised:
            vectorised(self.model, batch, self.vectorised, self.forward, cotangents, self.totals, self.power)
        if others:
            one_by_one(self.model, batch, others, self.forward, cotangents, self._receive)

    def _visitor(self) -> MomentVisitor:
        return MomentVisitor(self.onepass, self.totals, self.power)

    def _receive(self, name: str, gradient: torch.Tensor) -> None:
        add_power(self.totals[name], gradient[None], self.power)

    def _some(self, names: Iterable[str]) -> dict[str, nn.Parameter]:
        wanted = set(names)
        return {name: p for name, p in self.parameters.items() if name in wanted}

    def _definition(self, pair: Any) -> tuple[Cotangents, Moments, Shapes]:
        """A random cotangent, the result of the definition for it, and the layers' shapes for one sample.

        The cotangent is random, because that of a well-trained model can be too small to show an error. For the second
        sample it is zero: the sample only tests whether a route keeps samples separate. Of the moments only sums over
        rows are kept, which is enough to compare them.
        """
        first = take(pair, slice(0, 1))
        probe: list[list[torch.Tensor]] = [[]]
        truth: Moments = {}
        seen: dict[str, Any] = {}

        def look(output: Any) -> None:
            if any(leaf.ndim == 0 or len(leaf) != 1 for leaf in tensors(output)):
                raise ValueError("the samples must lie along the first dimension of the model's output")
            generator = torch.Generator().manual_seed(0)
            probe[0] += [_random_pair(leaf, generator) for leaf in tensors(output)]
            seen["times"], seen["shapes"] = times_used(output, self.parameters), dict(shapes)
            self._alone = [leaf.detach() for leaf in tensors(output)]

        def receive(name: str, gradient: torch.Tensor) -> None:
            wide = gradient.to(accumulator(gradient))
            # The norm needs no second array as large as the gradient.
            norms = torch.linalg.vector_norm(wide.flatten(1), self.power, 1) if wide.ndim > 1 else wide.abs()
            truth[name] = norms**self.power

        try:
            with shapes_of_outputs(self.onepass.rules) as shapes:
                one_by_one(self.model, first, self.parameters, self.forward, probe, receive, look)
        except Exception as error:
            self._explain(pair, error)
        if self.onepass.projections:
            seen["times"], seen["shapes"] = self._in_pieces(first)
        calls = Counter(name for module, _ in seen["shapes"] for name in self.onepass.owned[module].values())
        # A weight that is also used outside its layer (such as one tied by hand) has no complete rule.
        self.onepass.forget([name for name in self.onepass.names if seen["times"][name] != calls[name]])
        return probe, truth, seen["shapes"]

    def _in_pieces(self, first: Any) -> tuple[Counter[str], Shapes]:
        """Uses and shapes in a pass in which fused layers call their projections."""
        before = [p.requires_grad for p in self.parameters.values()]
        try:
            for p in self.parameters.values():
                p.requires_grad_(True)
            with shapes_of_outputs(self.onepass.rules) as shapes, self.onepass.pieces():
                output, _ = self.forward(self.model, first)
            return times_used(output, self.parameters), dict(shapes)
        finally:
            for p, requires_grad in zip(self.parameters.values(), before):
                p.requires_grad_(requires_grad)

    def _explain(self, pair: Any, error: Exception) -> NoReturn:
        """Raise an error that says whether a batch fails, or only a single sample."""
        with torch.no_grad():
            try:
                output, target = self.forward(self.model, pair)
            except RuntimeError as reason:
                shapes = ", ".join(str(list(t.shape)) for t in tensors(pair))
                raise RuntimeError(
                    f"the model cannot take a batch of the data ({reason}); its first two samples together have the "
                    f"shapes {shapes}: check the loader, or pass forward=lambda model, batch: (output, target)"
                ) from reason
            try:
                self.forward(self.model, take(pair, [0]))
            except Exception:
                raise ValueError(
                    "the model takes a batch but not a single sample, so its output mixes the samples of a "
                    "batch and no sample has a gradient of its own (batch normalisation without running "
                    f"statistics does this); it says: {error}"
                ) from error
        self.differentiate(output, target, 2)
        raise error

    def _try_onepass(self, pair: Any, probe: Cotangents, truth: Moments, shapes: Shapes) -> None:
        with self.onepass.listening():
            output, _ = self.forward(self.model, pair)
            strange = any(_differ(alone, both[:1]) for alone, both in zip(self._alone, tensors(output)))
            if not strange:
                self.onepass.layout(2, shapes)
                try:
                    self.onepass.backward(output, probe, 2, self._visitor())
                except Unsupported:
                    self.onepass.forget(self.onepass.names)
        if strange and self.onepass.forget_projections():
            # The split of fused layers may be the cause, so do not split them from now on.
            self._try_onepass(pair, probe, truth, shapes)
            return
        if strange:
            self.looped = self.parameters
            self.onepass.forget(self.onepass.names)
            self._warn(self.looped, "the output for a sample depends on the others of its batch")
            return
        self.onepass.forget(self._disagreeing(self.onepass.names, truth))

    def _try_vectorised(self, pair: Any, probe: Cotangents, truth: Moments) -> None:
        for name in self.vectorised:
            self.totals[name].zero_()
        reason = "torch.func gives other gradients"
        try:
            vectorised(self.model, pair, self.vectorised, self.forward, probe, self.totals, self.power)
            wrong = self._disagreeing(self.vectorised, truth)
        except Exception as error:
            reason = str(error).split("\n")[0]
            wrong = list(self.vectorised)
        if wrong:
            self.looped = self._some(wrong)
            self.vectorised = {n: p for n, p in self.vectorised.items() if n not in self.looped}
            self._warn(wrong, reason)

    def _disagreeing(self, names: Iterable[str], truth: Moments) -> list[str]:
        wrong = []
        for name in names:
            found = _mark(self.totals[name])
            right = truth.get(name, torch.zeros_like(found))
            if _differ(right, found, self.parameters[name].dtype):
                wrong.append(name)
        return wrong

    @staticmethod
    def _warn(names: Iterable[str], reason: str) -> None:
        first, *rest = names
        shown = f"{first!r} and {len(rest)} more" if rest else repr(first)
        warnings.warn(
            f"the gradients of {shown} are computed one sample at a time, which is slow: {reason}",
            stacklevel=2,
        )


def _differ(right: torch.Tensor, found: torch.Tensor, computed_in: torch.dtype | None = None) -> bool:
    """Whether they differ by more than rounding. Values that are not finite count as equal; an error comes later."""
    if right.shape != found.shape:
        return True
    tolerance = _TOLERANCE.get(computed_in or right.dtype, 0.2)
    return bool((right - found).double().norm() > tolerance * right.double().norm())


def _mark(moments: torch.Tensor) -> torch.Tensor:
    return moments.flatten(1).sum(1) if moments.ndim > 1 else moments


def _random_pair(leaf: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """For the output of one sample, a cotangent for two: random and zero."""
    pair = torch.zeros((2, *leaf.shape[1:]), dtype=leaf.dtype, device=leaf.device)
    if leaf.is_floating_point():
        pair[0] = torch.randn(leaf.shape[1:], generator=generator).to(leaf)
    return pair
