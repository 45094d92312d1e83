"""The options of DRCL, their presets, and the errors for values it does not accept."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from drcl.importance.base import Importance
from drcl.norms import DEFAULT, POLICIES
from drcl.prox import L1, L2, NAMED, ElasticNet, Prox
from drcl.splitting.kernels import BACKENDS

AUTO = "auto"  # in place of a strength
SPLITTINGS = ("douglas-rachford", "forward-backward", "implicit")
LARGEST = 1e30  # larger numbers overflow 32-bit weights
NORMALISATIONS = ("task", "share", "global", "none")
MEMORIES = ("sum", "latest")
# Written out in full, so that a change of a default does not change a preset.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": dict(
        lr=5e-3,
        momentum=0.0,
        strength=10.0,
        stable=None,
        prox="l1",
        splitting="douglas-rachford",
        iterations=5,
        plasticity_steps=1,
        memory="latest",
        normalise="global",
        damping=0.0,
        norms="shared",
    ),
    "weights": dict(
        strength=0.001,
        stable=None,
        prox="l1",
        splitting="forward-backward",
        iterations=1,
        plasticity_steps=1,
        memory="sum",
        normalise="task",
        damping=0.0,
    ),
    # With this preset and "auto", ``consolidate`` measures directions (drcl.Kronecker) unless told otherwise.
    "directions": dict(
        strength=0.003,
        stable=None,
        prox="l2",
        splitting="forward-backward",
        iterations=1,
        plasticity_steps=10,
        memory="sum",
        normalise="share",
        damping=0.0,
    ),
    "auto": dict(
        strength=AUTO,
        stable=None,
        prox="l2",
        splitting="forward-backward",
        iterations=1,
        plasticity_steps=10,
        memory="sum",
        normalise="none",
        damping=0.0,
    ),
}


# These options decide how weights are held: with any of them, and no preset, the preset is "weights" instead of "auto".
FORM = {"strength", "stable", "prox", "splitting", "iterations", "tolerance", "inner_steps", "normalise"}


def _choice(names: Iterable[str]) -> Any:
    """The type of an option that takes one of these names."""
    literal: Any = Literal
    return literal[tuple(names)]


# The type of each option of DRCL, for command lines and forms. Defaults are only in DRCL's signature.
KINDS: dict[str, Any] = {
    "preset": _choice(PRESETS) | None,
    "strength": float | Literal["auto"],
    "stable": float | None,
    "prox": _choice(NAMED),
    "splitting": _choice(SPLITTINGS),
    "iterations": int,
    "tolerance": float | None,
    "plasticity_steps": int,
    "inner_steps": int,
    "memory": _choice(MEMORIES) | float,
    "normalise": _choice(NORMALISATIONS),
    "damping": float,
    "horizon": int | None,
    "norms": _choice(POLICIES) | None,
    "backend": _choice(BACKENDS),
}
# One line for each option of DRCL, Fisher and Kronecker; their docstrings have the details.
HELP = {
    "preset": "settings under one name",
    "strength": "lambda, where importance has mean one per task; 0 protects nothing, inf freezes",
    "stable": "share of weights to hold still, in place of a strength",
    "prox": "the penalty whose proximal map is taken",
    "splitting": "how the two operators negotiate",
    "iterations": "iterations on one mini-batch",
    "tolerance": "stop these early at this fraction of the first residual",
    "plasticity_steps": "optimizer steps that form one proposal",
    "inner_steps": "gradient evaluations of the implicit proposal",
    "memory": "importance over tasks: sum, latest, or a decay",
    "normalise": "unit of importance: each task's mean, its sum in millionths, or the mean over all tasks",
    "damping": "added to the importance of every weight",
    "horizon": "steps per task, for strength=auto; none: as many as the last task took",
    "norms": "running statistics of norm layers from task to task",
    "backend": "the code that computes a step",
    "labels": (
        "labels in the Fisher: drawn, the mean over classes (exact), its cheap form (signs), the data's (empirical)"
    ),
    "eigenvalues": "kronecker: how the importance of directions is measured",
    "convolutions": "kronecker: channels and kernel positions together, or channels only",
    "rank": "kronecker: at most this many directions of a long side kept separately; none: all",
}
GROUP_OPTIONS = {
    *("params", "param_names", "lr", "momentum", "dampening", "nesterov", "weight_decay", "maximize"),
    *("strength", "stable", "free", "damping", "chosen_strength"),
    # written into groups by torch's schedulers and averaging tools
    *("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr"),
}


def one_of(name: str, value: Any, allowed: Iterable[str]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}={value!r} is unknown; use one of {', '.join(map(repr, allowed))}")


def count(name: str, value: Any, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")


def number(name: str, value: Any, *, infinite: bool = False) -> None:
    """A float >= 0; NaN never, infinity where it has a meaning."""
    try:
        x = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, RuntimeError):
        x = math.nan
    if math.isnan(x) and not isinstance(value, (float, Tensor)):
        raise TypeError(f"{name}={value!r} must be a number")
    if math.isnan(x) or x < 0 or (x > LARGEST and not (infinite and math.isinf(x))):
        raise ValueError(
            f"{name}={value!r} must be a number >= 0 and at most {LARGEST:g}" + (" (or inf)" if infinite else "")
        )


def parameters(params: Any) -> Any:
    """The parameters unchanged; an error if they are not something an optimizer takes."""
    if not isinstance(params, Iterable) or isinstance(params, str | bytes | Mapping):
        raise TypeError(f"params={params!r} must be model.named_parameters(), parameters or a list of groups")
    if isinstance(params, Sized) and not len(params):
        raise ValueError("params is empty: give the optimizer the model's parameters, model.named_parameters()")
    return params


def wrapped(optimizer: Any, own: type, arguments: Mapping[str, Any]) -> None:
    """Check what ``around`` was given: an optimizer that is not `own`, and no argument that belongs to it."""
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, own):
        raise TypeError(f"around() takes a torch optimizer, not {type(optimizer).__name__}")
    taken = {"lr", "momentum", "nesterov", "weight_decay", "dampening", "maximize"} & set(arguments)
    if taken:
        raise TypeError(f"{', '.join(sorted(taken))}: set these on the wrapped {type(optimizer).__name__}")
    if arguments.get("preset") == "paper":
        raise TypeError("preset='paper' works only with plain SGD: give it to DRCL(params), not to around()")


def param_group(given: Any) -> None:
    if not isinstance(given, dict) or given.get("params") is None:
        raise TypeError(f"param_group must be a dict with 'params', such as {{'params': [...]}}, not {given!r}")


def closure(given: Any) -> None:
    if given is not None and not callable(given):
        raise TypeError(f"closure={given!r} must be a function that runs backward() and returns the loss, or None")


def memory(value: Any) -> None:
    if value in MEMORIES:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"memory={value!r} must be 'sum', 'latest' or a decay between 0 and 1")


def settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the preset adds to the given arguments.

    Given arguments win. Only "paper" refuses values that differ from the paper's, except for lr.
    """
    one_of("preset", name, PRESETS)
    chosen = dict(PRESETS[name])
    for key, fixed in chosen.items() if name == "paper" else ():
        if key != "lr" and key in given and given[key] != fixed:
            raise ValueError(
                f"{key}={given[key]!r} contradicts preset={name!r}, which sets {key}={fixed!r}: leave out one of the "
                "two"
            )
    if given.get("stable") is not None:
        chosen["prox"] = "l1"  # L2 leaves nothing exactly in place
        if chosen["strength"] == AUTO:
            chosen |= {"strength": 0.0, "normalise": "share"}
    return {key: value for key, value in chosen.items() if key not in given}


def _usual(given: Mapping[str, Any]) -> str:
    """The preset if none is named: "weights" if the caller sets an option in FORM, "auto" otherwise."""
    groups = given.get("params")
    own = (g for g in groups if isinstance(g, Mapping)) if isinstance(groups, list | tuple) else ()
    chosen = FORM & given.keys() or any(FORM & g.keys() for g in own)
    return "weights" if chosen else "auto"


Init = TypeVar("Init", bound=Callable[..., None])


def takes_presets(init: Init) -> Init:
    """For a constructor with `preset=`: the preset fills in the arguments that the caller left out.

    It wraps the call because the constructor cannot know whether an argument was left out or given at its default.
    """
    signature = inspect.signature(init)

    @functools.wraps(init)
    def filled(self: Any, *args: Any, preset: str | None = None, **kwargs: Any) -> None:
        given = signature.bind_partial(self, *args, **kwargs).arguments
        preset = _usual(given) if preset is None else preset
        init(self, *args, preset=preset, **kwargs, **settings(preset, given))

    return cast(Init, filled)


@dataclass(frozen=True)
class Solver:
    """The options of DRCL that hold for all groups; DRCL's docstring explains them."""

    prox: Prox
    splitting: str
    iterations: int
    plasticity_steps: int
    inner_steps: int
    tolerance: float | None
    memory: str | float
    normalise: str
    backend: str
    check_finite: bool
    importance: Callable[[], Importance]  # the default of ``consolidate``
    norms: str = DEFAULT
    horizon: int | None = None
    storage: torch.dtype | None = None
    says_norms: bool = True  # warn about the policy, because the caller did not choose it

    def __post_init__(self) -> None:
        one_of("splitting", self.splitting, SPLITTINGS)
        one_of("normalise", self.normalise, NORMALISATIONS)
        one_of("backend", self.backend, BACKENDS)
        one_of("norms", self.norms, POLICIES)
        memory(self.memory)
        for name in ("iterations", "plasticity_steps", "inner_steps"):
            count(name, getattr(self, name))
        if self.tolerance is not None:
            number("tolerance", self.tolerance)
        if self.horizon is not None:
            count("horizon", self.horizon)
        if self.storage not in (None, torch.bfloat16):
            raise ValueError(
                f"storage={self.storage!r} must be torch.bfloat16, or None to keep every digit; no other 16-bit type "
                "covers the range of importance"
            )
        if self.plasticity_steps > 1 and (self.iterations > 1 or self.splitting == "implicit"):
            raise ValueError(
                "plasticity_steps above 1 cannot be combined with iterations above 1 or splitting='implicit'; leave "
                "iterations at 1 and choose another splitting, or leave plasticity_steps at 1"
            )


def refuse_without_closure(solver: Solver, inner: Optimizer | None) -> None:
    wrapped = "" if inner is None else f" around {type(inner).__name__}"
    raise ValueError(
        f"splitting={solver.splitting!r} with iterations={solver.iterations}{wrapped} evaluates the loss several "
        "times: call opt.step(closure), where closure() clears the gradients, runs backward() and returns the loss"
    )


def _strength(options: dict[str, Any], solver: Solver) -> None:
    if not isinstance(options["strength"], str):
        return number("strength", options["strength"], infinite=True)
    if options["strength"] != AUTO:
        raise TypeError(f"strength={options['strength']!r} must be a number, or 'auto'")
    if solver.normalise != "none" or not isinstance(solver.prox, L2):
        raise ValueError(
            "strength='auto' needs prox='l2' and unscaled importance, normalise='none'; preset='auto' sets both"
        )


def group(options: dict[str, Any], solver: Solver, strict: bool = True) -> None:
    """Check one parameter group. `strict` refuses unknown keys; a wrapped optimizer's groups have keys of their own."""
    if strict:
        for key in options:
            if key not in GROUP_OPTIONS:
                near = difflib.get_close_matches(key, GROUP_OPTIONS, 1)
                raise ValueError(
                    f"parameter group option {key!r} is unknown" + (f"; did you mean {near[0]!r}?" if near else "")
                )
        for key in ("momentum", "weight_decay"):
            number(key, options[key])
        dampening = options["dampening"]
        if not isinstance(dampening, int | float) or not math.isfinite(dampening):
            raise ValueError(f"dampening={options['dampening']!r} must be a finite number")
        if options["nesterov"] and (options["momentum"] <= 0 or options["dampening"] != 0):
            raise ValueError("nesterov=True needs momentum > 0 and dampening = 0")
    else:
        for key, value in options.items():  # the wrapped optimizer checks everything else itself
            if any(isinstance(v, float) and math.isnan(v) for v in (value if isinstance(value, tuple) else (value,))):
                raise ValueError(f"{key}={value!r} must not be NaN")
        if "momentum" in options:
            number("momentum", options["momentum"])
    number("lr", options["lr"])
    _strength(options, solver)
    number("damping", options["damping"])
    stable = options["stable"]
    if stable is not None and not (isinstance(stable, (int, float)) and 0 < stable < 1):
        raise ValueError(f"stable={stable!r} must lie strictly between 0 and 1 (a share of weights), or be None")
    selects = isinstance(solver.prox, L1) or (isinstance(solver.prox, ElasticNet) and solver.prox.mix > 0)
    if stable is not None and not selects:
        raise ValueError(
            f"stable= needs a prox that leaves weights exactly in place (l1, elastic), not {solver.prox!r}"
        )
