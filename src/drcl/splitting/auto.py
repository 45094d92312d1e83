"""`strength="auto"`: a strength that suits the length of the task and the room in the network.

Importance s comes in its own units (`labels="outputs"`, `normalise="none"`). With a task of total step length T taken
as one step, the proximal map turns a gradient g into a move of T g / (1 + T * strength * s). So k = T * strength says
how firmly old tasks are held, whatever the learning rate, the optimizer or the number of steps; that is the unit. T is
the number of steps of the last task, or the given `horizon`, times the mean step size so far. In a task that runs
longer, T grows with it, so that k stays the same.

k itself depends on how much room the network has left. To first order, a step lets the new loss fall by this share:

    room(k) = sum of g^2 / (1 + k s)  over  sum of g^2,

over the parameters that are held. What nothing holds yet, such as the head of a new task, is left out: its gradients
pass at every k, and however full the rest is, they would make it look free. Room is measured with the first gradients
of a task: k lies half way, in logarithms, between `PULL` and the k that leaves `ROOM`. A network with room to spare is
held more firmly; a small network that every new task needs completely is held less.

But the strength never falls below a price: what the new loss must fall by to pay for moving the old outputs by one unit
squared. The price does not depend on the steps: where loss + strength * penalty is smallest, k plays no part. A long
task that pulls hard moves the old outputs as far as a low price lets it, and room does not see that.

The price is `PRICE`, in units of the loss, for a network that multiplies by `UNIT` weights to answer once and holds
one task. A cross entropy rises by about half of a squared change of its outputs, so at a price of one the old
losses would count as much as the new one. But importance foresees changes of the outputs to first order only, and the
more multiplications there are, the more the outputs move beyond that. So the price grows with their number: with its
cube root, which was found by trial (docs/how/units.md), within the sizes of `TRIED`. A weight counts as often as it is
used, such as a convolution's at every position; only layers with directions are counted. A language model answers at
every token. The more tasks hold the network, the less it moves, and the less it moves beyond the first order. So the
price falls with their number, as if the mean over tasks had a price and not the sum.

Where nearly all gradients point in important directions, the price alone would let a short task learn next to nothing.
So the room that it leaves, times the number of steps of the task, is at least `SPARE`: what passes of all steps
together is as much as so many steps without a hold. This is for SGD alone: Adam and its kin enlarge small gradients, so
that more passes than room says.

This takes the loss to be a mean over samples, as the losses of torch are. For a loss on another scale the price is kept
within `LEAST` and `MOST` times delta, the size of the loss's derivative with respect to the outputs. Since a gradient
is J^T delta and importance is the mean square of J,

    delta^2 = sum of g^2  over  sum of s in one task,

over everything that is held. Averaging over a batch makes it smaller, the more so the larger the batch; so delta says
what scale the loss has, and no more.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drcl import sharding
from drcl.directions.coordinates import Coordinates
from drcl.importance.accumulation import keep_of
from drcl.importance.base import importance_dtype
from drcl.options import AUTO
from drcl.splitting.step_size import Sizes, rate, told_by_groups

if TYPE_CHECKING:
    from drcl.optimizer import DRCL

PULL = 75.0
ROOM = 0.25
BELIEF = 0.5  # the weight of what the first gradients say, against PULL
LESS, MORE = 64.0, 256.0  # the first gradients may lower k by at most LESS and raise it by at most MORE
PRICE = 9.0  # of a change of one task's old outputs, in units of the loss, in a network
UNIT = 27_000  # of so many multiplications per answer
TRIED = (1_000, 100_000_000)  # the smallest and the largest number of them that the price goes by
LEAST, MOST = 15.0, 300.0  # limits of the price, in units of delta
SPARE = 7.0  # steps that the price leaves room for
LARGEST = 1e9  # no k is larger
WATCHED = 16  # how many first gradients of a task are measured
UNKNOWN = 1000  # steps of a task, if nothing is known of the last one
# Importance is sorted into half octaves from 2^-40 to 2^24; weights that are free or have none go into the first.
LOWEST, PLACES = -40, 2 * 64 + 2


def used(optimizer: DRCL) -> bool:
    return any(group["strength"] == AUTO for group in optimizer.param_groups)


def watch(optimizer: DRCL) -> None:
    """Before each of the first steps of a task: add up the gradient's energy by the importance of its directions."""
    progress = optimizer.progress
    if not optimizer.tasks or progress.steps >= WATCHED or not used(optimizer):
        return
    total = torch.zeros(PLACES, dtype=torch.float64)
    squares = held = 0.0
    layers = progress.layers
    biases = {layer.bias for layer in layers.values() if layer.bias is not None}
    for group in optimizer.param_groups:
        weight = rate(group)
        for p in group["params"]:
            if p.grad is None or not weight or p in biases or not optimizer.holds(group, p):
                continue
            g = sharding.full(p.grad)
            if p in layers:
                bias = layers[p].bias
                beside = None if bias is None or bias.grad is None else sharding.full(bias.grad)
                found = _along(layers[p].basis, g, beside, group["damping"])
                held += layers[p].basis.total
                total, squares = total + weight * found, squares + float(found.sum())
            else:
                importance = sharding.full(optimizer.state[p]["importance"]).to(importance_dtype(p))
                found = _sorted(importance + group["damping"], g.to(importance.dtype).square())
                held += float(importance.double().sum())
                total, squares = total + weight * found, squares + float(found.sum())
    seen = progress.energy or [0.0] * PLACES
    progress.energy = [a + b for a, b in zip(seen, total.tolist())]
    slope = squares * counted(optimizer) / held if held > 0 else 0.0
    progress.slope += (slope - progress.slope) / (progress.steps + 1)


def _along(basis: Any, g: Tensor, bias: Tensor | None, damping: float) -> Tensor:
    wide = importance_dtype(g)
    basis = basis.at_work(wide)
    parts = [t.to(wide) for t in (g, bias) if t is not None]
    pairs = [(t, torch.zeros_like(t)) for t in parts]
    at = Coordinates(basis, basis.difference(pairs[0], pairs[1] if len(pairs) > 1 else None))
    return _sorted(basis.eigenvalues + damping, at.sizes().square())


def _sorted(importance: Tensor, energy: Tensor) -> Tensor:
    """The energy in each half octave of importance."""
    place = (2 * (importance.log2() - LOWEST)).clamp(-1, PLACES - 2).floor().long() + 1
    return torch.bincount(place.flatten(), energy.double().flatten(), minlength=PLACES).cpu()


def room(energy: Sequence[float], k: float) -> float:
    """The share of the energy that passes."""
    passed = energy[0] + sum(e / (1 + k * 2 ** (LOWEST + (i + 0.5) / 2)) for i, e in enumerate(energy[1:]))
    return passed / sum(energy)


@functools.lru_cache(maxsize=64)
def _leaving(energy: tuple[float, ...], share: float, low: float, high: float) -> float:
    """The k between two limits that lets this share of the energy pass. It is asked for at every negotiation."""
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if room(energy, middle) > share else (low, middle)
    return math.sqrt(low * high)


def _known(energy: list[float]) -> bool:
    return 0 < sum(energy) < math.inf


def pull(energy: list[float]) -> float:
    """k, from the energy of the first gradients."""
    if not _known(energy):
        return PULL
    return float(PULL ** (1 - BELIEF) * _leaving(tuple(energy), ROOM, PULL / LESS, PULL * MORE) ** BELIEF)


def most(energy: list[float], steps: int) -> float:
    """The largest k that the price may lead to in a task of so many steps."""
    if not _known(energy):
        return math.inf
    return _leaving(tuple(energy), min(1.0, SPARE / steps), PULL / LESS, LARGEST)


def price(optimizer: DRCL) -> float:
    """What the new loss must fall by to pay for moving the old outputs by one unit squared."""
    delta = math.sqrt(optimizer.progress.slope)
    return min(max(PRICE, LEAST * delta), MOST * delta) * unforeseen(optimizer)


def unforeseen(optimizer: DRCL) -> float:
    """How much more a change of the old outputs costs than in a network of `UNIT` multiplications with one task."""
    made = optimizer.progress.made
    known = made[-1].get("multiplications") if made else None
    factor = 1 / max(1.0, counted(optimizer))
    if not isinstance(known, int) or known <= 0:
        return factor
    return float(factor * (min(max(known, TRIED[0]), TRIED[1]) / UNIT) ** (1 / 3))


def counted(optimizer: DRCL) -> float:
    """The number of tasks that count, where old ones fade."""
    keep = keep_of(optimizer.solver.memory)
    return sum(keep**age for age in range(optimizer.progress.tasks))


def sizes(optimizer: DRCL, group: dict[str, Any], gamma: float, chosen: float, damping: float) -> Sizes:
    """The step sizes of a finished proposal, where an optimizer such as Adam takes its own.

    With "auto" they have mean one in the whole group, and the `chosen` strength times the mean is at least the price.
    """
    if group["strength"] != AUTO:
        return Sizes(optimizer, gamma, damping)
    return Sizes(optimizer, gamma, damping, group, price(optimizer) / chosen if chosen else 0.0)


def length(optimizer: DRCL) -> int:
    """The number of steps of this task, as far as it is known."""
    progress = optimizer.progress
    return max(optimizer.solver.horizon or progress.horizon or UNKNOWN, progress.steps)


def strength(optimizer: DRCL, group: dict[str, Any]) -> float:
    """The current strength of a group. Where step sizes are measured, the price is applied later (`Sizes`)."""
    progress = optimizer.progress
    index = next(i for i, g in enumerate(optimizer.param_groups) if g is group)
    travel = progress.travel[index] if index < len(progress.travel) else 0.0
    mean = travel / progress.steps if progress.steps and travel else rate(group)
    whole = max(length(optimizer) * mean, travel)
    chosen = pull(progress.energy) / whole if whole > 0 else 0.0
    if chosen and told_by_groups(optimizer):
        chosen = max(chosen, min(price(optimizer), most(progress.energy, length(optimizer)) / whole))
    group["chosen_strength"] = chosen
    return float(group["chosen_strength"])


def count(optimizer: DRCL) -> None:
    """After a step: count it, and add up how far each group has moved in this task."""
    progress = optimizer.progress
    travel = progress.travel or [0.0] * len(optimizer.param_groups)
    progress.travel = [t + rate(group) for t, group in zip(travel, optimizer.param_groups)]
    progress.steps += 1


def start_task(optimizer: DRCL, steps: int) -> None:
    """Begin a new task; the last one took this many steps."""
    progress = optimizer.progress
    progress.horizon, progress.steps, progress.travel, progress.energy, progress.slope = steps, 0, [], [], 0.0
