"""The splitting step on tensors: several backends, and one reference that defines it.

For a parameter held at y with gradient g, anchor a and importance F the step is

    s  = lr * direction(g)            what plain SGD would subtract (momentum, weight decay, Nesterov included)
    r  = y - 2s                       the reflected proposal (forward-backward: y - s)
    z  = prox(r, a, gamma*strength*F) the stability map
    y' = z + s                        consensus (forward-backward: y' = z)

`reference` computes exactly this for one parameter and any prox. "native" does it in one pass over memory (step.c),
"foreach" and "compile" in torch. All of them round in the same way and are tested against the reference.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drcl import sharding
from drcl.importance.base import importance_dtype
from drcl.prox import Box, Penalty
from drcl.splitting import native

BACKENDS = ("auto", "native", "foreach", "compile", "reference")


@dataclass(frozen=True)
class Step:
    """Everything about one step that is a number rather than a tensor.

    With the defaults, without a learning rate, the gradient is taken as a finished displacement s = y - x.
    """

    penalty: Penalty
    lr: float = 1.0
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False
    reflect: bool = True


@dataclass
class Weight:
    """One protected parameter and its state. `z` is None without reflection, `buffer` None without momentum."""

    y: Tensor
    g: Tensor  # its gradient, or y - x of a finished proposal
    anchor: Tensor
    importance: Tensor
    z: Tensor | None = None
    buffer: Tensor | None = None
    first: bool = False  # the momentum buffer is empty and starts at this gradient

    def seen(self, by: Callable[[Tensor], Tensor]) -> Weight:
        """The same with every tensor replaced, for example by its shard."""
        z, buffer = (None if t is None else by(t) for t in (self.z, self.buffer))
        return Weight(by(self.y), by(self.g), by(self.anchor), by(self.importance), z, buffer, self.first)


def displacement(y: Tensor, g: Tensor, buffer: Tensor | None, first: bool, step: Step) -> Tensor:
    """s = lr * direction; the momentum buffer is advanced in place."""
    p = -g if step.maximize else g
    if step.weight_decay:
        p = p + y * step.weight_decay
    if buffer is not None:
        fresh = p if first else buffer * step.momentum + p * (1 - step.dampening)
        buffer.copy_(fresh)
        p = p + buffer * step.momentum if step.nesterov else fresh
    return p * step.lr


def reference(w: Weight, step: Step) -> None:
    """The definition: one parameter, plain torch, 16-bit weights computed in 32 bits and rounded once."""
    wide = torch.float32 if w.y.dtype in (torch.float16, torch.bfloat16) else w.y.dtype
    y, g, anchor = w.y.to(wide), w.g.to(wide), w.anchor.to(wide)
    buffer = w.buffer.to(wide) if w.buffer is not None else None
    s = displacement(y, g, buffer, w.first, step)
    z = step.penalty(y - 2 * s if step.reflect else y - s, anchor, w.importance.to(wide))
    if w.buffer is not None and buffer is not None and buffer is not w.buffer:
        w.buffer.copy_(buffer)
    w.y.copy_(z + s if step.reflect else z)
    if w.z is not None:
        w.z.copy_(z)


def _native(weights: Sequence[Weight], step: Step) -> None:
    library = native.load()
    assert library is not None
    assert step.penalty.mix is not None
    hyper = native.Hyper(
        lr=step.lr,
        momentum=step.momentum,
        decay=step.weight_decay,
        fresh=1.0 if weights[0].first else 1 - step.dampening,
        c=step.penalty.gamma * step.penalty.strength,
        mix=step.penalty.mix,
        damping=step.penalty.damping,
        nesterov=step.nesterov,
        maximize=step.maximize,
        reflect=step.reflect,
    )
    native.step(
        library,
        [w.y for w in weights],
        [w.g for w in weights],
        [w.anchor for w in weights],
        [w.importance for w in weights],
        [w.z for w in weights if w.z is not None] or None,
        [w.buffer for w in weights if w.buffer is not None] or None,
        hyper,
    )


def _foreach(weights: Sequence[Weight], step: Step) -> None:
    y, g = [w.y for w in weights], [w.g for w in weights]
    anchor, importance = [w.anchor for w in weights], [w.importance for w in weights]
    p = list(torch._foreach_neg(g)) if step.maximize else g
    if step.weight_decay:
        p = list(torch._foreach_add(p, torch._foreach_mul(y, step.weight_decay)))
    buffers = [w.buffer for w in weights if w.buffer is not None]
    if buffers:
        if weights[0].first:
            torch._foreach_copy_(buffers, p)
        else:
            torch._foreach_mul_(buffers, step.momentum)
            torch._foreach_add_(buffers, torch._foreach_mul(p, 1 - step.dampening))
        p = list(torch._foreach_add(p, torch._foreach_mul(buffers, step.momentum))) if step.nesterov else buffers
    s = torch._foreach_mul(p, step.lr)
    r = torch._foreach_sub(y, torch._foreach_mul(s, 2.0) if step.reflect else s)
    # torch._foreach cannot select elements, so the prox runs tensor by tensor.
    z = [step.penalty(r_, a, f) for r_, a, f in zip(r, anchor, importance)]
    if weights[0].z is not None:
        torch._foreach_copy_([w.z for w in weights if w.z is not None], z)
    torch._foreach_copy_(y, torch._foreach_add(z, s) if step.reflect else z)


@functools.cache
def _compiled() -> Callable[..., None]:
    def flat(
        y: Tensor,
        g: Tensor,
        anchor: Tensor,
        importance: Tensor,
        z: Tensor | None,
        buffer: Tensor | None,
        n: Tensor,
    ) -> None:
        # n is a tensor with the numbers of the step, so that a new learning rate does not compile again. An infinite
        # strength makes the bound infinite or NaN, and both comparisons with it select the anchor.
        lr, momentum, decay, fresh, c, mix, damping, nesterov, sign, reach, carry = n.unbind()
        p = sign * g + decay * y
        if buffer is not None:
            buffer.copy_(momentum * buffer + fresh * p)
            p = torch.where(nesterov > 0, p + momentum * buffer, buffer)
        s = lr * p
        r = y - reach * s
        d, t = r - anchor, (importance + damping) * c
        bound = t * mix
        soft = r - torch.copysign(bound, d)
        out = torch.where(mix == 1, soft, anchor + (d - torch.copysign(bound, d)) / (1 + t * (1 - mix)))
        v = torch.where(d.abs() > bound, out, anchor)
        if z is not None:
            z.copy_(v)
        y.copy_(v + carry * s)

    return torch.compile(flat, dynamic=True, fullgraph=True)


def _compile(w: Weight, step: Step) -> None:
    penalty = step.penalty
    assert penalty.mix is not None
    numbers = [step.lr, step.momentum, step.weight_decay, 1.0 if w.first else 1 - step.dampening]
    numbers += [penalty.gamma * penalty.strength, penalty.mix, penalty.damping, float(step.nesterov)]
    numbers += [-1.0 if step.maximize else 1.0, *([2.0, 1.0] if step.reflect else [1.0, 0.0])]
    flat = [None if t is None else t.view(-1) for t in (w.y, w.g, w.anchor, w.importance, w.z, w.buffer)]
    n = torch.tensor(numbers, dtype=w.y.dtype, pin_memory=w.y.is_cuda).to(w.y.device, non_blocking=True)
    _compiled()(*flat, n)


_fallen: set[str] = set()


def _fall_back(backend: str, reason: str) -> None:
    if backend not in _fallen:
        _fallen.add(backend)
        warnings.warn(f"drcl: backend {backend!r} is not available ({reason}); using 'foreach'", stacklevel=4)


def take(weights: Sequence[Weight], step: Step, backend: str = "auto") -> None:
    """One splitting step, in place, on every weight."""
    narrow = [w for w in weights if w.importance.dtype is torch.bfloat16]
    for w in narrow:  # stored in 16 bits (DRCL(storage=...)): one at a time is widened, and let go again
        take([replace(w, importance=w.importance.to(importance_dtype(w.y)))], step, backend)
    if narrow:
        weights = [w for w in weights if w.importance.dtype is not torch.bfloat16]
    batches: dict[tuple[str, torch.dtype, torch.device, bool, bool], list[Weight]] = {}
    weights = _on_shards(weights, step)
    fused = backend in ("auto", "native") and step.penalty.mix is not None and any(w.y.is_cpu for w in weights)
    fused = fused and native.load() is not None
    for w in weights:
        # This runs once per parameter and step: a small network spends more time here than in the arithmetic.
        way = "native" if fused and native.usable(w.y, (w.g, w.anchor, w.importance, w.z, w.buffer)) else ""
        way = way or _route(w, step, backend)
        batches.setdefault((way, w.y.dtype, w.y.device, w.first, w.z is None), []).append(w)
    for (way, *_), batch in batches.items():
        if way == "compile":
            batch = _compile_all(batch, step)
            way = "foreach"
        if way == "native":
            _native(batch, step)
        elif way == "foreach" and batch:
            _foreach(batch, step)
        else:
            for w in batch:
                reference(w, step)


def _on_shards(weights: Sequence[Weight], step: Step) -> list[Weight]:
    """Shards in place of sharded tensors if the prox works weight by weight; otherwise steps here, on whole tensors."""
    alone = step.penalty.mix is not None or isinstance(step.penalty.prox, Box)
    found = []
    for w in weights:
        if not sharding.is_sharded(w.y):
            found.append(w)
        elif alone:
            found.append(w.seen(sharding.local))
        else:
            whole = w.seen(lambda t: sharding.full(t).clone())
            reference(whole, step)
            for mine, done in ((w.y, whole.y), (w.z, whole.z), (w.buffer, whole.buffer)):
                if mine is not None and done is not None:
                    sharding.local(mine).copy_(sharding.part(done, mine))
    return found


def _compile_all(weights: list[Weight], step: Step) -> list[Weight]:
    """The weights that remain after a failure to compile; it happens before anything is written."""
    for k, w in enumerate(weights):
        try:
            _compile(w, step)
        except Exception as reason:  # inductor raises its own exceptions if there is no compiler
            _fall_back("compile", " ".join(str(reason).splitlines()[:2]) or type(reason).__name__)
            return weights[k:]
    return []


def _route(w: Weight, step: Step, backend: str) -> str:
    y, tensors = w.y, [t for t in (w.y, w.g, w.anchor, w.importance, w.z, w.buffer) if t is not None]
    same = all(t.dtype == y.dtype and t.device == y.device for t in tensors)
    if backend == "reference" or step.penalty.mix is None or not same or y.dtype in (torch.float16, torch.bfloat16):
        return "reference"
    # Sizes 0 and 1 would each be compiled separately, and torch gives up after a few.
    if backend == "compile" and y.numel() > 1 and "compile" not in _fallen and all(t.is_contiguous() for t in tensors):
        return "compile"
    return "foreach"


def first_non_finite(gradients: Sequence[Tensor], backend: str = "auto") -> int:
    """Index of the first gradient that holds a NaN or an infinity, or -1."""
    library = native.load() if backend in ("auto", "native") and gradients[0].is_cpu else None
    dtype = gradients[0].dtype
    if library is not None and all(g.dtype is dtype and native.usable(g) for g in gradients):
        return native.first_non_finite(library, gradients)
    flat = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    worst: dict[torch.device, list[Tensor]] = {}
    places: dict[torch.device, list[int]] = {}
    for i, t in enumerate(flat):
        if t.numel():
            worst.setdefault(t.device, []).append(torch.isfinite(t.detach().abs().amax()))
            places.setdefault(t.device, []).append(i)
    # Queue all the work first, then wait once per device.
    fine = {device: torch.stack(found).cpu() for device, found in worst.items()}
    bad = [i for device, found in fine.items() for i, good in zip(places[device], found.tolist()) if not good]
    return min(bad, default=-1)
