"""The end of a task: which parameters an optimizer protects, and what it holds from then on.

Estimators (`drcl.importance`, `drcl.directions`) measure and `drcl.importance.accumulation` adds tasks up; here the
outcome is checked, becomes the optimizer's state and, as an anchor, leaves or enters it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from drcl.anchor import Anchor, AnchorError, own_buffers, own_names, provenance
from drcl.directions.basis import Eigenbasis, bias_of
from drcl.importance.accumulation import accumulated, in_unit, keep_of
from drcl.importance.base import History, Importance, measure_of
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


def checked(named: Mapping[str, nn.Parameter], new: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """An estimator's importance laid out as the weights are; refused where it does not fit or makes no sense."""
    found: dict[str, Tensor] = {}
    for name, p in named.items():
        if name not in new or new[name].shape != p.shape:
            what = f"of shape {tuple(new[name].shape)}" if name in new else "missing"
            raise ValueError(f"the importance of {name!r} is {what}; the estimator has to give shape {tuple(p.shape)}")
        fresh = laid_out_like(p, new[name].detach(), importance_dtype(p))
        if not bool(torch.isfinite(fresh).all()) or bool((fresh < 0).any()):
            raise ValueError(f"the importance of {name!r} must be finite and >= 0; look at the estimator and the data")
        found[name] = fresh
    return found


def history(optimizer: DRCL, named: dict[str, nn.Parameter]) -> History:
    """What the earlier tasks left, for an estimator that has to know."""
    where = {p: i for i, g in enumerate(optimizer.param_groups) for p in g["params"]}
    state = {name: optimizer.state.get(p, {}) for name, p in named.items()}
    return History(
        bases={name: optimizer.progress.layers[p].basis for name, p in named.items() if p in optimizer.progress.layers},
        importance={name: s["importance"] for name, s in state.items() if "importance" in s},
        mean=optimizer.importance_mean,
        keep=keep_of(optimizer.solver.memory),
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


def start_task(optimizer: DRCL, model: nn.Module, named: dict[str, nn.Parameter]) -> None:
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
    unprotected = {p for g in optimizer.param_groups for p in g["params"]} - set(named.values())
    # What the next task may change without being asked, as it is now: an anchor of this task has to have it.
    optimizer.progress.free = {n: p.detach().clone() for n, p in own_names(model).items() if p in unprotected}
    optimizer.progress.buffers = {n: b.detach().clone() for n, b in own_buffers(model).items()}
    optimizer.progress.mode, optimizer.progress.steps_in_proposal, optimizer.progress.gammas = "train", 0, []


def consolidate(
    optimizer: DRCL,
    model: nn.Module,
    batches: Iterable[Any] | None,
    estimator: Importance,
    forward: Callable[[nn.Module, Any], tuple[Any, Any]] | None,
) -> None:
    """The body of DRCL.consolidate: everything that can fail comes before anything that changes for good."""
    if not hasattr(estimator, "estimate") and not hasattr(estimator, "measure"):
        raise TypeError(f"importance={estimator!r} must be an estimator such as drcl.Fisher() or drcl.MAS()")
    named = matching(optimizer, model)
    if batches is None and getattr(estimator, "needs_data", True):
        raise ValueError(f"{type(estimator).__name__} needs data: pass consolidate(model, batches)")
    if getattr(estimator, "finds_directions", False):
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
    earlier = history(optimizer, named)
    made = estimator.describe()  # before it measures: one that watches training starts afresh after that
    with optimizer.deployed():
        with torch.enable_grad():
            measured = in_unit(earlier, measure_of(estimator)(model, batches, named, forward, earlier))
        measured = replace(measured, importance=checked(named, measured.importance))
        total, bases, mean = accumulated(earlier, measured)
    check_on_weights(optimizer.solver.prox, {n: (p.detach(), total[n]) for n, p in named.items()})
    if bases:
        check_on_directions(optimizer.solver.prox)
    optimizer.eval()
    for name, p in named.items():
        optimizer.state[p]["importance"] = total[name]
    optimizer.progress.layers = layers(named, bases)
    start_task(optimizer, model, named)
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
        free={name: t.clone() for name, t in optimizer.progress.free.items()},
        buffers={name: t.clone() for name, t in optimizer.progress.buffers.items()},
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
        facts["importance_mean"] = mean = float(made.get("importance_mean", 1.0))
        if not 0 <= mean < float("inf"):
            raise ValueError(f"importance_mean={mean}")
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
    start_task(optimizer, model, held)
    for key, value in facts.items():
        setattr(optimizer.progress, key, value)
