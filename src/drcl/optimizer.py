"""DRCL, the optimizer: a plasticity step on the task's loss and a stability step about the anchor that negotiate.

This is the heart of the package. The letters are the paper's: the model holds y while it trains and z when it is
evaluated, saved or shipped; x is the proposal, gamma the step size, a the anchor, F the importance.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from drcl import consolidation, kernels, options, stable
from drcl.anchor import Anchor, plain_name
from drcl.importance import Fisher, Importance
from drcl.kernels import Rule, Weight
from drcl.options import Solver
from drcl.prox import Prox, resolve


class DRCL(torch.optim.Optimizer):
    """SGD that does not forget: after ``consolidate`` every step is negotiated with the weights of earlier tasks.

    Until the first ``consolidate`` there is nothing to protect and a step equals ``torch.optim.SGD``'s bit for bit.

    >>> model = torch.nn.Linear(4, 3)
    >>> task = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(5)]
    >>> opt = DRCL(model.named_parameters(), lr=0.05, momentum=0.9, strength=10.0)
    >>> for x, y in task:
    ...     opt.zero_grad()
    ...     torch.nn.functional.cross_entropy(model(x), y).backward()
    ...     opt.step()
    >>> opt.consolidate(model, task)

    Args:
        params: parameters, named parameters (better: names appear in messages, anchors and reports) or groups. A
            group may set any of the SGD options and ``strength``, ``stable``, ``damping``, ``free=True`` (never
            protected: heads).
        lr, momentum, dampening, nesterov, weight_decay, maximize: as in ``torch.optim.SGD``; lr is also gamma.
        strength: the paper's lambda on mean-one importance; 0 protects nothing, inf freezes every protected weight.
        stable: a share in (0, 1) instead of a strength; the strength is then chosen per task so that this share of the
            protected weights stays exactly where it was. Read it back with ``strengths``.
        prox: "l1", "l2", "elastic", "group", "box", an object of ``drcl.prox``, or any ``f(r, anchor, threshold)``.
        splitting: which iteration negotiates.

            ==================== ===================== ================ ============================================
            splitting            gradients per step    state per weight what holds
            ==================== ===================== ================ ============================================
            "douglas-rachford"   1                     a, F, z          Algorithm 1 of the paper. The fixed point is
                                                                        biased by O(lr); stable only while
                                                                        lr * curvature < 1, ten times less with
                                                                        momentum 0.9.
            "forward-backward"   1                     a, F             No reflection. Converges to the minimiser of
                                                                        loss + penalty for lr * curvature < 2.
            "implicit"           ``inner_steps``       a, F, z          The prox of the loss is solved by inner
                                                                        gradient steps: true Douglas-Rachford, no
                                                                        bias, any lr the inner steps can follow
                                                                        (lr * curvature < 3). Needs a closure.
            ==================== ===================== ================ ============================================

        iterations: iterations on one mini-batch; more than one needs ``step(closure)``.
        tolerance: stop these early once the residual |y' - y| falls below this fraction of the first one.
        plasticity_steps: this many optimizer steps form one proposal, then one negotiation.
        inner_steps: gradient evaluations of the implicit proposal.
        memory: importance over tasks: "sum", "latest", or a decay in [0, 1].
        damping: added to the mean-one importance, so that weights of no importance are held a little too.
        backend: "auto", "native", "foreach", "compile" or "reference" (see ``drcl.kernels``).
        check_finite: refuse NaN and infinite gradients before anything changes (one more read of the gradients).
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        strength: float = 10.0,
        stable: float | None = None,
        prox: str | Prox = "l1",
        splitting: str = "douglas-rachford",
        iterations: int = 1,
        plasticity_steps: int = 1,
        tolerance: float | None = None,
        memory: str | float = "sum",
        backend: str = "auto",
        *,
        dampening: float = 0.0,
        maximize: bool = False,
        damping: float = 0.0,
        inner_steps: int = 20,
        check_finite: bool = True,
        _inner: torch.optim.Optimizer | None = None,
    ) -> None:
        #: How the two operators negotiate; everything here is the same for all groups.
        self.solver = Solver(
            prox=resolve(prox),
            splitting=splitting,
            iterations=iterations,
            plasticity_steps=plasticity_steps,
            inner_steps=inner_steps,
            tolerance=tolerance,
            memory=memory,
            backend=backend,
            check_finite=check_finite,
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
        self._names: dict[Tensor, str] = {}
        # Everything beside tensors that a resumed task needs; plain values only.
        self._progress: dict[str, Any] = {"mode": "train", "tasks": 0, "importance_mean": 0.0, "made": []}
        self._progress |= {"steps_in_proposal": 0, "gammas": []}
        own = dict(strength=strength, stable=stable, free=False, damping=damping, chosen_strength=None)
        if _inner is None:
            own |= dict(momentum=momentum, dampening=dampening, nesterov=nesterov)
            own |= dict(weight_decay=weight_decay, maximize=maximize)
            super().__init__(params, {"lr": lr, **own})
        else:
            super().__init__([{**g} for g in _inner.param_groups], {**_inner.defaults, **own})
            self._link()

    @classmethod
    def around(cls, optimizer: torch.optim.Optimizer, strength: float = 10.0, **arguments: Any) -> DRCL:
        """Let any torch optimizer make the proposal: ``DRCL.around(torch.optim.AdamW(...), strength=...)``.

        The groups are shared, so a scheduler may be given either of the two; only call ``step`` on this one.
        """
        if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, DRCL):
            raise TypeError(f"around() takes a torch optimizer, not {type(optimizer).__name__}")
        taken = {"lr", "momentum", "nesterov", "weight_decay", "dampening", "maximize"} & set(arguments)
        if taken:
            raise TypeError(f"{', '.join(sorted(taken))}: set these on the wrapped {type(optimizer).__name__}")
        return cls([], strength=strength, _inner=optimizer, **arguments)

    # -- what the model holds ------------------------------------------------------------------------------------

    @property
    def tasks(self) -> int:
        """How many tasks have been consolidated."""
        return int(self._progress["tasks"])

    @property
    def importance_mean(self) -> float:
        """The mean the importance was divided by: multiply it back to compare with an estimator's own numbers."""
        return float(self._progress["importance_mean"])

    @property
    def strengths(self) -> list[float]:
        """The strength in force in each group, chosen by ``stable`` where that is set (NaN before its first step)."""
        chosen = [g["strength"] if g["stable"] is None else g["chosen_strength"] for g in self.param_groups]
        return [math.nan if value is None else float(value) for value in chosen]

    def train(self) -> None:
        """Put y into the model: the weights gradients are taken at."""
        self._hold("train")

    def eval(self) -> None:
        """Put z into the model: the weights to evaluate, save and ship."""
        self._hold("eval")

    @contextlib.contextmanager
    def deployed(self) -> Iterator[None]:
        """``with opt.deployed():`` the model holds z; afterwards it holds what it held before."""
        before = self._progress["mode"]
        self.eval()
        try:
            yield
        finally:
            self._hold(before)

    @torch.no_grad()
    def _hold(self, mode: str) -> None:
        if mode == self._progress["mode"]:
            return
        for p, state in self.protected():
            if "z" in state:
                kept = p.clone()
                p.copy_(state["z"])
                state["z"].copy_(kept)
        self._progress["mode"] = mode

    def protected(self) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        """Every protected parameter with its state."""
        for group in self.param_groups:
            for p in group["params"]:
                if "anchor" in self.state.get(p, {}):
                    yield p, self.state[p]

    # -- the step ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step: an iteration of the splitting, or ``iterations`` of them on one batch with a closure."""
        if self._progress["mode"] == "eval":
            raise RuntimeError("the model holds the weights for evaluation; call opt.train() before opt.step()")
        many = self.solver.iterations > 1 or (self.solver.splitting == "implicit" and self.tasks > 0)
        if many and closure is None:
            raise ValueError(
                f"splitting={self.solver.splitting!r} with iterations={self.solver.iterations} evaluates the loss "
                "several times: call opt.step(closure), where closure() clears the gradients, runs backward() and returns the loss"
            )
        loss, first = None, math.nan
        for k in range(self.solver.iterations):
            before = [(p, p.clone()) for p, _ in self.protected()] if self.solver.iterations > 1 else []
            if self.solver.splitting == "implicit" and self.tasks > 0:
                assert closure is not None
                loss = self._implicit(closure)
            else:
                loss = self._explicit(closure)
            self.iterations_used = k + 1
            moved = math.sqrt(sum(float((p - y).double().square().sum()) for p, y in before))
            first = moved if k == 0 else first
            self.residual = moved / first if first else 1.0
            if self.solver.tolerance is not None and k > 0 and self.residual < self.solver.tolerance:
                break
        return loss

    def _explicit(self, closure: Callable[[], Any] | None) -> Any:
        """x = y - gamma * grad f(y), by SGD or by the wrapped optimizer."""
        loss = None
        lbfgs = isinstance(self.inner, torch.optim.LBFGS)
        if closure is not None and not lbfgs:
            with torch.enable_grad():
                loss = closure()
        self._check_gradients()
        if self.inner is None and self.solver.plasticity_steps == 1:
            for group in self.param_groups:
                self._sgd(group, protected=False)
                self._negotiate(group, self._fused_weights(group), self._rule(group, group["lr"]))
            return loss
        starts = self._begin()
        try:
            if lbfgs and self.inner is not None:
                loss = self.inner.step(closure)
            elif self.inner is not None:
                self.inner.step()
            else:
                for group in self.param_groups:
                    self._sgd(group, protected=False)
                    self._sgd(group, protected=True)
        except BaseException:
            for p, start in starts:
                p.copy_(start)
            raise
        self._progress["steps_in_proposal"] += 1
        self._progress["gammas"] = [
            gamma + float(g["lr"]) for gamma, g in zip(self._progress["gammas"], self.param_groups)
        ]
        if self._progress["steps_in_proposal"] >= self.solver.plasticity_steps:
            self._end()
        return loss

    def _implicit(self, closure: Callable[[], Any]) -> Any:
        """x = argmin f(x) + |x - y|^2 / (2 gamma), by gradient steps from y; the first one is the explicit proposal."""
        starts: dict[Tensor, Tensor] = {}
        loss = None
        everyone = [(g, p) for g in self.param_groups for p in g["params"] if p.requires_grad]
        for _, p in everyone:
            starts[p] = self.state[p]["start"] = p.clone()
        try:
            for k in range(self.solver.inner_steps):
                with torch.enable_grad():
                    loss = closure()
                self._check_gradients()
                for group, p in everyone:
                    if p.grad is not None:
                        gamma, sign = float(group["lr"]), -1 if group["maximize"] else 1
                        pull = sign * p.grad + group["weight_decay"] * p
                        if k == 0:
                            p.sub_(pull, alpha=gamma)
                        else:
                            p.sub_(pull + (p - starts[p]) / gamma, alpha=gamma / 2)
        except BaseException:
            for p, start in starts.items():
                p.copy_(start)
                del self.state[p]["start"]
            raise
        self._progress["gammas"] = [float(g["lr"]) for g in self.param_groups]
        self._end()
        return loss

    def _begin(self) -> list[tuple[Tensor, Tensor]]:
        """Remember y where a new proposal starts."""
        if self._progress["steps_in_proposal"] == 0:
            for p, state in self.protected():
                state["start"] = p.clone()
            self._progress["gammas"] = [0.0] * len(self.param_groups)
        return [(p, p.clone()) for p, _ in self.protected()] if self.inner is not None else []

    def _end(self) -> None:
        """Negotiate the finished proposal: the model goes back to y, and y - x takes the place of gamma * gradient."""
        for group, gamma in zip(self.param_groups, self._progress["gammas"]):
            weights = []
            for p in group["params"]:
                start = self.state.get(p, {}).pop("start", None)
                if start is not None and "anchor" in self.state[p]:
                    s = start - p
                    p.copy_(start)
                    weights.append(self._weight(p, s))
            plain = {
                "momentum": 0.0,
                "dampening": 0.0,
                "nesterov": False,
                "weight_decay": 0.0,
                "maximize": False,
            }
            self._negotiate(group, weights, self._rule({**group, **plain, "lr": 1.0}, gamma))
        self._progress["steps_in_proposal"] = 0

    def _sgd(self, group: dict[str, Any], protected: bool) -> None:
        """Torch's own SGD on the unprotected (or the protected) parameters of a group."""
        chosen = [p for p in group["params"] if p.grad is not None and ("anchor" in self.state.get(p, {})) == protected]
        if not chosen:
            return
        momentum = group["momentum"]
        buffers = [self.state[p].get("momentum_buffer") if momentum else None for p in chosen]
        sgd(
            chosen,
            [p.grad for p in chosen],
            buffers,
            has_sparse_grad=any(p.grad.is_sparse for p in chosen),
            foreach=None,
            fused=None,
            **{k: group[k] for k in ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")},
        )
        if momentum:
            for p, buffer in zip(chosen, buffers):
                self.state[p]["momentum_buffer"] = buffer

    def _weight(self, p: Tensor, g: Tensor) -> Weight:
        state = self.state[p]
        return Weight(p, g, state["anchor"], state["importance"], state.get("z"))

    def _fused_weights(self, group: dict[str, Any]) -> list[Weight]:
        weights = []
        for p in group["params"]:
            if p.grad is None or "anchor" not in self.state.get(p, {}):
                continue
            if p.grad.is_sparse:
                raise ValueError(
                    f"parameter {self.name_of(p)!r} is protected but has a sparse gradient; use sparse=False in its "
                    "module, or put it in a group with free=True"
                )
            weight = self._weight(p, p.grad)
            if group["momentum"]:
                state = self.state[p]
                weight.first = "momentum_buffer" not in state
                if weight.first:
                    state["momentum_buffer"] = torch.zeros_like(p)
                weight.buffer = state["momentum_buffer"]
            weights.append(weight)
        return weights

    def _rule(self, group: dict[str, Any], gamma: float) -> Rule:
        return Rule(
            lr=float(group["lr"]),
            gamma=float(gamma),
            strength=float(group["strength"]),
            prox=self.solver.prox,
            momentum=float(group["momentum"]),
            dampening=float(group["dampening"]),
            weight_decay=float(group["weight_decay"]),
            nesterov=bool(group["nesterov"]),
            maximize=bool(group["maximize"]),
            reflect=self.solver.splitting != "forward-backward",
            damping=float(group["damping"]),
        )

    def _negotiate(self, group: dict[str, Any], weights: list[Weight], rule: Rule) -> None:
        if not weights:
            return
        if group["stable"] is not None:
            rule = Rule(**{**rule.__dict__, "damping": max(rule.damping, stable.FLOOR)})
            protected = sum(p.numel() for p in group["params"] if "anchor" in self.state.get(p, {}))
            rule = Rule(**{**rule.__dict__, "strength": stable.choose(group, weights, rule, protected)})
        kernels.negotiate(weights, rule, self.solver.backend)

    def _check_gradients(self) -> None:
        if not self.solver.check_finite:
            return
        owners = [p for g in self.param_groups for p in g["params"] if p.grad is not None and p.grad.numel()]
        if not owners:
            return
        bad = kernels.first_non_finite([p.grad for p in owners])
        if bad >= 0:
            half = owners[bad].dtype == torch.float16
            remedy = (
                "scale the loss with torch.amp.GradScaler" if half else "lower lr, clip gradients or skip this batch"
            )
            raise FloatingPointError(
                f"the gradient of {self.name_of(owners[bad])!r} holds NaN or infinite values; no weight was changed. "
                f"To go on, {remedy}."
            )

    # -- between tasks -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def consolidate(
        self,
        model: nn.Module,
        batches: Iterable[Any] | None = None,
        importance: Importance | None = None,
        forward: Callable[[nn.Module, Any], tuple[Any, Any]] | None = None,
    ) -> None:
        """End a task: z becomes the model's weights and the new anchor, and its importance is estimated.

        Args:
            model: the model whose parameters this optimizer trains.
            batches: the task's data, an iterable of ``(inputs, targets)`` batches such as a DataLoader.
            importance: how to estimate; ``drcl.Fisher(samples=1000)`` by default.
            forward: ``forward(model, batch) -> (outputs, targets)`` for dict batches and models with several heads.

        The model's train/eval mode, gradients, buffers and the global random state are left as they were. If anything
        is refused, nothing has changed. Momentum starts afresh, as the new task should.
        """
        consolidation.consolidate(self, model, batches, Fisher() if importance is None else importance, forward)

    @property
    def anchor(self) -> Anchor | None:
        """A copy of the protected weights, their importance and how they came about; None before ``consolidate``."""
        return consolidation.anchor_of(self)

    @torch.no_grad()
    def protect(self, model: nn.Module, anchor: Anchor) -> None:
        """Take up where a saved anchor left off: the model gets its weights and they are protected from now on."""
        consolidation.protect(self, model, anchor)

    # -- groups, names, state --------------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if isinstance(param_group, dict):
            options.group({**self.defaults, **param_group}, self.solver, strict=self.inner is None)
        linked = self.inner is not None and self.param_groups is self.inner.param_groups
        if linked and self.inner is not None:
            self.inner.add_param_group(param_group)
            self._link()
        else:
            super().add_param_group(param_group)
        if self._progress["steps_in_proposal"]:
            self._progress["gammas"] = [*self._progress["gammas"], 0.0]

    def _link(self) -> None:
        """Share the wrapped optimizer's groups, filled up with the options that are ours."""
        assert self.inner is not None
        self.param_groups = self.inner.param_groups
        for group in self.param_groups:
            for key in ("strength", "stable", "free", "damping", "chosen_strength"):
                group.setdefault(key, self.defaults[key])

    def name_of(self, p: Tensor) -> str:
        if p in self._names:
            return self._names[p]
        for g, group in enumerate(self.param_groups):
            for i, (q, name) in enumerate(
                zip(group["params"], group.get("param_names", [None] * len(group["params"])))
            ):
                if q is p:
                    return plain_name(name) if name is not None else f"group {g}, parameter {i}"
        return "?"

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values only: it can be saved without pickle, also in the middle of a task."""
        out = super().state_dict()
        out["drcl"] = {k: list(v) if isinstance(v, list) else v for k, v in self._progress.items()}
        if self.inner is not None:
            out["inner"] = self.inner.state_dict()
        return out

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from ``state_dict``; the model must hold the weights it held when that was taken."""
        if "drcl" not in state_dict:
            raise ValueError("this state dict was not made by DRCL: it has no 'drcl' entry")
        if (self.inner is None) != ("inner" not in state_dict):
            raise ValueError("one of the two optimizers wraps another (DRCL.around) and the other does not")
        super().load_state_dict({k: state_dict[k] for k in ("state", "param_groups")})
        # torch casts state to the parameter's type; importance of 16-bit weights is kept in 32 bits.
        order = [p for g in self.param_groups for p in g["params"]]
        saved = [i for g in state_dict["param_groups"] for i in g["params"]]
        for index, p in zip(saved, order):
            entry = state_dict["state"].get(index, {})
            if "importance" in entry:
                self.state[p]["importance"] = entry["importance"].to(
                    p.device, consolidation.importance_dtype(p), copy=True
                )
        if self.inner is not None:
            self.inner.load_state_dict(state_dict["inner"])
            self._link()
        self._progress = {k: list(v) if isinstance(v, list) else v for k, v in state_dict["drcl"].items()}

    def __getstate__(self) -> dict[str, Any]:
        own = ("solver", "inner", "residual", "iterations_used", "_names", "_progress")
        return {**super().__getstate__(), **{k: self.__dict__[k] for k in own}}
