"""The end of a task: which parameters an optimizer protects, and how their importance adds up over tasks."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from drcl.anchor import Anchor, AnchorError, own_names, provenance
from drcl.directions.basis import Eigenbasis, bias_of
from drcl.directions.kronecker import History, Kronecker
from drcl.importance import Importance
from drcl.options import task_sum
from drcl.prox import check_on_directions, check_on_weights
from drcl.splitting import plasticity
from drcl.splitting.directions import Layer
from drcl.state import all_or_nothing, importance_dtype, laid_out_like

if TYPE_CHECKING:
    from drcl.optimizer import DRCL


def matching(optimizer: DRCL, model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters to protect, by name; refuses a model and an optimizer that do not belong together."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}: consolidate(model, batches)")
    own = {p for g in optimizer.param_groups for p in g["params"]}
    names = {p: n for n, p in own_names(model).items()}
    missing = [n for p, n in names.items() if p.requires_grad and p not in own]
    if missing:
        raise ValueError(
            f"parameter {missing[0]!r} of the model is not in this optimizer (and {len(missing) - 1} more); add it "
            "with opt.add_param_group({'params': [...]}), or set requires_grad=False if it is not trained"
        )
    candidates = [p for g in optimizer.param_groups if not g["free"] for p in g["params"]]
    strangers = [p for p in candidates if p not in names]
    if strangers:
        raise ValueError(
            f"parameter {optimizer.name_of(strangers[0])!r} of this optimizer is not in the model given to it here; "
            "pass the model that is being trained, or put the parameter in a group with free=True"
        )
    # A weight that is frozen for now still mattered to this task: once protected it stays in the account.
    held = {p for p, _ in optimizer.protected()}
    chosen = {names[p]: p for p in candidates if p.is_floating_point() and (p.requires_grad or p in held)}
    if not chosen:
        raise ValueError("there is nothing to protect: every parameter is frozen or in a group with free=True")
    return chosen


def kept(optimizer: DRCL) -> float:
    """How much of the earlier tasks' importance stays when a new one's is added."""
    keep = {"sum": 1.0, "latest": 0.0}.get(str(optimizer.solver.memory))
    return float(optimizer.solver.memory) if keep is None else keep


def mean_of(importance: Mapping[str, Tensor]) -> float:
    """The mean over all weights together."""
    return sum(float(t.double().sum()) for t in importance.values()) / sum(t.numel() for t in importance.values())


def scaled(new: Mapping[str, Tensor], wanted: float) -> dict[str, Tensor]:
    """A task's importance with that mean; left as it is where it has no unit, for `combined` to look at."""
    unit = mean_of(new) / wanted
    return {name: t / unit for name, t in new.items()} if 0 < unit < float("inf") else dict(new)


def tensor_means_one(new: Mapping[str, Tensor], added: Collection[str]) -> dict[str, Tensor]:
    """Each task's importance in units of its mean within the tensor; tensors of no importance stay at zero."""
    means = {name: 1.0 if name in added else float(t.double().mean()) for name, t in new.items()}
    # A mean that is not above 0 is no unit: `combined` sees these as they came.
    return {name: t / means[name] if means[name] > 0 else t for name, t in new.items()}


def combined(
    optimizer: DRCL, named: dict[str, nn.Parameter], new: dict[str, Tensor], added: Collection[str] = ()
) -> tuple[dict[str, Tensor], float]:
    """Earlier importance and the new one in the optimizer's unit, and what that is in the estimator's.

    The unit is their mean over all protected weights; with ``normalise="task"`` or "share" each task came in its own.
    What earlier tasks left is already in the importance of the parameters in `added`.
    """
    scale = kept(optimizer) * optimizer.importance_mean
    total: dict[str, Tensor] = {}
    for name, p in named.items():
        if name not in new or new[name].shape != p.shape:
            found = f"of shape {tuple(new[name].shape)}" if name in new else "missing"
            raise ValueError(f"the importance of {name!r} is {found}; the estimator has to give shape {tuple(p.shape)}")
        fresh = laid_out_like(p, new[name].detach(), importance_dtype(p))
        if not bool(torch.isfinite(fresh).all()) or bool((fresh < 0).any()):
            raise ValueError(f"the importance of {name!r} must be finite and >= 0; look at the estimator and the data")
        old = optimizer.state.get(p, {}).get("importance")
        total[name] = fresh if old is None or not scale or name in added else fresh + old * scale
    mean, own_units = mean_of(total), task_sum(optimizer.solver.normalise, 1) is not None
    if mean <= 0:
        warnings.warn(
            "drcl: the importance is zero for every weight, so nothing will be protected; use "
            "drcl.Fisher(labels='exact') or labels='empirical', more samples, or DRCL(damping=...)",
            stacklevel=3,
        )
        return total, 1.0 if own_units else mean
    if own_units:
        return total, 1.0
    return {name: t / mean for name, t in total.items()}, mean


def history(optimizer: DRCL, named: dict[str, nn.Parameter]) -> History:
    """What the earlier tasks left, for an estimator that has to know."""
    where = {p: i for i, g in enumerate(optimizer.param_groups) for p in g["params"]}
    state = {name: optimizer.state.get(p, {}) for name, p in named.items()}
    return History(
        bases={name: optimizer.progress.layers[p].basis for name, p in named.items() if p in optimizer.progress.layers},
        importance={name: s["importance"] for name, s in state.items() if "importance" in s},
        mean=optimizer.importance_mean,
        keep=kept(optimizer),
        normalise=optimizer.solver.normalise,
        groups={name: where[p] for name, p in named.items()},
    )


def layers(named: Mapping[str, Tensor], bases: Mapping[str, Eigenbasis]) -> dict[Tensor, Layer]:
    """By weight, with the bias that each basis includes."""
    found = {}
    for name, basis in bases.items():
        p = named[name]
        bias = named[bias_of(name)] if basis.bias else None
        found[p] = Layer(basis.cast(p, importance_dtype(p)), bias)
    return found


def start_task(optimizer: DRCL, named: dict[str, nn.Parameter]) -> None:
    """Begin a task at the weights the model holds: anchor, z and y agree, no motion of the last task is left."""
    for p in named.values():
        state = optimizer.state[p]
        state["anchor"] = p.detach().clone()
        if optimizer.solver.splitting != "forward-backward":
            state["z"] = p.detach().clone()
    for state in optimizer.state.values():
        for key in ("momentum_buffer", "start"):
            state.pop(key, None)
    if optimizer.inner is not None:
        optimizer.inner.state.clear()
    optimizer.progress.names |= {p: n for n, p in named.items()}
    optimizer.progress.mode, optimizer.progress.steps_in_proposal, optimizer.progress.gammas = "train", 0, []


def consolidate(
    optimizer: DRCL,
    model: nn.Module,
    batches: Iterable[Any] | None,
    estimator: Importance,
    forward: Callable[[nn.Module, Any], tuple[Any, Any]] | None,
) -> None:
    """The body of DRCL.consolidate: everything that can fail comes before anything that changes for good."""
    if not hasattr(estimator, "estimate"):
        raise TypeError(f"importance={estimator!r} must be an estimator such as drcl.Fisher() or drcl.MAS()")
    named = matching(optimizer, model)
    if batches is None and getattr(estimator, "needs_data", True):
        raise ValueError(f"{type(estimator).__name__} needs data: pass consolidate(model, batches)")
    if isinstance(estimator, Kronecker):
        check_on_directions(optimizer.solver.prox)
    unfinished = any("start" in state for _, state in optimizer.protected())
    with all_or_nothing(optimizer) if unfinished else contextlib.nullcontext():
        if unfinished:
            optimizer.train()
            plasticity.finish(optimizer)
        measure(optimizer, model, batches, estimator, forward, named)


def measure(
    optimizer: DRCL,
    model: nn.Module,
    batches: Iterable[Any] | None,
    estimator: Importance,
    forward: Callable[[nn.Module, Any], tuple[Any, Any]] | None,
    named: dict[str, nn.Parameter],
) -> None:
    """The importance at z, and with it the start of the next task."""
    bases: dict[str, Eigenbasis] = {}
    made = estimator.describe()  # before it measures: one that watches training starts afresh after that
    with optimizer.deployed():
        with torch.enable_grad():
            if isinstance(estimator, Kronecker):
                new, bases = estimator.measure(model, batches, named, forward, history(optimizer, named))
            else:
                new = estimator.estimate(model, batches, named, forward)
        added = {*bases, *(bias_of(n) for n, b in bases.items() if b.bias)}
        weights = sum(t.numel() for t in new.values())
        wanted = task_sum(optimizer.solver.normalise, weights)
        if optimizer.solver.normalise == "tensor":
            new = tensor_means_one(new, added)
        elif wanted is not None and not isinstance(estimator, Kronecker):
            new = scaled(new, wanted / weights)
        total, mean = combined(optimizer, named, new, added)
    check_on_weights(optimizer.solver.prox, {n: (p.detach(), total[n]) for n, p in named.items()})
    optimizer.eval()
    for name, p in named.items():
        optimizer.state[p]["importance"] = total[name]
    if mean > 0:
        bases = {name: b.scaled(1 / mean) for name, b in bases.items()}
    optimizer.progress.layers = layers(named, bases)
    start_task(optimizer, named)
    optimizer.progress.importance_mean = mean
    optimizer.progress.tasks += 1
    optimizer.progress.made = [*optimizer.progress.made, made]


def anchor_of(optimizer: DRCL) -> Anchor | None:
    held = list(optimizer.protected())
    if not held:
        return None
    for p, _ in held:
        if not optimizer.is_named(p):
            raise ValueError(
                f"{optimizer.name_of(p)} has no name, and an anchor is keyed by names; make the optimizer over "
                "model.named_parameters()"
            )
    pairs = [(optimizer.name_of(p), state) for p, state in held]
    return Anchor(
        weights={name: state["anchor"].clone() for name, state in pairs},
        importance={name: state["importance"].clone() for name, state in pairs},
        bases={
            optimizer.name_of(p): optimizer.progress.layers[p].basis.cast(p, importance_dtype(p))
            for p, _ in held
            if p in optimizer.progress.layers
        },
        provenance=provenance(
            tasks=optimizer.tasks,
            memory=optimizer.solver.memory,
            normalise=optimizer.solver.normalise,
            importance_mean=optimizer.importance_mean,
            made=optimizer.progress.made,
        ),
    )


def protect(optimizer: DRCL, model: nn.Module, anchor: Anchor) -> None:
    """The body of DRCL.protect."""
    anchor.check(model)
    named = matching(optimizer, model)
    for name in anchor.weights:
        if name not in named:
            raise ValueError(
                f"the anchor protects {name!r}, which is frozen or in a group with free=True here; "
                "make it trainable, or leave it out of the anchor"
            )
    made, ours = anchor.provenance, optimizer.solver.normalise
    if made.get("normalise", ours) != ours:
        raise ValueError(
            f"the anchor was made with normalise={made['normalise']!r}; make this optimizer with the same, not {ours!r}"
        )
    try:
        facts = {"tasks": max(1, int(made.get("tasks", 1))), "made": [dict(m) for m in made.get("made", [])]}
        facts["importance_mean"] = float(made.get("importance_mean", 1.0))
    except (TypeError, ValueError) as reason:
        raise AnchorError(f"the anchor's provenance does not read: {reason}; make the anchor again") from None
    held = {name: named[name] for name in anchor.weights}
    importance = {n: laid_out_like(p, anchor.importance[n], importance_dtype(p)) for n, p in held.items()}
    check_on_weights(optimizer.solver.prox, {n: (p.detach(), importance[n]) for n, p in held.items()})
    if anchor.bases:
        check_on_directions(optimizer.solver.prox)
    where = history(optimizer, named).groups
    for name, basis in anchor.bases.items():
        if basis.bias and where[name] != where[bias_of(name)]:
            raise ValueError(
                f"the anchor holds {name!r} and {bias_of(name)!r} together, but they are in different groups here; "
                "put them in one"
            )
    optimizer.eval()
    optimizer.progress.layers = layers(held, anchor.bases)
    for _, state in optimizer.protected():
        for key in ("anchor", "importance", "z"):
            state.pop(key, None)
    for name, p in held.items():
        optimizer.state[p]["importance"] = importance[name]
    anchor.restore(model)
    start_task(optimizer, held)
    for key, value in facts.items():
        setattr(optimizer.progress, key, value)
