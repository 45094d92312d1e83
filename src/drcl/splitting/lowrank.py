"""The splitting step of adapters, whose two factors are held by their product (`drcl.directions.lowrank`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from drcl import sharding
from drcl.directions.adapters import Adapter, Pair, cast, gathered, pairs, thin
from drcl.directions.basis import Eigenbasis
from drcl.directions.lowrank import Product, Side
from drcl.importance.base import importance_dtype
from drcl.prox import Penalty
from drcl.splitting import auto
from drcl.splitting.stability import penalty_of
from drcl.splitting.step_size import Sizes, told_by_groups

if TYPE_CHECKING:
    from drcl.optimizer import DRCL


def check(optimizer: DRCL, factors: Collection[Tensor]) -> None:
    """ValueError unless a product can be held with these options."""
    if not factors:
        return
    prox = optimizer.solver.prox
    if Penalty(prox, 1.0, 1.0).mix is None:
        raise ValueError(
            f"prox={prox!r} works only on single weights, but adapters are held by their product; use prox='l1', "
            "'l2' or 'elastic'"
        )
    for index, group in enumerate(optimizer.param_groups):
        if group["stable"] is not None and any(p in factors for p in group["params"]):
            raise ValueError(
                f"group {index}: stable={group['stable']!r} counts weights that stay in place, but adapters are held "
                "by their product, which has no weights of its own; use strength= instead"
            )


def factors(optimizer: DRCL) -> set[Tensor]:
    """All parameters that are held by their product."""
    return {p for adapter in optimizer.progress.adapters.values() for p in (adapter.a, adapter.b)}


def found(
    optimizer: DRCL,
    model: nn.Module,
    own: Mapping[str, nn.Parameter],
    named: Mapping[str, nn.Parameter],
    saved: Mapping[str, Adapter] | None = None,
) -> dict[str, Pair]:
    """The adapters among the parameters `named`, by the weight each adds to; `own` are all parameters of the model.

    Raises if adapters cannot be held with the optimizer's options, or if they differ from the `saved` ones.
    """
    made = pairs(model, own, set(named.values()))
    check(optimizer, {p for pair in made.values() for p in (pair.a, pair.b)})
    for name in made.keys() ^ saved.keys() if saved is not None else ():
        here, there = ("trained", "unknown") if name in made else ("not trained", "protected")
        raise ValueError(
            f"the adapter of {name!r} is {there} in the anchor and {here} here: the anchor belongs to another adapter; "
            "give this one the same target_modules"
        )
    return made


def measured_on(named: dict[str, nn.Parameter], pairs: Mapping[str, Pair]) -> dict[str, Any]:
    """The parameters to measure: the weight that an adapter adds to takes the place of its factors."""
    factors = {p for pair in pairs.values() for p in (pair.a, pair.b)}
    return {n: p for n, p in named.items() if p not in factors} | {n: pair.weight for n, pair in pairs.items()}


def of_factors(held: Mapping[str, Adapter], named: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The importance of adapters' factors by name, for reports."""
    names, made = {p: n for n, p in named.items()}, {}
    for adapter in held.values():
        for p, values in zip((adapter.a, adapter.b), adapter.importance()):
            made[names[p]] = torch.empty_like(p, dtype=importance_dtype(p))  # type: ignore[index]
            sharding.put(made[names[p]], values)  # type: ignore[index]
    return made


def anchored(optimizer: DRCL, adapter: Adapter) -> Adapter:
    """A copy with the protected factors; sharded factors are gathered on the CPU."""
    kept = [optimizer.state[p]["anchor"] for p in (adapter.a, adapter.b)]
    a, b = (sharding.full(t).cpu() if sharding.is_sharded(t) else t.clone() for t in kept)
    return cast(adapter, a, b, importance_dtype(adapter.a))


def settle(optimizer: DRCL) -> None:
    """Negotiate the proposals for the factors, and clear these."""
    adapters = optimizer.progress.adapters
    if not adapters:
        return
    where = {
        p: (group, gamma)
        for group, gamma in zip(optimizer.param_groups, optimizer.progress.gammas)
        for p in group["params"]
        if optimizer.holds(group, p)
    }
    scales = {id(group): _scale(optimizer, group, gamma) for group, gamma in where.values()}
    for adapter in adapters.values():
        both = [adapter.a, adapter.b]
        if all(p in where for p in both) and any("start" in optimizer.state[p] for p in both):
            _settle(optimizer, adapter, where, scales)


def _scale(optimizer: DRCL, group: dict[str, Any], gamma: float) -> Tensor | float:
    """What a strength is multiplied by: with "auto", step sizes that an optimizer such as Adam takes have mean one."""
    if told_by_groups(optimizer):
        return 1.0
    return auto.sizes(optimizer, group, gamma, penalty_of(optimizer, group, 1.0).strength, 0.0).mean


def _settle(
    optimizer: DRCL,
    adapter: Adapter,
    where: dict[Tensor, tuple[dict[str, Any], float]],
    scales: dict[int, Tensor | float],
) -> None:
    """If factors are sharded, every process gathers both, solves for all rows and keeps its own."""
    reflect = optimizer.solver.splitting != "forward-backward"
    states = [optimizer.state[p] for p in (adapter.a, adapter.b)]
    arrived = gathered(adapter.a, adapter.b)
    starts = [sharding.full(s["start"]) if "start" in s else p for s, p in zip(states, arrived)]
    asked = [2 * p - y if reflect else p for p, y in zip(arrived, starts)]
    anchors = [sharding.full(s["anchor"]) for s in states]
    group = where[adapter.b][0]
    penalty = penalty_of(optimizer, group, 1.0)
    if math.isinf(penalty.strength):
        z = anchors
    elif not penalty.strength:
        z = asked
    else:
        basis = adapter.basis.at_work(importance_dtype(adapter.a))
        basis = dataclasses.replace(basis, eigenvalues=(basis.eigenvalues + penalty.damping) * scales[id(group)])
        penalty = dataclasses.replace(penalty, damping=0.0)
        sides = _sides(basis, adapter.turned, starts, asked, anchors)
        for p, side in zip((adapter.a, adapter.b), sides[::-1] if not adapter.turned else sides):
            metric = _metric(optimizer, p, where[p][1]) if "start" in optimizer.state[p] else None
            if metric is not None:
                rows = metric.flatten(1).mT if p is adapter.a else metric.flatten(1)
                side.steps(rows, uniform=told_by_groups(optimizer))
        Product(basis, adapter.scale, *sides).settle(penalty)
        found = [side.now for side in (sides if adapter.turned else sides[::-1])]
        z = [found[0].mT.reshape(adapter.a.shape), found[1].reshape(adapter.b.shape)]
    for p, state, x, y, new in zip((adapter.a, adapter.b), states, arrived, starts, z):
        if "start" not in state:
            continue
        new = new.to(p.dtype)
        if "z" in state:
            sharding.put(state["z"], new)
        sharding.put(p, y + new - x if reflect else new)
        for key in ("start", "gradients"):
            state.pop(key, None)


def _sides(basis: Eigenbasis, turned: bool, *points: Sequence[Tensor]) -> tuple[Side, Side]:
    """Both factors of the product: where each starts, what is proposed for it, and its anchor."""
    rows, columns = zip(*(thin(a, b, turned) for a, b in points))
    return Side(basis.outputs, *rows), Side(basis.inputs, *columns)


def _metric(optimizer: DRCL, p: Tensor, gamma: float) -> Tensor | None:
    """One over the step size of each weight; None if the parameter does not move."""
    if not gamma:
        return None
    steps = torch.full_like(p, gamma, dtype=torch.float64 if p.device.type != "mps" else torch.float32)
    if not told_by_groups(optimizer):
        steps = Sizes(optimizer, gamma, 0.0).weights(p, steps)
    return sharding.full(1 / steps.clamp(min=torch.finfo(torch.float32).tiny))


def penalties(optimizer: DRCL) -> Iterator[float]:
    """strength * penalty of every product, at the factors that the model holds."""
    for group, strength in zip(optimizer.param_groups, optimizer.strengths):
        for adapter in optimizer.progress.adapters.values():
            if any(p is adapter.b for p in group["params"]) and optimizer.holds(group, adapter.b):
                basis, now = adapter.basis.at_work(importance_dtype(adapter.a)), gathered(adapter.a, adapter.b)
                anchors = [sharding.full(optimizer.state[p]["anchor"]) for p in (adapter.a, adapter.b)]
                sides = _sides(basis, adapter.turned, now, now, anchors)
                term = dataclasses.replace(penalty_of(optimizer, group, 1.0), strength=strength)
                yield Product(basis, adapter.scale, *sides).penalty(term)
