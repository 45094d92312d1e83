"""What DRCL accepts, and the sentences it answers with when it is given something else."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from torch import Tensor

from drcl.importance.base import Importance
from drcl.prox import L1, NAMED, ElasticNet, Prox
from drcl.splitting.kernels import BACKENDS

SPLITTINGS = ("douglas-rachford", "forward-backward", "implicit")
LARGEST = 1e30  # a number that 32-bit weights survive
NORMALISATIONS = ("task", "share", "global")
MEMORIES = ("sum", "latest")
# Settings under one name, written out in full: later defaults do not change what a name stands for.
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
    ),
    # With these ``consolidate`` measures directions (drcl.Kronecker) where no importance is given.
    "directions": dict(
        strength=0.03,
        stable=None,
        prox="l2",
        splitting="forward-backward",
        iterations=1,
        plasticity_steps=10,
        memory="sum",
        normalise="share",
        damping=0.0,
    ),
}


def _choice(names: Iterable[str]) -> Any:
    """The type of an option that is one of these names."""
    literal: Any = Literal
    return literal[tuple(names)]


# What each option of DRCL takes, for command lines and forms. Its default is in the signature, and nowhere else.
KINDS: dict[str, Any] = {
    "preset": _choice(PRESETS) | None,
    "strength": float,
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
    "backend": _choice(BACKENDS),
}
# A line for each option of DRCL, and of Fisher and Kronecker below; their docstrings say it in full.
HELP = {
    "preset": "settings under one name",
    "strength": "lambda, on importance of mean one a task; 0 protects nothing, inf freezes",
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
    "backend": "who computes the step",
    "labels": (
        "labels in the Fisher: drawn, the mean over classes (exact), its cheap form (signs), the data's (empirical)"
    ),
    "eigenvalues": "kronecker: how the importance of directions is measured",
    "convolutions": "kronecker: channels and kernel positions together, or channels only",
    "rank": "kronecker: at most this many directions of a long side told apart; none: all",
}
# Of "directions" around optimizers that divide by the size of the gradient.
STRENGTH_AROUND_ADAM = 3.0
GROUP_OPTIONS = {
    *("params", "param_names", "lr", "momentum", "dampening", "nesterov", "weight_decay", "maximize"),
    *("strength", "stable", "free", "damping", "chosen_strength"),
    # written into groups by torch's schedulers and averaging tools
    *("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr"),
}


def one_of(name: str, value: Any, allowed: Iterable[str]) -> None:
    if value not in allowed:
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


def memory(value: Any) -> None:
    if value in MEMORIES:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"memory={value!r} must be 'sum', 'latest' or a decay between 0 and 1")


def settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the preset adds to the arguments that were given.

    These win, except beside "paper": there any other value than the paper's is refused, but for lr.
    """
    one_of("preset", name, PRESETS)
    chosen = dict(PRESETS[name])
    for key, fixed in chosen.items() if name == "paper" else ():
        if key != "lr" and key in given and given[key] != fixed:
            raise ValueError(
                f"{key}={given[key]!r} beside preset={name!r}, which stands for {key}={fixed!r}: leave one of the two "
                "out"
            )
    if given.get("stable") is not None:
        chosen["prox"] = "l1"  # L2 leaves nothing exactly in place
    return {key: value for key, value in chosen.items() if key not in given}


Init = TypeVar("Init", bound=Callable[..., None])


def takes_presets(init: Init) -> Init:
    """For a constructor with `preset=`: its settings take the place of arguments that were left out.

    Only the call itself tells these from arguments given at their default.
    """
    signature = inspect.signature(init)

    @functools.wraps(init)
    def filled(self: Any, *args: Any, preset: str | None = None, **kwargs: Any) -> None:
        if preset is not None:
            kwargs |= settings(preset, signature.bind_partial(self, *args, **kwargs).arguments)
        init(self, *args, preset=preset, **kwargs)

    return cast(Init, filled)


@dataclass(frozen=True)
class Solver:
    """The options of DRCL that hold for all groups; their meaning is in its docstring."""

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
    importance: Callable[[], Importance]  # what ``consolidate`` takes where none is given

    def __post_init__(self) -> None:
        one_of("splitting", self.splitting, SPLITTINGS)
        one_of("normalise", self.normalise, NORMALISATIONS)
        one_of("backend", self.backend, BACKENDS)
        memory(self.memory)
        for name in ("iterations", "plasticity_steps", "inner_steps"):
            count(name, getattr(self, name))
        if self.tolerance is not None:
            number("tolerance", self.tolerance)
        if self.plasticity_steps > 1 and (self.iterations > 1 or self.splitting == "implicit"):
            raise ValueError(
                "plasticity_steps, iterations and splitting='implicit' are different readings of one loop; with "
                "plasticity_steps above 1 leave iterations at 1 and choose another splitting"
            )


def group(options: dict[str, Any], solver: Solver, strict: bool = True) -> None:
    """One parameter group. `strict` refuses keys nobody reads; groups of a wrapped optimizer bring their own."""
    if strict:
        for key in options:
            if key not in GROUP_OPTIONS:
                near = difflib.get_close_matches(key, GROUP_OPTIONS, 1)
                raise ValueError(
                    f"parameter group option {key!r} is unknown" + (f"; did you mean {near[0]!r}?" if near else "")
                )
        for key in ("momentum", "weight_decay"):
            number(key, options[key])
        if not math.isfinite(options["dampening"]):
            raise ValueError(f"dampening={options['dampening']!r} must be a finite number")
        if options["nesterov"] and (options["momentum"] <= 0 or options["dampening"] != 0):
            raise ValueError("nesterov=True needs momentum > 0 and dampening = 0")
    else:
        for key, value in options.items():  # of the wrapped optimizer: what no arithmetic survives
            if any(isinstance(v, float) and math.isnan(v) for v in (value if isinstance(value, tuple) else (value,))):
                raise ValueError(f"{key}={value!r} must not be NaN")
    number("lr", options["lr"])
    number("strength", options["strength"], infinite=True)
    number("damping", options["damping"])
    stable = options["stable"]
    if stable is not None and not (isinstance(stable, (int, float)) and 0 < stable < 1):
        raise ValueError(f"stable={stable!r} must lie strictly between 0 and 1 (a share of weights), or be None")
    selects = isinstance(solver.prox, L1) or (isinstance(solver.prox, ElasticNet) and solver.prox.mix > 0)
    if stable is not None and not selects:
        raise ValueError(
            f"stable= needs a prox that leaves weights exactly in place (l1, elastic), not {solver.prox!r}"
        )
