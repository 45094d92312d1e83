"""DRCL, the optimizer: two operators that negotiate about every step.

For a task with loss f, old weights a (the anchor), importance F, strength lam and step size gamma:

    x = y - gamma * grad f(y)                     plasticity: what the new task proposes
    r = 2x - y                                    reflection (forward-backward: r = x)
    z = prox of gamma * lam * F|w - a| at r       stability: what the old tasks let through
    y = y + z - x                                 consensus  (forward-backward: y = z)

The model holds y while it trains and z when it is evaluated, saved or shipped. This is Douglas-Rachford splitting
(Lions and Mercier 1979) with an explicit step on f.

The parts of a step are in `drcl.splitting`, the end of a task in `drcl.consolidation`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from drcl import consolidation, growth, options, rollback, sharding
from drcl import norms as running
from drcl import state as storage
from drcl.anchor import Anchor, plain_name
from drcl.directions.kronecker import Kronecker
from drcl.importance import Fisher, Importance
from drcl.options import Solver
from drcl.prox import Prox, resolve
from drcl.splitting import auto, lowrank, plasticity, stability
from drcl.state import Mode, Progress


class DRCL(torch.optim.Optimizer):
    """SGD that does not forget: after ``consolidate`` every step is negotiated with the weights of earlier tasks.

    Until the first ``consolidate`` a step equals ``torch.optim.SGD``'s bit for bit.

    Examples:
        >>> model = torch.nn.Linear(4, 3)
        >>> task = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(5)]
        >>> opt = DRCL(model.named_parameters(), lr=0.05, momentum=0.9)
        >>> for x, y in task:
        ...     opt.zero_grad()
        ...     torch.nn.functional.cross_entropy(model(x), y).backward()
        ...     opt.step()
        >>> opt.consolidate(model, task)

    Args:
        params: named parameters (messages, anchors and reports then use the names), parameters, or groups. A group may
            set the SGD options, ``strength``, ``stable``, ``damping`` and, for heads, ``free=True`` (not protected).
        lr: as in ``torch.optim.SGD``, and so are momentum, dampening, nesterov, weight_decay and maximize. gamma is
            lr, or lr / (1 - momentum) with momentum: how far a constant gradient of 1 moves a weight per step.
        strength: "auto", the default, chooses it from the length of a task and the room that its first gradients have
            (``drcl.splitting.auto``). A number is the paper's lambda, on importance in the unit of ``normalise``;
            0 protects nothing, inf freezes every protected weight.
        stable: a share in (0, 1) instead of a strength. DRCL then chooses the strength so that this share of the
            protected weights stays exactly in place; read it with ``strengths``.
        prox: "l1", "l2", "elastic", "group", "box", an object of ``drcl.prox``, or any ``f(r, anchor, threshold)``.
        splitting: the iteration to use.

            | splitting | gradients per step | state per weight | stable while | ends at |
            |---|---|---|---|---|
            | "forward-backward" | 1 | a, F | lr * curvature < 2 | the minimiser of loss + penalty |
            | "douglas-rachford" | 1 | a, F, z | lr * curvature < 1 | O(lr) away from it |
            | "implicit" | ``inner_steps`` | a, F, z | lr * curvature < 3 | the minimiser |

            "douglas-rachford" is Algorithm 1 of the paper; with momentum 0.9 it needs a ten times smaller lr.
            "implicit" is true Douglas-Rachford: inner gradient steps, with a closure, solve for the prox of the loss.

        iterations: iterations on each mini-batch from the second task on; more than one needs ``step(closure)``.
        tolerance: stop these early once the residual |y' - y| falls below this fraction of the first residual.
        plasticity_steps: this many optimizer steps form one proposal, and one negotiation follows. In between, ``eval``
            and ``deployed`` show the result of the last negotiation; ``consolidate`` negotiates an unfinished proposal.
        inner_steps: gradient evaluations of the implicit proposal.
        memory: how importance adds up over tasks: "sum", "latest", or a decay in [0, 1].
        normalise: the unit of importance.

            | normalise | importance is divided by | what follows |
            |---|---|---|
            | "task" | each task's mean, then added up | every task is held equally strongly, however many follow |
            | "share" | each task's sum, in millionths | as "task"; a strength also means the same on a wider network |
            | "global" | the mean of the sum over tasks | larger gradients count more; new tasks dilute old ones |
            | "none" | nothing, then added up | the unit that strength="auto" needs |

        damping: added to the importance of every weight.
        backend: the code that computes a step, see ``drcl.splitting.kernels``.
        norms: running statistics of BatchNorm and similar layers: "averaged" over tasks (the default), "frozen" after
            the first task, "per-task" with ``deployed(task=...)``, or "shared", which forgets. See ``drcl.norms``.
        check_finite: refuse NaN and infinite gradients before anything changes (reads the gradients once more).
        horizon: steps per task, for strength="auto"; None: as many as the last task took.
        storage: torch.bfloat16 keeps importance and directions in half the bytes, each number to 0.4 %, and widens them
            layer by layer in a step. The anchor keeps the parameter's own type, so held weights return to it bit for
            bit. Sums over more than about 200 tasks of equal importance stop growing.
        preset: settings under one name. Arguments you give as well win, except with "paper". "auto" protects directions
            (``drcl.Kronecker``, in at most 20 times the memory of the model) by L2 with strength "auto" and ten
            optimizer steps per proposal. "directions" is the same with strength 0.003 on shares. "weights" protects
            single weights (``drcl.Fisher``) by L1 with strength 0.001. "paper" is the paper's method: lr 5e-3 without
            momentum, L1 with strength 10, five Douglas-Rachford iterations per batch (``step(closure)``), importance
            of the latest task only. The default is "auto", or "weights" if you set strength, ``stable``, ``prox``,
            ``splitting`` or another option that decides how weights are held.
    """

    @options.takes_presets
    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        strength: float | str = 0.001,
        stable: float | None = None,
        prox: str | Prox = "l1",
        splitting: str = "forward-backward",
        iterations: int = 1,
        plasticity_steps: int = 1,
        tolerance: float | None = None,
        memory: str | float = "sum",
        backend: str = "auto",
        *,
        normalise: str = "task",
        dampening: float = 0.0,
        maximize: bool = False,
        damping: float = 0.0,
        inner_steps: int = 20,
        check_finite: bool = True,
        norms: str | None = None,
        horizon: int | None = None,
        storage: torch.dtype | None = None,
        preset: str | None = None,
        _inner: torch.optim.Optimizer | None = None,
    ) -> None:
        own: dict[str, Any] = dict(lr=lr, momentum=momentum, strength=strength, stable=stable, damping=damping)
        #: How the two operators negotiate; everything here is the same for all groups.
        self.solver = Solver(
            prox=resolve(prox),
            splitting=splitting,
            iterations=iterations,
            plasticity_steps=plasticity_steps,
            memory=memory,
            normalise=normalise,
            inner_steps=inner_steps,
            tolerance=tolerance,
            backend=backend,
            check_finite=check_finite,
            importance=Kronecker if preset in ("auto", "directions") else Fisher,
            horizon=horizon,
            storage=storage,
            norms=running.DEFAULT if norms is None else norms,
            says_norms=norms is None,
        )
        if splitting == "implicit" and (momentum or _inner is not None):
            raise ValueError(
                "splitting='implicit' solves for the proposal itself: it takes no momentum and no wrapped optimizer; "
                "use splitting='forward-backward' with those"
            )
        self.inner = _inner
        #: Residual of the last ``step`` relative to its first iteration (1.0 with a single iteration).
        self.residual: float = math.nan
        #: How many iterations the last ``step`` took.
        self.iterations_used: int = 0
        #: Everything that is not in the groups or in ``state``: tasks so far, names, layers with directions and so on.
        self.progress = Progress()
        own |= dict(free=False, chosen_strength=None)
        if _inner is None:
            own |= dict(dampening=dampening, nesterov=nesterov, weight_decay=weight_decay, maximize=maximize)
            super().__init__(options.parameters(params), own)
        else:
            del own["lr"], own["momentum"]  # the wrapped optimizer has its own
            super().__init__([{**g} for g in _inner.param_groups], {**_inner.defaults, **own})
            self.share_groups()

    @classmethod
    def around(cls, optimizer: torch.optim.Optimizer, strength: float | None = None, **arguments: Any) -> DRCL:
        """Let any torch optimizer make the proposal: ``DRCL.around(torch.optim.AdamW(...), strength=...)``.

        Options and defaults are those of DRCL, except those that belong to the wrapped optimizer (lr and the like). A
        strength means the same as with SGD: the prox uses the step size that the proposal really took
        (``drcl.splitting.step_size``). Both optimizers share their groups, so a scheduler works with either of them,
        but call ``step`` only on this one.
        """
        options.wrapped(optimizer, DRCL, arguments)
        if strength is not None:
            arguments["strength"] = strength
        return cls([], _inner=optimizer, **arguments)

    @property
    def tasks(self) -> int:
        """How many tasks have been consolidated."""
        return self.progress.tasks

    @property
    def importance_mean(self) -> float:
        """The mean that importance was divided by; multiply by it to get the sum over tasks."""
        return self.progress.importance_mean

    @property
    def strengths(self) -> list[float]:
        """The strength in use in each group; NaN where ``stable`` or "auto" has not chosen one yet."""
        given = (g["stable"] is None and g["strength"] != options.AUTO for g in self.param_groups)
        chosen = [g["strength" if yes else "chosen_strength"] for g, yes in zip(self.param_groups, given)]
        return [math.nan if value is None else float(value) for value in chosen]

    def penalty(self) -> float:
        """The stability term at the model's current weights: strength * penalty, summed over all protected weights.

        NaN for a prox of your own without ``penalty``, or while ``stable`` has not chosen a strength yet.
        """
        return stability.penalty(self) + sum(lowrank.penalties(self))

    def train(self) -> None:
        """Put y into the model: the weights at which gradients are taken."""
        self._hold("train")

    def eval(self) -> None:
        """Put z into the model: the result of the last negotiation, to evaluate, save and ship."""
        self._hold("eval")

    @contextlib.contextmanager
    def deployed(self, task: int | None = None) -> Iterator[None]:
        """Inside ``with opt.deployed():`` the model holds z; afterwards it holds what it held before.

        With norms="per-task" and ``task`` (0 is the first) norm layers hold the running statistics of that task.
        """
        before = self.progress.mode
        with running.of_task(self, task), contextlib.ExitStack() as afterwards:
            self.eval()
            afterwards.callback(self._hold, before)
            yield

    @torch.no_grad()
    def _hold(self, mode: Mode) -> None:
        if mode == self.progress.mode:
            return
        for p, state in self.protected():
            # Without reflection y equals z, except in the middle of a proposal, which started at z.
            other = state.get("z", state.get("start"))
            if other is not None:
                sharding.exchange(p, other)
        self.progress.mode = mode
        sharding.weights_changed()

    def protected(self) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        """Every protected parameter with its state."""
        for group in self.param_groups:
            for p in group["params"]:
                if self.holds(group, p):
                    yield p, self.state[p]

    def holds(self, group: dict[str, Any], p: Tensor) -> bool:
        """Whether this parameter of the group is protected."""
        return not group["free"] and "anchor" in self.state.get(p, {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step: one iteration of the splitting, or with a closure ``iterations`` of them on the same batch."""
        options.closure(closure)
        if self.progress.mode == "eval":
            raise RuntimeError("the model holds the weights for evaluation; call opt.train() before opt.step()")
        running.refuse_lost(self)
        if self.inner is not None:
            self.share_groups()  # someone may have added a group to the wrapped optimizer
        if not self._evaluates_itself():
            return self._iterate(closure)
        if closure is None:
            options.refuse_without_closure(self.solver, self.inner)
        with rollback.all_or_nothing(self):
            return self._iterate(closure)

    def _evaluates_itself(self) -> bool:
        """Whether one step evaluates the loss several times."""
        several = self.solver.iterations > 1 or self.solver.splitting == "implicit"
        return (several and self.tasks > 0) or isinstance(self.inner, torch.optim.LBFGS)

    def _iterate(self, closure: Callable[[], Any] | None) -> Any:
        loss, first = None, math.nan
        rounds = self.solver.iterations if self.tasks else 1  # in the first task there is nothing to negotiate
        for k in range(rounds):
            # Without a tolerance, only the last residual is shown, as a share of the first.
            seen = rounds > 1 and (self.solver.tolerance is not None or k in (0, rounds - 1))
            before = [(p, p.clone()) for p, _ in self.protected()] if seen else []
            if self.solver.splitting == "implicit" and self.tasks:
                assert closure is not None
                loss = plasticity.implicit(self, closure)
            else:
                loss = plasticity.explicit(self, closure)
            auto.count(self)
            self.iterations_used, self.residual = k + 1, 1.0
            if seen:
                moved = math.sqrt(sum(float(sharding.squared(p - y)) for p, y in before))
                first = moved if k == 0 else first
                self.residual = moved / first if first else 0.0
                if self.solver.tolerance is not None and self.residual < self.solver.tolerance:
                    break
        return loss

    @torch.no_grad()
    def consolidate(
        self,
        model: nn.Module,
        batches: Iterable[Any] | None = None,
        importance: Importance | None = None,
        forward: Callable[[nn.Module, Any], tuple[Any, Any]] | None = None,
    ) -> None:
        """End a task: z becomes the model's weights and the new anchor, and its importance is estimated.

        An unfinished proposal of ``plasticity_steps`` is negotiated first, with the learning rates so far.

        Args:
            model: the model whose parameters this optimizer trains.
            batches: the task's data, such as a DataLoader: batches ``(inputs, targets)``, or dicts by argument names.
            importance: how to estimate importance. ``drcl.Kronecker()``, the default of the presets "auto" and
                "directions", protects the directions that mattered and needs prox "l1", "l2" or "elastic".
                ``drcl.Fisher()``, the default of the other presets, protects single weights.
            forward: ``forward(model, batch) -> (outputs, targets)`` for batches in any other form.

        Apart from norm layers (``norms``), the model's train/eval mode, gradients, buffers and the global random state
        stay as they were. If anything is refused, nothing has changed. Momentum starts at zero for the new task.
        """
        estimator = consolidation.usual(self, model) if importance is None else importance
        consolidation.consolidate(self, model, batches, estimator, forward)

    @property
    def anchor(self) -> Anchor | None:
        """A copy of the protected weights, their importance and how it was measured; None before ``consolidate``."""
        return consolidation.anchor_of(self)

    @torch.no_grad()
    def protect(self, model: nn.Module, anchor: Anchor) -> None:
        """Continue from a saved anchor: the model gets its weights, and they are protected from now on."""
        if not isinstance(anchor, Anchor):
            raise TypeError(f"anchor must be a drcl.Anchor, not {type(anchor).__name__}: Anchor.load reads one")
        consolidation.protect(self, model, anchor)

    grow = growth.grow

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        options.param_group(param_group)
        if "strength" in param_group and "stable" not in param_group:
            param_group = {**param_group, "stable": None}  # its own strength replaces the share of the other groups
        options.group({**self.defaults, **param_group}, self.solver, strict=self.inner is None)
        if self.inner is not None and self.param_groups is self.inner.param_groups:
            self.inner.add_param_group(param_group)
            self.share_groups()
        else:
            super().add_param_group(param_group)
        if self.progress.gammas:
            self.progress.gammas = [*self.progress.gammas, 0.0]
        if self.progress.travel:
            self.progress.travel = [*self.progress.travel, 0.0]

    def share_groups(self) -> None:
        """Use the wrapped optimizer's groups, and add DRCL's options to them."""
        assert self.inner is not None
        self.param_groups = self.inner.param_groups
        for group in self.param_groups:
            for key in ("strength", "stable", "free", "damping", "chosen_strength"):
                group.setdefault(key, self.defaults[key])

    def name_of(self, p: Tensor) -> str:
        """The parameter's name in the model if it is known, otherwise its place in the groups."""
        if p in self.progress.names:
            return self.progress.names[p]
        for g, group in enumerate(self.param_groups):
            for i, q in enumerate(group["params"]):
                if q is p:
                    named = "param_names" in group
                    return plain_name(group["param_names"][i]) if named else f"group {g}, parameter {i}"
        return "?"

    def is_named(self, p: Tensor) -> bool:
        """Whether the parameter's name is known."""
        return p in self.progress.names or any(
            "param_names" in g and any(p is q for q in g["params"]) for g in self.param_groups
        )

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values only, so it can be saved without pickle, even in the middle of a task."""
        return storage.pack(self, super().state_dict())

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from ``state_dict``; the model must hold the weights it held when the state was saved.

        The whole state is checked first: if anything in it is missing or impossible, nothing changes.
        """
        state_dict = storage.checked(self, state_dict)
        with rollback.loading(self):
            super().load_state_dict({k: state_dict[k] for k in ("state", "param_groups")})
            storage.unpack(self, state_dict)

    def __getstate__(self) -> dict[str, Any]:
        own = ("solver", "inner", "residual", "iterations_used", "progress")
        return {**super().__getstate__(), **{k: self.__dict__[k] for k in own}}
