"""Every layer's inputs and output derivatives for every sample, from one ordinary batched pass.

Every layer with a rule gets a tap. It keeps the layer's input in the forward pass; when the derivative of the output
arrives in the backward pass, both go to a visitor and are freed. Meanwhile no parameter requires a gradient, so
autograd computes no gradients of weights, and the visitor can use that time. Visitors are `drcl.per_sample.moments` and
`drcl.directions.passes`.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from drcl.per_sample.draw import tensors
from drcl.per_sample.layers import Rule, rule_for
from drcl.per_sample.stand_ins import in_pieces, projections

__all__ = ["OnePass", "Shapes", "Unsupported", "Visitor", "shapes_of_outputs"]

# For each tapped layer and each of its calls in a forward pass: the dimension of its output that holds the samples,
# and the number of rows per sample in it.
Layout = dict[tuple[nn.Module, int], tuple[int, int]]
Shapes = dict[tuple[nn.Module, int], torch.Size]


class Unsupported(Exception):
    """The rules do not cover what this model does; use another route."""


class Visitor(ABC):
    """Sees one batch in the backward pass through the tapped layers."""

    @abstractmethod
    def __call__(self, module: nn.Module, x: torch.Tensor, d: torch.Tensor) -> None:
        """One use of a layer: its input and the derivative of its output, both as `[samples, rows, ...]`.

        `rows` is 1 unless the model folded another dimension into the batch dimension before it called the layer.
        """

    def end_of_pass(self) -> None:  # noqa: B027  (most visitors have nothing to do)
        """All uses of one cotangent have been shown; those of the next one follow."""


class _Use:
    """One call of one layer."""

    def __init__(self, module: nn.Module, call: int, x: torch.Tensor, shape: torch.Size) -> None:
        self.module, self.call, self.shape = module, call, shape
        self.x: torch.Tensor | None = x


class _Tap(torch.autograd.Function):
    """The identity. The graph begins at the first tap, because no weight requires a gradient.

    The second argument is the graph's leaf; `arrived` gets the derivative in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, start: torch.Tensor, arrived: Any) -> torch.Tensor:
        ctx.arrived = arrived
        # Same memory, but not a view: the next layer may change it in place, which is forbidden for a view.
        return output.data

    @staticmethod
    def backward(ctx: Any, d: torch.Tensor) -> tuple[None, None, None]:
        ctx.arrived(d)
        return None, None, None


class OnePass:
    """Taps on the layers of `model` that have a rule and hold some of `parameters`; `names` tells which."""

    def __init__(self, model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
        wanted = {id(p): name for name, p in parameters.items()}
        self.model = model
        self.rules: dict[nn.Module, Rule] = {}
        self.owned: dict[nn.Module, dict[str, str]] = {}  # layer -> the layer's name of a parameter -> our name
        self.projections = projections(model)
        for module in (*model.modules(), *self.projections):
            rule = rule_for(module)
            held = {own: wanted[id(p)] for own, p in module._parameters.items() if id(p) in wanted}
            if rule is not None and held and set(held) <= {"weight", "bias"}:
                self.rules[module], self.owned[module] = rule, held
        first = next(model.parameters())
        self._start = torch.zeros((), dtype=first.dtype, device=first.device, requires_grad=True)
        self._listening = False
        self._uses: list[_Use] = []
        self._layout: Layout = {}
        self._visitor: Visitor | None = None
        self._length, self._last = 0, True
        # The graph may begin at a tap, and elsewhere too: tools that train adapters begin it at the embedding.
        self._tapped = self._elsewhere = False

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for held in self.owned.values() for name in held.values()))

    def forget(self, names: list[str]) -> None:
        """Leave these parameters to another route."""
        for module, held in list(self.owned.items()):
            self.owned[module] = {own: name for own, name in held.items() if name not in names}
            if not self.owned[module]:
                del self.owned[module], self.rules[module]

    def keep(self, modules: Collection[nn.Module]) -> None:
        """Leave all other layers to another route."""
        self.owned = {module: held for module, held in self.owned.items() if module in modules}
        self.rules = {module: rule for module, rule in self.rules.items() if module in modules}

    @contextmanager
    def tapped(self) -> Iterator[None]:
        """Inside, the taps are in place; they do nothing except while `listening`."""
        handles = [
            # Run before all other hooks: these may replace the output, but the rule needs the layer's own.
            module.register_forward_hook(self._called, with_kwargs=True, prepend=True)
            for module in self.rules
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Use this from the start of a forward pass to the end of its backward passes."""
        self._calls: Counter[nn.Module] = Counter()
        self._listening, self._tapped, self._elsewhere = True, False, False
        try:
            with self.pieces():
                yield
        finally:
            self._listening = False
            self._uses = []

    @contextmanager
    def pieces(self) -> Iterator[None]:
        """Inside, fused layers call their projections, if any of these has a tap."""
        if any(module in self.rules for module in self.projections):
            with in_pieces(self.model):
                yield
        else:
            yield

    def forget_projections(self) -> bool:
        """Stop splitting fused layers into projections; returns whether there were any."""
        names = [name for module in self.projections for name in self.owned.get(module, {}).values()]
        self.forget(names)
        return bool(names)

    def _called(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> torch.Tensor | None:
        if not self._listening or module not in self.rules:
            return None
        x = args[0] if args else kwargs["input"]
        call = self._calls[module]
        self._calls[module] += 1
        use = _Use(module, call, x.detach(), output.shape)
        self._uses.append(use)
        arrived = partial(self._arrived, use)
        if not output.requires_grad:
            self._tapped = True
            return _Tap.apply(output, self._start, arrived)
        self._elsewhere |= not self._tapped
        # A hook set here sees the derivative of what the layer returned, even if that is changed in place later.
        output.register_hook(arrived)
        return None

    def layout(self, length: int, single: Shapes) -> None:
        """Find the dimension of the samples: the one that is larger with `length` samples than with one."""
        self._layout = {}
        lost: list[str] = []
        for use in self._uses:
            shape, one = use.shape, single.get((use.module, use.call), torch.Size())
            grew = [i for i, (a, b) in enumerate(zip(one, shape)) if a != b]
            if len(one) == len(shape) and len(grew) == 1 and shape[grew[0]] == length * one[grew[0]]:
                axis = grew[0]
                if axis == 0 or (self.rules[use.module].folds and axis < len(shape) - 1):
                    self._layout[use.module, use.call] = axis, one[axis]
                    continue
            lost += self.owned[use.module].values()
        self.forget(lost)

    def backward(self, output: Any, cotangents: Sequence[list[torch.Tensor]], length: int, visitor: Visitor) -> None:
        """Show `visitor` every use, for all cotangents of `output`, which must come from a pass while listening."""
        self._visitor, self._length = visitor, length
        self._check_uses()
        for k, cotangent in enumerate(cotangents):
            self._last = k + 1 == len(cotangents)
            pairs = [(o, v) for o, v in zip(tensors(output), cotangent) if o.requires_grad]
            if pairs:
                torch.autograd.grad(
                    [o for o, _ in pairs],
                    [self._start, *(_leaves(o for o, _ in pairs) if self._elsewhere else ())],
                    [v for _, v in pairs],
                    retain_graph=not self._last,
                    allow_unused=True,
                )
            visitor.end_of_pass()

    def _check_uses(self) -> None:
        """Raise unless every layer is used as in the trial pass, before anything is shown."""
        for use in self._uses:
            if use.module not in self.owned:
                continue
            axis, rows = self._layout.get((use.module, use.call), (0, -1))
            if axis >= len(use.shape) or use.shape[axis] != rows * self._length:
                raise Unsupported("a layer was called in another way than in the trial pass")

    def used_more_than_once(self) -> set[nn.Module]:
        """Layers with a parameter that was used twice in the forward pass: a sample's gradient is a sum over uses."""
        times = Counter(name for use in self._uses for name in self.owned.get(use.module, {}).values())
        return {m for m, held in self.owned.items() if any(times[name] > 1 for name in held.values())}

    def _arrived(self, use: _Use, d: torch.Tensor) -> None:
        if use.module not in self.owned:
            use.x = None
        else:
            assert self._visitor is not None
            self._visitor(use.module, *self._samples_first(use, d))
            if self._last:
                use.x = None

    def _samples_first(self, use: _Use, d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Input and output derivative as `[samples, rows, ...]`."""
        assert use.x is not None
        (axis, rows), x = self._layout[use.module, use.call], use.x
        if d.dtype in (torch.float16, torch.bfloat16):
            # The model may compute in half precision, but squares of gradients need a wider range.
            d, x = d.float(), x.float() if x.is_floating_point() else x
        if axis == 0 and rows == 1:
            return x.unsqueeze(1), d.unsqueeze(1)
        split = (self._length, rows)
        return x.movedim(axis, 0).unflatten(0, split), d.movedim(axis, 0).unflatten(0, split)


def _leaves(outputs: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves of the graph of these outputs, so that autograd computes nothing else."""
    found, seen, nodes = [], set(), [o.grad_fn for o in outputs]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found += [node.variable] if hasattr(node, "variable") else []
        nodes += [before for before, _ in node.next_functions]
    return found


@contextmanager
def shapes_of_outputs(modules: Any) -> Iterator[Shapes]:
    """Record the output shape of each call of these layers."""
    shapes: Shapes = {}
    calls: Counter[nn.Module] = Counter()

    def called(module: nn.Module, args: Any, output: Any) -> None:
        shapes[module, calls[module]] = output.shape
        calls[module] += 1

    handles = [module.register_forward_hook(called, prepend=True) for module in modules]
    try:
        yield shapes
    finally:
        for handle in handles:
            handle.remove()
