"""An optimizer's whole life in random order: whatever is called, an error changes nothing and no weight is ever NaN.

A machine of hypothesis drives two optimizers side by side, one with the fused step and one with the reference. They
must agree bit for bit after every call. ``DRCL_ATTACK=100`` tries a hundred times as many lives.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.attack import tally
from tests.attack.budget import cases, times
from tests.tasks import same, whole_state
from torch import nn
from torch.nn import functional as F

from drcl import DRCL, MAS, Fisher, Kronecker

TIMES = times()
# What a caller may meet; anything else is a bug that shows through.
OURS = (ValueError, TypeError, RuntimeError, FloatingPointError)
HOSTILE = [math.nan, math.inf, -math.inf, -1.0, None, "x", [], {}, 1e308, True]
TALLY = {"calls": 0, "refused": 0, "lives": 0}

OPTIONS = st.fixed_dictionaries(
    {
        "splitting": st.sampled_from(["forward-backward", "douglas-rachford", "implicit"]),
        "prox": st.sampled_from(["l1", "l2", "elastic", "group", "box"]),
        "strength": st.sampled_from([0.0, 1e-3, 0.1, 10.0, math.inf]),
        "stable": st.sampled_from([None, None, None, 0.5]),
        "iterations": st.sampled_from([1, 1, 3]),
        "plasticity_steps": st.sampled_from([1, 1, 3]),
        "memory": st.sampled_from(["sum", "latest", 0.5]),
        "normalise": st.sampled_from(["task", "share", "global"]),
        "momentum": st.sampled_from([0.0, 0.9]),
        "weight_decay": st.sampled_from([0.0, 0.01]),
        "damping": st.sampled_from([0.0, 0.1]),
        "inner_steps": st.just(2),
    }
)
AROUND = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}
ESTIMATORS: list[Callable[[], Any]] = [
    lambda: Fisher(samples=12),
    lambda: Fisher(samples=12, labels="exact"),
    lambda: MAS(samples=12),
    lambda: Kronecker(samples=12),
    lambda: Kronecker(samples=12, rank=2),
]


@pytest.fixture(scope="module", autouse=True)
def figures(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    tally.keep("api", request, **TALLY)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4))


def batches(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(6, 3, generator=generator), torch.randint(4, (6,), generator=generator)) for _ in range(2)]


class Side:
    """A model and its optimizer."""

    def __init__(self, make: Callable[[nn.Module], DRCL]) -> None:
        self.model = network()
        self.opt = make(self.model)

    def closure(self, seed: int) -> Callable[[], torch.Tensor]:
        x, y = batches(seed)[0]

        def evaluate() -> torch.Tensor:
            self.opt.zero_grad()
            loss = F.cross_entropy(self.model(x.to(self.model[0].weight.dtype)), y)  # type: ignore[index]
            loss.backward()
            return loss

        return evaluate

    def snapshot(self) -> dict[str, Any]:
        kept = whole_state(self.model, self.opt)
        del kept["gradients"]  # they belong to the caller
        return kept


class Life(RuleBasedStateMachine):
    """One optimizer from its making on."""

    def __init__(self) -> None:
        super().__init__()
        TALLY["lives"] += 1
        self.sides: list[Side] = []

    @initialize(options=OPTIONS, around=st.sampled_from([None, None, *AROUND]))
    def make(self, options: dict[str, Any], around: str | None) -> None:
        def maker(backend: str) -> Callable[[nn.Module], DRCL]:
            if around is None:
                return lambda model: DRCL(model.named_parameters(), lr=0.05, backend=backend, **options)
            own = {k: v for k, v in options.items() if k not in ("momentum", "weight_decay")}
            return lambda model: DRCL.around(AROUND[around](model.named_parameters()), backend=backend, **own)

        try:
            self.sides = [Side(maker("native")), Side(maker("reference"))]
        except OURS:
            self.sides = []

    def both(self, act: Callable[[Side], Any]) -> bool:
        """Do it on both sides; where one refuses, the other must, and nothing may have changed."""
        outcomes = []
        for side in self.sides:
            TALLY["calls"] += 1
            before = side.snapshot()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    act(side)
                    outcomes.append("")
                except OURS as reason:
                    outcomes.append(str(reason))
            if outcomes[-1]:
                TALLY["refused"] += 1
                assert len(outcomes[-1]) > 20, f"a sentence, not {outcomes[-1]!r}"
                after = side.snapshot()
                for key in before:
                    assert same(before[key], after[key]), f"{outcomes[-1]!r} changed {key}"
        assert len({bool(outcome) for outcome in outcomes}) == 1, outcomes
        return not any(outcomes)

    alive = precondition(lambda self: bool(self.sides))

    @precondition(lambda self: not self.sides)
    @rule()
    def never_born(self) -> None:
        """Options that do not go together were refused; there is nothing to drive."""

    # -- ordinary use

    @alive
    @rule(seed=st.integers(0, 5))
    def step(self, seed: int) -> None:
        self.both(lambda s: s.opt.step(s.closure(seed)))

    @alive
    @rule(seed=st.integers(0, 5))
    def plain_step(self, seed: int) -> None:
        def act(s: Side) -> None:
            s.closure(seed)()
            s.opt.step()

        self.both(act)

    @alive
    @rule(seed=st.integers(0, 5), which=st.integers(0, len(ESTIMATORS) - 1))
    def consolidate(self, seed: int, which: int) -> None:
        self.both(lambda s: s.opt.consolidate(s.model, batches(seed), ESTIMATORS[which]()))

    @alive
    @rule()
    def evaluate(self) -> None:
        self.both(lambda s: s.opt.eval())

    @alive
    @rule()
    def train(self) -> None:
        self.both(lambda s: s.opt.train())

    @alive
    @rule()
    def deployed(self) -> None:
        def act(s: Side) -> None:
            before = s.snapshot()
            with s.opt.deployed():
                s.opt.penalty()
            assert same(before, s.snapshot())

        self.both(act)

    @alive
    @rule()
    def round_trip(self) -> None:
        self.both(lambda s: s.opt.load_state_dict(copy.deepcopy(s.opt.state_dict())))

    @alive
    @rule()
    def protect_own_anchor(self) -> None:
        def act(s: Side) -> None:
            if s.opt.anchor is not None:
                s.opt.protect(s.model, s.opt.anchor)

        self.both(act)

    @alive
    @rule()
    def deep_copy(self) -> None:
        def act(s: Side) -> None:
            s.model, s.opt = copy.deepcopy((s.model, s.opt))

        self.both(act)

    @alive
    @rule(value=st.sampled_from([0.0, 1e-3, 0.1]))
    def schedule(self, value: float) -> None:
        for side in self.sides:
            for group in side.opt.param_groups:
                group["lr"] = value

    @alive
    @rule(free=st.booleans(), seed=st.integers(0, 5))
    def add_a_group(self, free: bool, seed: int) -> None:
        def act(s: Side) -> None:
            if sum(len(g["params"]) for g in s.opt.param_groups) > 6:
                return
            extra = nn.Parameter(torch.randn(3, generator=torch.Generator().manual_seed(seed)))
            name = f"extra{len(list(s.model.parameters()))}"
            s.opt.add_param_group({"params": [(name, extra)], "free": free})
            s.model.register_parameter(name, extra)

        self.both(act)

    @alive
    @rule(more=st.integers(0, 2), in_place=st.booleans(), turned=st.booleans(), halfway=st.booleans())
    def classes_are_added(self, more: int, in_place: bool, turned: bool, halfway: bool) -> None:
        def act(s: Side) -> None:
            head = s.model[2]  # type: ignore[index]
            rows = len(head.bias)  # type: ignore[arg-type]
            if rows + more > 10:
                return
            places = list(range(rows + more))[::-1][:rows] if turned else None
            for name in ("weight", "bias"):
                old = getattr(head, name)
                data = torch.randn(rows + more, *old.shape[1:], generator=torch.Generator().manual_seed(more))
                data[places or list(range(rows))] = old.detach()
                new = nn.Parameter(data)
                if in_place:
                    old.data, new = data, old
                s.opt.grow(old, new, rows=places)
                setattr(head, name, new)
                if name == "weight" and halfway:
                    s.opt.load_state_dict(copy.deepcopy(s.opt.state_dict()))

        assert self.both(act)

    # -- what goes wrong

    @alive
    @rule(rows=st.sampled_from([None, [0], [0, 0, 0, 0], "x"]), columns=st.sampled_from([4, 6]))
    def hostile_growth(self, rows: Any, columns: int) -> None:
        assert not self.both(lambda s: s.opt.grow(s.model[2].weight, nn.Parameter(torch.ones(12, columns)), rows))  # type: ignore[index,arg-type]

    @alive
    @rule(bad=st.sampled_from([math.nan, math.inf]), where=st.integers(0, 3))
    def bad_gradient(self, bad: float, where: int) -> None:
        def act(s: Side) -> None:
            s.closure(0)()
            used = [p for p in s.model.parameters() if p.grad is not None]
            used[where].grad.view(-1)[0] = bad  # type: ignore[union-attr]
            s.opt.step()

        assert not self.both(act)

    @alive
    @rule(key=st.sampled_from(["lr", "strength", "damping", "stable", "momentum"]), value=st.sampled_from(HOSTILE))
    def hostile_number(self, key: str, value: Any) -> None:
        kept = [[g.get(key) for g in s.opt.param_groups] for s in self.sides]
        for side in self.sides:
            side.closure(0)()
            side.opt.param_groups[0][key] = value
        self.both(lambda s: s.opt.step(s.closure(0)))
        for side, values in zip(self.sides, kept):
            for group, before in zip(side.opt.param_groups, values):
                if before is None and key not in ("stable",):
                    group.pop(key, None)
                else:
                    group[key] = before

    @alive
    @rule(rows=st.sampled_from([1, 3, 5, 400]))
    def grow_the_head(self, rows: int) -> None:
        kept = [s.model[2].weight.data for s in self.sides]  # type: ignore[index,union-attr]

        def act(s: Side) -> None:
            weight = s.model[2].weight  # type: ignore[index]
            other = rows + int(rows == len(weight))  # type: ignore[arg-type]
            weight.data = torch.ones(other, 5, dtype=weight.dtype)  # type: ignore[union-attr]
            weight.grad = torch.ones_like(weight)  # type: ignore[union-attr,arg-type]
            s.opt.step()

        if all(s.opt.tasks for s in self.sides):
            for side in self.sides:
                before = side.opt.state_dict()
                with pytest.raises(OURS):
                    act(side)
                assert same(before["drcl"], side.opt.state_dict()["drcl"])
        for side, data in zip(self.sides, kept):
            side.model[2].weight.data = data  # type: ignore[index,union-attr]
            side.model[2].weight.grad = None  # type: ignore[index,union-attr]

    @alive
    @rule()
    def another_type_and_back(self) -> None:
        for side in self.sides:
            side.model.double()
        if all(s.opt.tasks for s in self.sides):
            assert not self.both(lambda s: s.opt.step(s.closure(0)))
        for side in self.sides:
            side.model.float()
            side.opt.zero_grad()

    @alive
    @rule(value=st.sampled_from([None, {}, [], 3, "x", [None], [(1, 2)], [torch.ones(2, 3)], iter(())]))
    def hostile_data(self, value: Any) -> None:
        self.both(lambda s: s.opt.consolidate(s.model, value))

    @alive
    @rule(value=st.sampled_from([None, 3, "x", {}, nn.Linear(2, 2), lambda x: x]))
    def hostile_model(self, value: Any) -> None:
        assert not self.both(lambda s: s.opt.consolidate(value, batches(0)))

    @alive
    @rule(value=st.sampled_from([3, "x", {}, lambda: None, Fisher]))
    def hostile_importance(self, value: Any) -> None:
        assert not self.both(lambda s: s.opt.consolidate(s.model, batches(0), value))

    @alive
    @rule(value=st.sampled_from([None, {}, 3, {"drcl": {}}, {"state": {}, "param_groups": [], "drcl": None}]))
    def hostile_state(self, value: Any) -> None:
        assert not self.both(lambda s: s.opt.load_state_dict(value))

    @alive
    @rule(value=st.sampled_from([None, {}, 3, {"params": None}, {"params": [3]}, {"params": []}, {"parms": []}]))
    def hostile_group(self, value: Any) -> None:
        if value == {"params": []}:
            return
        assert not self.both(lambda s: s.opt.add_param_group(copy.deepcopy(value)))

    @alive
    @rule(value=st.sampled_from([None, {}, 3, "anchor.safetensors"]))
    def hostile_anchor(self, value: Any) -> None:
        assert not self.both(lambda s: s.opt.protect(s.model, value))

    # -- what always holds

    @invariant()
    def weights_are_finite_and_agree(self) -> None:
        if not self.sides:
            return
        one, other = (list(s.model.parameters()) for s in self.sides)
        for p, q in zip(one, other):
            assert bool(torch.isfinite(p).all())
            assert torch.equal(p, q)


Life.TestCase.settings = settings(
    max_examples=cases(40),
    stateful_step_count=25,
    deadline=None,
    derandomize=TIMES == 1,
    report_multiple_bugs=False,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a life shrinks badly; its steps are printed as they are
    suppress_health_check=list(HealthCheck),
)
TestLife = Life.TestCase
