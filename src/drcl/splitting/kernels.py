"""The splitting step on tensors, several backends, one reference.

For a parameter held at y with gradient g, anchor a and importance F the step is

    s  = lr * direction(g)            what plain SGD would subtract (momentum, weight decay, Nesterov included)
    r  = y - 2s                       the reflected proposal (forward-backward: y - s)
    z  = prox(r, a, gamma*strength*F) the stability map
    y' = z + s                        consensus (forward-backward: y' = z)

`reference` spells that out for one parameter and any prox. "native" does it in one pass over memory (step.c),
"foreach" and "compile" in torch; all of them round alike and are tested against the reference.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drcl.prox import L1, L2, ElasticNet, Prox, per_step_threshold
from drcl.splitting import native

BACKENDS = ("auto", "native", "foreach", "compile", "reference")


@dataclass(frozen=True)
class Rule:
    """Everything about one step that is a number rather than a tensor."""

    lr: float
    gamma: float  # the step size in the threshold; lr, or the sum of several
    strength: float
    prox: Prox
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False
    reflect: bool = True
    damping: float = 0.0

    @property
    def mix(self) -> float | None:
        """Share of soft threshold in the penalty; None where the prox is not of the L1/L2 family."""
        if isinstance(self.prox, ElasticNet):
            return self.prox.mix
        return 1.0 if isinstance(self.prox, L1) else 0.0 if isinstance(self.prox, L2) else None

    def threshold(self, importance: Tensor) -> Tensor:
        scale: Callable[[float, float, Tensor], Tensor] = getattr(self.prox, "threshold", per_step_threshold)
        return scale(self.gamma, self.strength, importance + self.damping)


@dataclass
class Weight:
    """One protected parameter and its state. `z` is None without reflection, `buffer` None without momentum."""

    y: Tensor
    g: Tensor
    anchor: Tensor
    importance: Tensor
    z: Tensor | None = None
    buffer: Tensor | None = None
    first: bool = False  # the momentum buffer is empty and starts at this gradient
    done: bool = False  # y holds the proposal x already, for layers without reflection only; g says nothing


def proposal(y: Tensor, g: Tensor, buffer: Tensor | None, first: bool, rule: Rule) -> Tensor:
    """s = lr * direction; the momentum buffer is advanced in place."""
    p = -g if rule.maximize else g
    if rule.weight_decay:
        p = p + y * rule.weight_decay
    if buffer is not None:
        fresh = p if first else buffer * rule.momentum + p * (1 - rule.dampening)
        buffer.copy_(fresh)
        p = p + buffer * rule.momentum if rule.nesterov else fresh
    return p * rule.lr


def settle(y: Tensor, s: Tensor, anchor: Tensor, importance: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """(y', z) from the displacement s."""
    z = rule.prox(y - 2 * s if rule.reflect else y - s, anchor, rule.threshold(importance))
    return (z + s if rule.reflect else z), z


def reference(w: Weight, rule: Rule) -> None:
    """The definition: one parameter, plain torch, 16-bit weights computed in 32 bits and rounded once."""
    wide = torch.float32 if w.y.dtype in (torch.float16, torch.bfloat16) else w.y.dtype
    y, g, anchor = w.y.to(wide), w.g.to(wide), w.anchor.to(wide)
    buffer = w.buffer.to(wide) if w.buffer is not None else None
    new_y, z = settle(y, proposal(y, g, buffer, w.first, rule), anchor, w.importance.to(wide), rule)
    if w.buffer is not None and buffer is not None and buffer is not w.buffer:
        w.buffer.copy_(buffer)
    w.y.copy_(new_y)
    if w.z is not None:
        w.z.copy_(z)


def check_prox(prox: Prox, weights: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    """Try a prox on every (weight, importance) before training relies on it, and name the first it does not suit."""
    if Rule(1.0, 1.0, 1.0, prox).mix is not None:
        return
    for name, (w, importance) in weights.items():
        wide = w.to(importance.dtype)
        try:
            out = prox(wide, wide, Rule(1.0, 1.0, 1.0, prox).threshold(importance))
        except Exception as reason:
            raise ValueError(f"prox={prox!r} does not work on parameter {name!r}: {reason}") from reason
        if not isinstance(out, Tensor) or out.shape != w.shape or not bool(torch.isfinite(out).all()):
            found = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"prox={prox!r} has to return finite values of the shape it was given; for parameter {name!r} of "
                f"shape {tuple(w.shape)} it returned {found}"
            )


def _native(weights: Sequence[Weight], rule: Rule) -> None:
    library = native.load()
    assert library is not None
    assert rule.mix is not None
    hyper = native.Hyper(
        lr=rule.lr,
        momentum=rule.momentum,
        decay=rule.weight_decay,
        fresh=1.0 if weights[0].first else 1 - rule.dampening,
        c=rule.gamma * rule.strength,
        mix=rule.mix,
        damping=rule.damping,
        nesterov=rule.nesterov,
        maximize=rule.maximize,
        reflect=rule.reflect,
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


def _foreach(weights: Sequence[Weight], rule: Rule) -> None:
    y, g = [w.y for w in weights], [w.g for w in weights]
    anchor, importance = [w.anchor for w in weights], [w.importance for w in weights]
    p = list(torch._foreach_neg(g)) if rule.maximize else g
    if rule.weight_decay:
        p = list(torch._foreach_add(p, torch._foreach_mul(y, rule.weight_decay)))
    buffers = [w.buffer for w in weights if w.buffer is not None]
    if buffers:
        if weights[0].first:
            torch._foreach_copy_(buffers, p)
        else:
            torch._foreach_mul_(buffers, rule.momentum)
            torch._foreach_add_(buffers, torch._foreach_mul(p, 1 - rule.dampening))
        p = list(torch._foreach_add(p, torch._foreach_mul(buffers, rule.momentum))) if rule.nesterov else buffers
    s = torch._foreach_mul(p, rule.lr)
    r = torch._foreach_sub(y, torch._foreach_mul(s, 2.0) if rule.reflect else s)
    # The prox itself has no foreach form that selects; its few passes run tensor by tensor.
    z = [rule.prox(r_, a, rule.threshold(f)) for r_, a, f in zip(r, anchor, importance)]
    if weights[0].z is not None:
        torch._foreach_copy_([w.z for w in weights if w.z is not None], z)
    torch._foreach_copy_(y, torch._foreach_add(z, s) if rule.reflect else z)


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
        # n holds the numbers of the rule, so a changed learning rate does not compile again. An infinite strength
        # makes the bound infinite or NaN, and both comparisons with it select the anchor.
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


def _compile(w: Weight, rule: Rule) -> None:
    assert rule.mix is not None
    numbers = [rule.lr, rule.momentum, rule.weight_decay, 1.0 if w.first else 1 - rule.dampening]
    numbers += [rule.gamma * rule.strength, rule.mix, rule.damping, float(rule.nesterov)]
    numbers += [-1.0 if rule.maximize else 1.0, *([2.0, 1.0] if rule.reflect else [1.0, 0.0])]
    flat = [None if t is None else t.view(-1) for t in (w.y, w.g, w.anchor, w.importance, w.z, w.buffer)]
    _compiled()(*flat, torch.tensor(numbers, dtype=w.y.dtype, device=w.y.device))


_fallen: set[str] = set()


def _fall_back(backend: str, reason: str) -> None:
    if backend not in _fallen:
        _fallen.add(backend)
        warnings.warn(f"drcl: backend {backend!r} is not available ({reason}); using 'foreach'", stacklevel=4)


def negotiate(weights: Sequence[Weight], rule: Rule, backend: str = "auto") -> None:
    """One splitting step, in place, on every weight."""
    batches: dict[tuple[str, torch.dtype, torch.device, bool, bool], list[Weight]] = {}
    fused = backend in ("auto", "native") and rule.mix is not None and native.load() is not None
    for w in weights:
        # Once per parameter and step: a small network spends more time here than in the arithmetic.
        way = "native" if fused and native.usable(w.y, (w.g, w.anchor, w.importance, w.z, w.buffer)) else ""
        way = way or _route(w, rule, backend)
        batches.setdefault((way, w.y.dtype, w.y.device, w.first, w.z is None), []).append(w)
    for (way, *_), batch in batches.items():
        if way == "compile":
            batch = _compile_all(batch, rule)
            way = "foreach"
        if way == "native":
            _native(batch, rule)
        elif way == "foreach" and batch:
            _foreach(batch, rule)
        else:
            for w in batch:
                reference(w, rule)


def _compile_all(weights: list[Weight], rule: Rule) -> list[Weight]:
    """The weights that are left to do: those after a failure to compile, which comes before anything is written."""
    for k, w in enumerate(weights):
        try:
            _compile(w, rule)
        except Exception as reason:  # inductor raises its own kinds where no compiler is found
            _fall_back("compile", " ".join(str(reason).splitlines()[:2]) or type(reason).__name__)
            return weights[k:]
    return []


def _route(w: Weight, rule: Rule, backend: str) -> str:
    y, tensors = w.y, [t for t in (w.y, w.g, w.anchor, w.importance, w.z, w.buffer) if t is not None]
    same = all(t.dtype == y.dtype and t.device == y.device for t in tensors)
    if backend == "reference" or rule.mix is None or not same or y.dtype in (torch.float16, torch.bfloat16):
        return "reference"
    # Sizes 0 and 1 would each be compiled for themselves, and torch gives up after a few.
    if backend == "compile" and y.numel() > 1 and "compile" not in _fallen and all(t.is_contiguous() for t in tensors):
        return "compile"
    return "foreach"


def first_non_finite(gradients: Sequence[Tensor], backend: str = "auto") -> int:
    """Index of the first gradient that holds a NaN or an infinity, or -1."""
    library = native.load() if backend in ("auto", "native") else None
    dtype = gradients[0].dtype
    if library is not None and all(g.dtype is dtype and native.usable(g) for g in gradients):
        return native.first_non_finite(library, gradients)
    flat = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    worst = torch.stack([t.detach().abs().amax().double().cpu() if t.numel() else torch.zeros(()) for t in flat])
    bad = (~torch.isfinite(worst)).nonzero()
    return int(bad[0]) if len(bad) else -1
