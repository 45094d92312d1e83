"""The end of a task: decides which parameters to protect, and stores their anchor and importance in the optimizer.

Estimators (`drcl.importance`, `drcl.directions`) measure importance and `drcl.importance.accumulation` adds up tasks.
This module checks the result, puts it into the optimizer's state, and converts that state to and from an `Anchor`.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from drcl import norms, ranks, sharding
from drcl.anchor import Anchor, AnchorError, own_buffers, own_names, provenance
from drcl.directions.adapters import refuse_quantised, weight_importance
from drcl.directions.basis import TENSORS, Eigenbasis, bias_of
from drcl.directions.kronecker import Kronecker
from drcl.importance.accumulation import accumulated, in_unit, keep_of
from drcl.importance.base import History, Importance, Measured, importance_dtype, measure_of
from drcl.importance.fisher import Fisher
from drcl.preserve import check_model
from drcl.prox import check_on_directions, check_on_weights
from drcl.rollback import all_or_nothing
from drcl.splitting import auto, plasticity
from drcl.splitting import lowrank as products
from drcl.splitting.checks import check_parameters, check_plain
from drcl.splitting.directions import Layer
from drcl.state import laid_out_like, placed, stored_dtype

if TYPE_CHECKING:
    from drcl.optimizer import DRCL


MULTIPLE = 20  # default limit on the memory of directions, in multiples of the model's bytes


def matching(optimizer: DRCL, model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters to protect, by name; refuses a model and an optimizer that do not belong together."""
    check_model(model, "consolidate(model, batches)")
    refuse_quantised(model)
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
            f"parameter {optimizer.name_of(strangers[0])!r} of this optimizer is not in the given model; "
            "pass the model that is being trained, or put the parameter in a group with free=True"
        )
    # A weight that is frozen for now may still matter to this task, so a protected weight is always measured again.
    held = {p for p, _ in optimizer.protected()}
    chosen = {names[p]: p for p in candidates if p.is_floating_point() and (p.requires_grad or p in held)}
    if not chosen:
        raise ValueError("there is nothing to protect: every parameter is frozen or in a group with free=True")
    return chosen


def checked(named: Mapping[str, nn.Parameter], new: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """An estimator's importance in the memory layout of the weights; an error if it does not fit or makes no sense."""
    if not isinstance(new, Mapping) or not all(isinstance(t, Tensor) for t in new.values()):
        raise TypeError(f"the estimator must return importance as tensors by name, not {type(new).__name__}")
    found: dict[str, Tensor] = {}
    for name, p in named.items():
        if name not in new or new[name].shape != p.shape:
            what = f"of shape {tuple(new[name].shape)}" if name in new else "missing"
            raise ValueError(f"the importance of {name!r} is {what}; the estimator must return shape {tuple(p.shape)}")
        fresh = laid_out_like(p, new[name].detach(), importance_dtype(p))
        if not bool(torch.isfinite(fresh).all()) or bool((fresh < 0).any()):
            raise ValueError(f"the importance of {name!r} must be finite and >= 0; check the estimator and the data")
        found[name] = fresh
    return found


def history(optimizer: DRCL, named: dict[str, nn.Parameter], pairs: Collection[str] = ()) -> History:
    """The importance of earlier tasks, for estimators that build on it. `pairs` names weights that adapters add to."""
    where = {p: i for i, g in enumerate(optimizer.param_groups) for p in g["params"]}
    state = {name: optimizer.state.get(p, {}) for name, p in named.items()}
    wide = {name: importance_dtype(p) for name, p in named.items()}
    along = {name: optimizer.progress.layers[p].basis for name, p in named.items() if p in optimizer.progress.layers}
    along |= {name: adapter.basis for name, adapter in optimizer.progress.adapters.items() if name in pairs}
    bases = {name: basis.at_work(wide[name], TENSORS) for name, basis in along.items()}
    importance = {n: sharding.full(s["importance"]).to(wide[n]) for n, s in state.items() if "importance" in s}
    for name in optimizer.progress.adapters.keys() & pairs:
        importance[name] = weight_importance(bases[name], named[name])
    return History(
        bases=bases,
        importance=importance,
        mean=optimizer.importance_mean,
        keep=keep_of(optimizer.solver.memory),
        normalise=optimizer.solver.normalise,
        # The adapter's weight gets a group of its own (-1), so that a trained bias is never joined to it.
        groups={name: -1 if name in pairs else where[p] for name, p in named.items()},
    )


def layers(optimizer: DRCL, named: Mapping[str, Tensor], bases: Mapping[str, Eigenbasis]) -> dict[Tensor, Layer]:
    """By weight, with the bias that each basis includes."""
    found = {}
    for name, basis in bases.items():
        p = named[name]
        bias = named[bias_of(name)] if basis.bias else None
        found[p] = Layer(basis.cast(p, stored_dtype(optimizer, p)), bias)
    return found


def start_task(optimizer: DRCL, model: nn.Module, named: dict[str, nn.Parameter]) -> None:
    """Begin a task at the model's weights: anchor, z and y are equal, and momentum and proposal start from nothing."""
    for p in named.values():
        state = optimizer.state[p]
        state["anchor"] = p.detach().clone()
        if optimizer.solver.splitting != "forward-backward":
            state["z"] = p.detach().clone()
    for state in optimizer.state.values():
        for key in ("momentum_buffer", "start", "gradients"):
            state.pop(key, None)
    if optimizer.inner is not None:
        optimizer.inner.state.clear()
    optimizer.progress.names |= {p: n for n, p in named.items()}
    unprotected = {p for g in optimizer.param_groups for p in g["params"]} - set(named.values())
    if optimizer.progress.adapters:  # copying the large frozen model would only waste memory
        unprotected = {p for p in unprotected if p.requires_grad}
    # An anchor of this task also stores what the next task may change freely, so copy it now.
    optimizer.progress.free = {n: p.detach().clone() for n, p in own_names(model).items() if p in unprotected}
    optimizer.progress.buffers = {n: b.detach().clone() for n, b in own_buffers(model).items()}
    optimizer.progress.mode, optimizer.progress.steps_in_proposal, optimizer.progress.gammas = "train", 0, []
    norms.start_task(optimizer, model)


def consolidate(
    optimizer: DRCL,
    model: nn.Module,
    batches: Iterable[Any] | None,
    estimator: Importance,
    forward: Callable[[nn.Module, Any], tuple[Any, Any]] | None,
) -> None:
    """The body of DRCL.consolidate: everything that can fail runs before anything changes for good."""
    measures = hasattr(estimator, "estimate") or hasattr(estimator, "measure")
    if isinstance(estimator, type) or not measures or not hasattr(estimator, "describe"):
        raise TypeError(f"importance={estimator!r} must be an estimator such as drcl.Fisher() or drcl.Kronecker()")
    if forward is not None and not callable(forward):
        raise TypeError(f"forward={forward!r} must be a function: forward(model, batch) returns (output, target)")
    estimator = _in_unit_of(optimizer, estimator)
    named = matching(optimizer, model)
    check_parameters(optimizer)
    if batches is None and getattr(estimator, "needs_data", True):
        raise ValueError(f"{type(estimator).__name__} needs data: pass consolidate(model, batches)")
    if getattr(estimator, "finds_directions", False):
        check_on_directions(optimizer.solver.prox)
    if products.found(optimizer, model, own_names(model), named) and not getattr(estimator, "needs_data", True):
        raise ValueError(
            f"{type(estimator).__name__} would measure the factors of adapters one by one, but only their product "
            "matters; use importance=drcl.Kronecker() or drcl.Fisher()"
        )
    unfinished = any("start" in state for _, state in optimizer.protected())
    with all_or_nothing(optimizer) if unfinished else contextlib.nullcontext():
        if unfinished:
            optimizer.train()
            plasticity.finish(optimizer)
        norms.tell(optimizer, model)
        measure(optimizer, model, batches, estimator, forward, named)


def usual(optimizer: DRCL, model: nn.Module) -> Importance:
    """The default estimator; with strength="auto" it gets a memory limit, because the user cannot have set one."""
    estimator = optimizer.solver.importance()
    if auto.used(optimizer) and isinstance(estimator, Kronecker) and isinstance(model, nn.Module):
        own = sum(p.numel() * max(p.element_size(), 4) for p in model.parameters())
        estimator = replace(estimator, memory=max(1, MULTIPLE * own))
    return estimator


def _tell_coarse(optimizer: DRCL, estimator: Importance, notes: Mapping[str, Any]) -> None:
    """Warn once about layers whose directions would not have fitted into memory."""
    single = [name for name, what in notes.get("layers", {}).items() if what == "diagonal"]
    if single and optimizer.tasks == 0 and auto.used(optimizer) and isinstance(estimator, Kronecker):
        warnings.warn(
            f"drcl: {len(single)} layers ({single[0]!r}, ...) are protected weight by weight, because all directions "
            f"together would take more than {estimator.memory:,} bytes; to allow more, call "
            "consolidate(importance=drcl.Kronecker(memory=...))",
            stacklevel=5,
        )


def _in_unit_of(optimizer: DRCL, estimator: Importance) -> Importance:
    """The estimator with the labels that strength="auto" needs, unless it names its own."""
    if not auto.used(optimizer) or not isinstance(estimator, Fisher) or estimator.labels == "outputs":
        return estimator
    if estimator.labels is None:
        return replace(estimator, labels="outputs")
    raise ValueError(
        f"{type(estimator).__name__}(labels={estimator.labels!r}): strength='auto' needs labels='outputs'; leave "
        "labels out, or give DRCL a strength of your own (preset='directions' or 'weights')"
    )


def measure(
    optimizer: DRCL,
    model: nn.Module,
    batches: Iterable[Any] | None,
    estimator: Importance,
    forward: Callable[[nn.Module, Any], tuple[Any, Any]] | None,
    named: dict[str, nn.Parameter],
) -> None:
    """Measure the importance at z, store it, and start the next task."""
    pairs = products.found(optimizer, model, own_names(model), named)
    asked = products.measured_on(named, pairs)
    earlier = history(optimizer, asked, pairs)
    made = estimator.describe()  # before measuring, because that resets estimators that watch training
    with optimizer.deployed(), sharding.whole(model, asked) as inside:
        watched = asked if not getattr(estimator, "needs_data", True) else inside  # `asked`: what the optimizer moves
        with torch.enable_grad():
            found = measure_of(estimator)(model, batches, watched, forward, earlier)
        measured = in_unit(earlier, _of_all_ranks(estimator, found))
        measured = replace(measured, importance=checked(inside, measured.importance))
        total, bases, mean = accumulated(earlier, measured)
        check_on_weights(optimizer.solver.prox, {n: (p.detach(), total[n]) for n, p in inside.items()})
        held = {name: pair.held(total.pop(name), bases.pop(name, None)) for name, pair in pairs.items()}
        total |= products.of_factors(held, named)
    _tell_coarse(optimizer, estimator, measured.notes)
    if bases:
        check_on_directions(optimizer.solver.prox)
    optimizer.eval()
    for name, p in named.items():
        optimizer.state[p]["importance"] = placed(optimizer, p, total[name])
    optimizer.progress.layers = layers(optimizer, named, bases)
    optimizer.progress.adapters = {n: pairs[n].like(h, stored_dtype(optimizer, pairs[n].a)) for n, h in held.items()}
    start_task(optimizer, model, named)
    auto.start_task(optimizer, optimizer.progress.steps)
    norms.keep_task(optimizer)
    optimizer.progress.importance_mean = mean
    optimizer.progress.tasks += 1
    optimizer.progress.made = [*optimizer.progress.made, {**made, **measured.notes}]
    norms.begin(optimizer)


def _of_all_ranks(estimator: Importance, measured: Any) -> Any:
    """The same importance for all processes of a sharded model: their mean, unless the estimator adds it up itself."""
    if not isinstance(measured, Measured) or not isinstance(measured.importance, Mapping):
        return measured
    importance = {n: sharding.full(t) if isinstance(t, Tensor) else t for n, t in measured.importance.items()}
    if not getattr(estimator, "adds_over_ranks", False):
        ranks.mean_(importance.values())
    return replace(measured, importance=importance)


def anchor_of(optimizer: DRCL) -> Anchor | None:
    held, factors = list(optimizer.protected()), products.factors(optimizer)
    if not held:
        return None
    adapters = {name: products.anchored(optimizer, a) for name, a in optimizer.progress.adapters.items()}
    held = [(p, state) for p, state in held if p not in factors]
    for p, _ in held:
        if not optimizer.is_named(p):
            raise ValueError(
                f"{optimizer.name_of(p)} has no name, and an anchor needs names; make the optimizer over "
                "model.named_parameters()"
            )
    pairs = [(optimizer.name_of(p), state) for p, state in held]
    return Anchor(
        weights={name: _whole_copy(state["anchor"]) for name, state in pairs},
        importance={n: _whole_copy(s["importance"].to(importance_dtype(s["anchor"]))) for n, s in pairs},
        bases={
            optimizer.name_of(p): optimizer.progress.layers[p].basis.cast(p, importance_dtype(p))
            for p, _ in held
            if p in optimizer.progress.layers
        },
        adapters=adapters,
        free={name: _whole_copy(t) for name, t in optimizer.progress.free.items()},
        buffers={name: t.clone() for name, t in optimizer.progress.buffers.items()},
        statistics={name: t.clone() for name, t in optimizer.progress.statistics.items()},
        provenance=provenance(
            tasks=optimizer.tasks,
            memory=optimizer.solver.memory,
            normalise=optimizer.solver.normalise,
            importance_mean=optimizer.importance_mean,
            made=optimizer.progress.made,
            horizon=optimizer.progress.horizon,
            **_report(optimizer),
        ),
    )


def _whole_copy(t: Tensor) -> Tensor:
    """A copy; a sharded tensor is gathered on the CPU, which has room for the whole model."""
    return sharding.full(t).cpu() if sharding.is_sharded(t) else t.clone()


def _report(optimizer: DRCL) -> dict[str, list[str]]:
    """Which protected parameters are held along directions of their layer, and which weight by weight."""
    layers = optimizer.progress.layers
    along = {q for p, layer in layers.items() for q in (p, layer.bias) if q is not None}
    factors, adapters = products.factors(optimizer), optimizer.progress.adapters
    names = [(optimizer.name_of(p), p in along) for p, _ in optimizer.protected() if p not in factors]
    told = {"directions": [n for n, yes in names if yes], "diagonal": [n for n, yes in names if not yes]}
    return {**told, "adapters": list(adapters)} if adapters else told


def protect(optimizer: DRCL, model: nn.Module, anchor: Anchor) -> None:
    """The body of DRCL.protect."""
    anchor.check(model)
    named = matching(optimizer, model)
    check_plain(optimizer)
    for name in anchor.weights:
        if name not in named:
            raise ValueError(
                f"the anchor protects {name!r}, which is frozen or in a group with free=True here; "
                "make it trainable, or leave it out of the anchor"
            )
    pairs = products.found(optimizer, model, own_names(model), named, anchor.adapters)
    made, ours = anchor.provenance, optimizer.solver.normalise
    if made.get("normalise", ours) != ours:
        raise ValueError(
            f"the anchor was made with normalise={made['normalise']!r}; make this optimizer with the same, not {ours!r}"
        )
    try:
        facts = {"tasks": max(1, int(made.get("tasks", 1))), "made": [dict(m) for m in made.get("made", [])]}
        steps = max(0, int(made.get("horizon", 0)))
        facts["importance_mean"] = mean = float(made.get("importance_mean", 1.0))
        if not 0 <= mean < float("inf"):
            raise ValueError(f"importance_mean={mean}")
    except (TypeError, ValueError) as reason:
        raise AnchorError(f"the anchor's provenance cannot be read: {reason}; make the anchor again") from None
    held = {name: named[name] for name in anchor.weights}
    importance = {n: laid_out_like(p, anchor.importance[n], importance_dtype(p)) for n, p in held.items()}
    if any(sharding.is_sharded(p) for p in held.values()):
        check_on_weights(optimizer.solver.prox, {n: (anchor.weights[n], anchor.importance[n]) for n in held})
    else:
        check_on_weights(optimizer.solver.prox, {n: (p.detach(), importance[n]) for n, p in held.items()})
    if anchor.bases:
        check_on_directions(optimizer.solver.prox)
    where = history(optimizer, named).groups
    for name, basis in anchor.bases.items():
        if basis.bias and where[name] != where[bias_of(name)]:
            raise ValueError(
                f"the anchor holds {name!r} and {bias_of(name)!r} together, but here they are in different groups; "
                "put them in one group"
            )
    rows = norms.of_anchor(optimizer, anchor)
    norms.check(model, rows)
    norms.tell(optimizer, model)
    optimizer.eval()
    optimizer.progress.layers = layers(optimizer, held, anchor.bases)
    optimizer.progress.adapters = {}
    for _, state in optimizer.protected():
        for key in ("anchor", "importance", "z"):
            state.pop(key, None)
    for name, p in held.items():
        optimizer.state[p]["importance"] = placed(optimizer, p, importance[name])
    anchor.restore(model)
    optimizer.progress.adapters = {
        name: pair.like(anchor.adapters[name], stored_dtype(optimizer, pair.a)) for name, pair in pairs.items()
    }
    held |= {n: p for n, p in named.items() if p in products.factors(optimizer)}
    for name, values in products.of_factors(optimizer.progress.adapters, named).items():
        optimizer.state[named[name]]["importance"] = placed(optimizer, named[name], values)
    start_task(optimizer, model, held)
    auto.start_task(optimizer, steps)
    optimizer.progress.statistics = rows
    for key, value in facts.items():
        setattr(optimizer.progress, key, value)
    norms.begin(optimizer)
