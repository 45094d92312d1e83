"""Per-sample gradient moments of any parameter: the definition, and its vectorised form.

`one_by_one` is the definition that the fast route of `drcl.per_sample.hooks` is checked against; `vectorised` is for
parameters without a layer rule (scales and tokens that belong to the model itself, custom layers, ...).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from drcl.per_sample.draw import batch_length, map_tensors, take, tensors
from drcl.per_sample.layers import Moments, add_power, chunk_length

__all__ = ["Cotangents", "Forward", "one_by_one", "times_used", "vectorised"]

Forward = Callable[[nn.Module, Any], tuple[Any, Any]]
# One backward pass each; each holds one tensor for every tensor of the model's output.
Cotangents = Sequence[list[torch.Tensor]]


def one_by_one(
    model: nn.Module,
    batch: Any,
    parameters: dict[str, nn.Parameter],
    forward: Forward,
    cotangents: Cotangents,
    receive: Callable[[str, torch.Tensor], None],
    look: Callable[[Any], None] | None = None,
) -> None:
    """The definition itself: one forward and one backward pass per sample. Slow, but right for every model.

    `receive(name, gradient)` gets each sample's gradients, if there are any, for every cotangent; `look` gets the first
    sample's output while its graph exists.
    """
    wanted = list(parameters.values())
    before = [p.requires_grad for p in wanted]
    try:
        for p in wanted:
            p.requires_grad_(True)
        for i in range(batch_length(batch)):
            output, _ = forward(model, take(batch, slice(i, i + 1)))
            if look is not None and i == 0:
                look(output)
            for k, cotangent in enumerate(cotangents):
                pairs = [(o, v[i : i + 1]) for o, v in zip(tensors(output), cotangent) if o.requires_grad]
                if not pairs:
                    continue
                outputs, weights = zip(*pairs)
                more = k + 1 < len(cotangents)
                found = torch.autograd.grad(outputs, wanted, weights, retain_graph=more, allow_unused=True)
                for name, gradient in zip(parameters, found):
                    if gradient is not None:
                        receive(name, gradient.to_dense() if gradient.is_sparse else gradient)
                # Free these gradients before the next sample's, so that there is only one set at a time.
                del found, gradient
    finally:
        for p, requires_grad in zip(wanted, before):
            p.requires_grad_(requires_grad)


class _Bound(nn.Module):
    """A model with the caller's `forward`, as one module whose parameters can be swapped."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self.call = forward

    def forward(self, batch: Any) -> list[torch.Tensor]:
        return tensors(self.call(self.model, batch)[0])


def vectorised(
    model: nn.Module,
    batch: Any,
    parameters: dict[str, nn.Parameter],
    forward: Forward,
    cotangents: Cotangents,
    totals: Moments,
    power: int,
) -> None:
    """`torch.func`: many samples' gradients at once, as many as their memory allows."""
    bound = _Bound(model, forward)
    ours = {id(p): name for name, p in parameters.items()}
    free = {own: p.detach() for own, p in bound.named_parameters() if id(p) in ours}
    names = {own: ours[id(p)] for own, p in bound.named_parameters() if id(p) in ours}

    def scalar(weights: dict[str, torch.Tensor], sample: list[torch.Tensor], v: list[torch.Tensor]) -> torch.Tensor:
        rows = iter(sample)
        single = map_tensors(lambda t: next(rows).unsqueeze(0) if t.ndim else t, batch)
        outputs = functional_call(bound, weights, (single,))
        return sum(((o * w).sum() for o, w in zip(outputs, v)), start=torch.zeros((), device=v[0].device))

    gradients = vmap(grad(scalar), in_dims=(None, 0, 0))
    columns = [t for t in tensors(batch) if t.ndim]
    step = chunk_length(sum(p.numel() for p in free.values()) // 16, columns[0].device)
    for v in cotangents:
        for start in range(0, batch_length(batch), step):
            part = slice(start, start + step)
            with sdpa_kernel(SDPBackend.MATH):  # fused attention kernels cannot be vectorised
                found = gradients(free, [c[part] for c in columns], [w[part] for w in v])
            for own, gradient in found.items():
                add_power(totals[names[own]], gradient, power)


def times_used(output: Any, parameters: dict[str, nn.Parameter]) -> Counter[str]:
    """How often each parameter enters the computation of `output`, read off its graph."""
    ours = {id(p): name for name, p in parameters.items()}
    times: Counter[str] = Counter()
    stack = [t.grad_fn for t in tensors(output) if t.grad_fn is not None]
    seen = set(stack)
    while stack:
        for node, _ in stack.pop().next_functions:
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) in ours:
                times[ours[id(variable)]] += 1
            elif node is not None and node not in seen:
                seen.add(node)
                stack.append(node)
    return times
