"""DRCL, the optimizer: a plasticity step on the task's loss and a stability step about the anchor that negotiate.

This is the heart of the package. The letters are the paper's: the model holds y while it trains and z when it is
evaluated, saved or shipped; x is the proposal, gamma the step size, a the anchor, F the importance.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from drcl import kernels, options, stable
from drcl.anchor import Anchor, plain_name, provenance
from drcl.importance import Fisher, Importance
from drcl.kernels import Rule, Weight
from drcl.prox import L1, ElasticNet, Prox, resolve

_OWN = (
    "inner",
    "prox",
    "splitting",
    "iterations",
    "plasticity_steps",
    "inner_steps",
    "tolerance",
    "memory",
    "backend",
    "check_finite",
    "residual",
    "iterations_used",
    "_names",
    "_progress",
)


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
        options.one_of("splitting", splitting, options.SPLITTINGS)
        options.one_of("backend", backend, kernels.BACKENDS)
        options.memory(memory)
        for name, value in (
            ("iterations", iterations),
            ("plasticity_steps", plasticity_steps),
            ("inner_steps", inner_steps),
        ):
            options.count(name, value)
        if tolerance is not None:
            options.number("tolerance", tolerance)
        if splitting == "implicit" and (momentum or plasticity_steps > 1 or _inner is not None):
            raise ValueError(
                "splitting='implicit' solves for the proposal itself: it takes no momentum, no plasticity_steps and no "
                "wrapped optimizer; use 'forward-backward' with those"
            )
        if plasticity_steps > 1 and iterations > 1:
            raise ValueError("plasticity_steps and iterations are two readings of the paper's k; set only one above 1")
        self.inner = _inner
        self.prox, self.splitting = resolve(prox), splitting
        self.iterations, self.plasticity_steps, self.inner_steps = iterations, plasticity_steps, inner_steps
        self.tolerance, self.memory, self.backend, self.check_finite = tolerance, memory, backend, check_finite
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
    def strengths(self) -> list[float]:
        """The strength in force in each group, chosen by ``stable`` where that is set (NaN before its first step)."""
        return [
            float(g["strength"])
            if g["stable"] is None
            else math.nan
            if g["chosen_strength"] is None
            else float(g["chosen_strength"])
            for g in self.param_groups
        ]

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
        for p, state in self._protected():
            if "z" in state:
                kept = p.clone()
                p.copy_(state["z"])
                state["z"].copy_(kept)
        self._progress["mode"] = mode

    def _protected(self) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        for group in self.param_groups:
            for p in group["params"]:
                if "anchor" in self.state.get(p, {}):
                    yield p, self.state[p]

    # -- the step ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step: an iteration of the splitting, or ``iterations`` of them on one batch with a closure."""
        if self._progress["mode"] == "eval":
            raise RuntimeError("the model holds the weights for evaluation; call opt.train() before opt.step()")
        many = self.iterations > 1 or (self.splitting == "implicit" and self.tasks > 0)
        if many and closure is None:
            raise ValueError(
                f"splitting={self.splitting!r} with iterations={self.iterations} evaluates the loss several times: "
                "call opt.step(closure), where closure() clears the gradients, runs backward() and returns the loss"
            )
        loss, first = None, math.nan
        for k in range(self.iterations):
            before = [(p, p.clone()) for p, _ in self._protected()] if self.iterations > 1 else []
            if self.splitting == "implicit" and self.tasks > 0:
                assert closure is not None
                loss = self._implicit(closure)
            else:
                loss = self._explicit(closure)
            self.iterations_used = k + 1
            moved = math.sqrt(sum(float((p - y).double().square().sum()) for p, y in before))
            first = moved if k == 0 else first
            self.residual = moved / first if first else 1.0
            if self.tolerance is not None and k > 0 and self.residual < self.tolerance:
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
        if self.inner is None and self.plasticity_steps == 1:
            for group in self.param_groups:
                self._sgd(group, protected=False)
                self._negotiate(group, self._fused_weights(group), self._rule(group, group["lr"]))
            return loss
        starts = self._begin()
        try:
            if self.inner is not None:
                with torch.enable_grad() if lbfgs else contextlib.nullcontext():
                    loss = self.inner.step(closure) if lbfgs else (self.inner.step(), loss)[1]  # type: ignore
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
        if self._progress["steps_in_proposal"] >= self.plasticity_steps:
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
            for k in range(self.inner_steps):
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
            for p, state in self._protected():
                state["start"] = p.clone()
            self._progress["gammas"] = [0.0] * len(self.param_groups)
        return [(p, p.clone()) for p, _ in self._protected()] if self.inner is not None else []

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
            plain = {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0, "maximize": False}
            self._negotiate(group, weights, self._rule({**group, **plain, "lr": 1.0}, gamma))
        self._progress["steps_in_proposal"] = 0

    def _sgd(self, group: dict[str, Any], protected: bool) -> None:
        """Torch's own SGD on the unprotected (or the protected) parameters of a group."""
        chosen = [
            p for p in group["params"] if p.grad is not None and ("anchor" in self.state.get(p, {})) == protected
        ]
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
                    f"parameter {self._name(p)!r} is protected but has a sparse gradient; use sparse=False in its "
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
            prox=self.prox,
            momentum=float(group["momentum"]),
            dampening=float(group["dampening"]),
            weight_decay=float(group["weight_decay"]),
            nesterov=bool(group["nesterov"]),
            maximize=bool(group["maximize"]),
            reflect=self.splitting != "forward-backward",
            damping=float(group["damping"]),
        )

    def _negotiate(self, group: dict[str, Any], weights: list[Weight], rule: Rule) -> None:
        if not weights:
            return
        if group["stable"] is not None:
            rule = Rule(**{**rule.__dict__, "damping": max(rule.damping, stable.FLOOR)})
            protected = sum(p.numel() for p in group["params"] if "anchor" in self.state.get(p, {}))
            rule = Rule(**{**rule.__dict__, "strength": stable.choose(group, weights, rule, protected)})
        kernels.negotiate(weights, rule, self.backend)

    def _check_gradients(self) -> None:
        if not self.check_finite:
            return
        owners = [p for g in self.param_groups for p in g["params"] if p.grad is not None and p.grad.numel()]
        if not owners:
            return
        bad = kernels.first_non_finite([p.grad for p in owners])
        if bad >= 0:
            half = owners[bad].dtype == torch.float16
            remedy = "scale the loss with torch.amp.GradScaler" if half else "lower lr, clip gradients or skip this batch"
            raise FloatingPointError(
                f"the gradient of {self._name(owners[bad])!r} holds NaN or infinite values; no weight was changed. "
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
        estimator = Fisher() if importance is None else importance
        if not hasattr(estimator, "estimate"):
            raise TypeError(f"importance={estimator!r} must be an estimator such as drcl.Fisher() or drcl.MAS()")
        if batches is None and getattr(estimator, "needs_data", True):
            raise ValueError(f"{type(estimator).__name__} needs data: pass consolidate(model, batches)")
        named = self._match(model)
        held = self._progress["mode"]
        self.eval()
        try:
            with torch.enable_grad():
                new = estimator.estimate(model, batches, named, forward)
            mean = self._combine(named, new)
        except BaseException:
            self._hold(held)
            raise
        self._set_anchor({name: p.detach().clone() for name, p in named.items()}, named)
        self._progress["importance_mean"] = mean
        self._progress["tasks"] += 1
        self._progress["made"] = [*self._progress["made"], estimator.describe()]

    def _match(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """The protected parameters by name; refuses a model and an optimizer that do not belong together."""
        own = {p for g in self.param_groups for p in g["params"]}
        names = {p: plain_name(n) for n, p in model.named_parameters()}
        missing = [n for p, n in names.items() if p.requires_grad and p not in own]
        if missing:
            raise ValueError(
                f"parameter {missing[0]!r} of the model is not in this optimizer (and {len(missing) - 1} more); add it "
                "with opt.add_param_group({'params': [...]}), or set requires_grad=False if it is not trained"
            )
        self._names = {**self._names, **{p: n for p, n in names.items() if p in own}}
        candidates = [p for g in self.param_groups if not g["free"] for p in g["params"]]
        strangers = [p for p in candidates if p not in names]
        if strangers:
            raise ValueError(
                f"parameter {self._name(strangers[0])!r} of this optimizer is not in the model given to consolidate(); "
                "pass the model that is being trained, or put it in a group with free=True"
            )
        chosen = {names[p]: p for p in candidates if p.requires_grad and p.is_floating_point()}
        if not chosen:
            raise ValueError("there is nothing to protect: every parameter is frozen or in a group with free=True")
        return chosen  # type: ignore[return-value]

    def _combine(self, named: dict[str, nn.Parameter], new: dict[str, Tensor]) -> float:
        """Earlier importance and the new one, mean-normalised over all protected weights; stored, mean returned."""
        keep = {"sum": 1.0, "latest": 0.0}.get(self.memory, self.memory)  # type: ignore[arg-type]
        scale = float(keep) * self._progress["importance_mean"]
        total: dict[str, Tensor] = {}
        for name, p in named.items():
            fresh = new[name].detach().to(_importance_dtype(p))
            if fresh.shape != p.shape or not bool(torch.isfinite(fresh).all()) or bool((fresh < 0).any()):
                raise ValueError(f"the importance of {name!r} must be finite, >= 0 and of shape {tuple(p.shape)}")
            old = self.state.get(p, {}).get("importance")
            total[name] = fresh if old is None or not scale else fresh + old * scale
        mean = sum(float(t.double().sum()) for t in total.values()) / sum(t.numel() for t in total.values())
        if mean <= 0:
            warnings.warn(
                "drcl: the importance is zero for every weight, so nothing will be protected; use "
                "drcl.Fisher(labels='exact') or labels='empirical', more samples, or DRCL(damping=...)",
                stacklevel=3,
            )
        for name, p in named.items():
            self.state[p]["importance"] = total[name] / mean if mean > 0 else total[name]
        return mean

    def _set_anchor(self, weights: dict[str, Tensor], named: dict[str, nn.Parameter]) -> None:
        """Start a task at these weights: anchor, z and y agree, and nothing of the last task's motion is left."""
        for name, p in named.items():
            state = self.state[p]
            state["anchor"] = weights[name].to(p).contiguous(memory_format=torch.preserve_format)
            p.copy_(state["anchor"])
            if self.splitting != "forward-backward":
                state["z"] = p.detach().clone()
        for state in self.state.values():
            for key in ("momentum_buffer", "start"):
                state.pop(key, None)
        if self.inner is not None:
            self.inner.state.clear()
        for group in self.param_groups:
            group["chosen_strength"] = None
            group.pop("stable_steps", None)
        self._progress |= {"mode": "train", "steps_in_proposal": 0, "gammas": []}

    @property
    def anchor(self) -> Anchor | None:
        """A copy of the protected weights, their importance and how they came about; None before ``consolidate``."""
        pairs = [(self._name(p), state) for p, state in self._protected()]
        if not pairs:
            return None
        return Anchor(
            weights={n: s["anchor"].clone() for n, s in pairs},
            importance={n: s["importance"].clone() for n, s in pairs},
            provenance=provenance(
                tasks=self.tasks,
                memory=self.memory,
                importance_mean=self._progress["importance_mean"],
                made=self._progress["made"],
            ),
        )

    @torch.no_grad()
    def protect(self, model: nn.Module, anchor: Anchor) -> None:
        """Take up where a saved anchor left off: the model gets its weights and they are protected from now on."""
        named = self._match(model)
        unknown = [n for n in anchor.weights if n not in named]
        if unknown:
            raise ValueError(
                f"the anchor protects {unknown[0]!r}, which is not a trained, unfree parameter of this model "
                f"(it has {', '.join(sorted(named)[:5])}, ...)"
            )
        for name in anchor.weights:
            if anchor.weights[name].shape != named[name].shape:
                raise ValueError(
                    f"{name!r} has shape {tuple(named[name].shape)} in the model and "
                    f"{tuple(anchor.weights[name].shape)} in the anchor"
                )
        held = {n: named[n] for n in anchor.weights}
        for name, p in held.items():
            self.state[p]["importance"] = anchor.importance[name].to(p.device, _importance_dtype(p))
        self._set_anchor(anchor.weights, held)
        made = anchor.provenance
        self._progress["tasks"] = int(made.get("tasks", 1))
        self._progress["importance_mean"] = float(made.get("importance_mean", 1.0))
        self._progress["made"] = list(made.get("made", []))

    # -- groups, names, state --------------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if isinstance(param_group, dict):
            options.group({**self.defaults, **param_group}, strict=self.inner is None)
            if param_group.get("stable", self.defaults["stable"]) is not None and not isinstance(
                self.prox, (L1, ElasticNet)
            ):
                raise ValueError(
                    f"stable= needs a prox that leaves weights exactly in place (l1, elastic), not {self.prox!r}"
                )
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
        ours = ("strength", "stable", "free", "damping", "chosen_strength")
        plain = {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0, "maximize": False}
        for group in self.param_groups:
            for key in ours:
                group.setdefault(key, self.defaults[key])
            for key, value in plain.items():
                group.setdefault(key, value)

    def _name(self, p: Tensor) -> str:
        if p in self._names:
            return self._names[p]
        for g, group in enumerate(self.param_groups):
            for i, (q, name) in enumerate(zip(group["params"], group.get("param_names", [None] * len(group["params"])))):
                if q is p:
                    return plain_name(name) if name is not None else f"group {g}, parameter {i}"
        return "?"

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        """Tensors and plain values only: it can be saved without pickle, also in the middle of a task."""
        out = super().state_dict()
        out["drcl"] = {k: list(v) if isinstance(v, list) else v for k, v in self._progress.items()}
        if self.inner is not None:
            out["inner"] = self.inner.state_dict()
        return out

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # type: ignore[override]
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
                self.state[p]["importance"] = entry["importance"].to(p.device, _importance_dtype(p), copy=True)
        if self.inner is not None:
            self.inner.load_state_dict(state_dict["inner"])
            self._link()
        self._progress = {k: list(v) if isinstance(v, list) else v for k, v in state_dict["drcl"].items()}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{k: self.__dict__[k] for k in _OWN}}


def _importance_dtype(p: Tensor) -> torch.dtype:
    return torch.float32 if p.dtype in (torch.float16, torch.bfloat16) else p.dtype
