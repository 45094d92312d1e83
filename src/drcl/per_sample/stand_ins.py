"""Linear maps inside larger layers, made visible: attention's projections and the gates of recurrent layers.

`nn.MultiheadAttention`, `nn.LSTM`, `nn.GRU` and `nn.RNN` use their weights inside one fused function, where no hook
sees inputs and outputs. While importance is measured they compute the same in pieces: every weight that is a linear map
is called as a `Projection`, which can have a tap like any layer. `drcl.per_sample.plan` first tests that the pieces
compute the same as the layer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

__all__ = ["Projection", "in_pieces", "projections"]


class Projection(nn.Module):
    """y = W x + b with W and b of another layer; in `groups` blocks, each with its own part of x and of y."""

    bias: nn.Parameter | None

    def __init__(self, weight: Any, bias: Any, groups: int = 1) -> None:
        super().__init__()
        self.weight, self.groups = weight, groups
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.groups == 1:
            return F.linear(x, self.weight, self.bias)
        blocks = self.weight.unflatten(0, (self.groups, -1))
        y = torch.einsum("...gn,gmn->...gm", x.unflatten(-1, (self.groups, -1)), blocks).flatten(-2)
        return y if self.bias is None else y + self.bias


class _Pieces:
    """A layer's projections by name, and a forward method that uses them."""

    def __init__(self, layer: nn.Module) -> None:
        self.parts = _projections_of(layer)
        self.weights = [p.weight for p in self.parts.values()]

    def of(self, layer: nn.Module) -> bool:
        """Whether the layer still has the parameters from which these were made."""
        now = [p.weight for p in _projections_of(layer).values()]
        return len(now) == len(self.weights) and all(a is b for a, b in zip(now, self.weights))


# Cached, so that what one pass over a model finds out about the pieces is valid in the next.
_KNOWN: weakref.WeakKeyDictionary[nn.Module, _Pieces] = weakref.WeakKeyDictionary()


def _projections_of(layer: Any) -> dict[str, Projection]:
    """Only for exactly these kinds: a subclass, or a layer whose forward was replaced, may compute something else."""
    if "forward" in vars(layer):
        return {}
    if type(layer) is nn.MultiheadAttention:
        found = {"out": Projection(layer.out_proj.weight, layer.out_proj.bias)}
        if layer.in_proj_weight is not None:
            return {"in": Projection(layer.in_proj_weight, layer.in_proj_bias, 3), **found}
        weights: dict[str, Any] = {"q": layer.q_proj_weight, "k": layer.k_proj_weight, "v": layer.v_proj_weight}
        return {**{name: Projection(w, None) for name, w in weights.items()}, **found}
    if type(layer) in (nn.LSTM, nn.GRU, nn.RNN) and not layer.proj_size:
        names = [f"{side}_l{k}{way}" for k in range(layer.num_layers) for way in _ways(layer) for side in ("ih", "hh")]
        return {
            name: Projection(getattr(layer, f"weight_{name}"), getattr(layer, f"bias_{name}") if layer.bias else None)
            for name in names
        }
    return {}


def _ways(layer: Any) -> tuple[str, ...]:
    return ("", "_reverse") if layer.bidirectional else ("",)


def _layers(model: nn.Module) -> Iterator[tuple[nn.Module, _Pieces]]:
    for layer in model.modules():
        if isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
            pieces = _KNOWN.get(layer)
            if pieces is None or not pieces.of(layer):
                pieces = _KNOWN[layer] = _Pieces(layer)
            if pieces.parts:
                yield layer, pieces


def projections(model: nn.Module) -> list[nn.Module]:
    """All projections of a model."""
    return [projection for _, pieces in _layers(model) for projection in pieces.parts.values()]


@contextmanager
def in_pieces(model: nn.Module) -> Iterator[None]:
    """Inside, the layers call their projections; afterwards they are as they were."""
    replaced = []
    try:
        for layer, pieces in list(_layers(model)):
            make = _attention if isinstance(layer, nn.MultiheadAttention) else _recurrent
            layer.forward = make(layer, pieces.parts, layer.forward)
            replaced.append(layer)
        yield
    finally:
        for layer in replaced:
            del layer.forward


# -- attention ---------------------------------------------------------------------------------------------------------


def _attention(layer: Any, parts: dict[str, Projection], whole: Callable[..., Any]) -> Callable[..., Any]:
    def forward(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        if query.is_nested or query.dim() != 3:
            return whole(query, key, value, *args, **kwargs)
        names = ("key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")
        given = {**dict(zip(names, args)), **kwargs}
        q, k, v = _projected(layer, parts, query, key, value)
        if layer.batch_first:
            q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        # The projections happen outside, so the fused function gets the identity as its weights.
        one = torch.eye(layer.embed_dim, dtype=q.dtype, device=q.device)
        out, weights = F.multi_head_attention_forward(
            *(q, k, v, layer.embed_dim, layer.num_heads, None, None, layer.bias_k, layer.bias_v),
            *(layer.add_zero_attn, layer.dropout, one, None),
            training=layer.training,
            use_separate_proj_weight=True,
            q_proj_weight=one,
            k_proj_weight=one,
            v_proj_weight=one,
            **given,
        )
        return parts["out"](out.transpose(0, 1) if layer.batch_first else out), weights

    return forward


def _projected(layer: Any, parts: dict[str, Projection], *inputs: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values."""
    if "in" not in parts:
        biases = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
        made = [parts[name](x) for name, x in zip("qkv", inputs)]
        return tuple(t if b is None else t + b for t, b in zip(made, biases))
    # Side by side they are one call; a shorter sequence is padded with zeros, which are cut off afterwards.
    time = 1 if layer.batch_first else 0
    lengths = [x.shape[time] for x in inputs]
    longest = max(lengths)
    filled = [x if n == longest else _filled(x, time, longest) for x, n in zip(inputs, lengths)]
    made = parts["in"](torch.cat(filled, -1)).chunk(3, -1)
    return tuple(t.narrow(time, 0, n) for t, n in zip(made, lengths))


def _filled(x: Tensor, time: int, longest: int) -> Tensor:
    shape = list(x.shape)
    shape[time] = longest - shape[time]
    return torch.cat([x, x.new_zeros(shape)], time)


# -- recurrent layers --------------------------------------------------------------------------------------------------

State = tuple[Tensor, ...]  # h, and the cell of an LSTM


def _recurrent(layer: Any, parts: dict[str, Projection], whole: Callable[..., Any]) -> Callable[..., Any]:
    def forward(input: Any, hx: Any = None) -> tuple[Tensor, Any]:
        if isinstance(input, PackedSequence) or input.dim() != 3 or (layer.training and layer.dropout):
            return whole(input, hx)
        time = 1 if layer.batch_first else 0
        first = _first_states(layer, input, hx)
        x: Tensor = input
        last: list[State] = []
        for k in range(layer.num_layers):
            made = []
            for w, way in enumerate(_ways(layer)):
                pair = parts[f"ih_l{k}{way}"], parts[f"hh_l{k}{way}"]
                states = _walk(layer, pair, x.flip(time) if way else x, first[len(last)], time)
                h = torch.stack([state[0] for state in states], time)
                made.append(h.flip(time) if w else h)
                last.append(states[-1])
            x = torch.cat(made, -1)
        ends = tuple(torch.stack(kind) for kind in zip(*last))
        return x, ends if isinstance(layer, nn.LSTM) else ends[0]

    return forward


def _first_states(layer: Any, x: Tensor, hx: Any) -> list[State]:
    count = layer.num_layers * len(_ways(layer))
    batch = x.shape[0 if layer.batch_first else 1]
    kinds = 2 if isinstance(layer, nn.LSTM) else 1
    if hx is None:
        zero = x.new_zeros(batch, layer.hidden_size)
        return [(zero,) * kinds] * count
    given = hx if kinds == 2 else (hx,)
    return [tuple(kind[i] for kind in given) for i in range(count)]


def _walk(layer: Any, pair: tuple[Projection, Projection], x: Tensor, first: State, time: int) -> list[State]:
    """All states, with each of the two weights used in one call for all steps.

    The recurrent weight's inputs are the states before each step, computed in a first run without a graph. In the
    second run a state still acts on all later ones, but through a weight that requires no gradient.
    """
    into, across = pair
    steps = into(x).unbind(time)
    with torch.no_grad():
        state, before = first, []
        for step in steps:
            before.append(state[0])
            state = _cell(layer, step, F.linear(state[0], across.weight, across.bias), state)
    recurrent = across(torch.stack(before, time)).unbind(time)
    weight, state, states = across.weight.detach(), first, []
    for step, same in zip(steps, recurrent):
        state = _cell(layer, step, same + F.linear(state[0] - state[0].detach(), weight), state)
        states.append(state)
    return states


def _cell(layer: Any, i: Tensor, h: Tensor, state: State) -> State:
    """One step, from the contributions of the input and of the previous state to the gates."""
    if isinstance(layer, nn.LSTM):
        into, keep, new, out = (i + h).chunk(4, -1)
        cell = keep.sigmoid() * state[1] + into.sigmoid() * new.tanh()
        return out.sigmoid() * cell.tanh(), cell
    if isinstance(layer, nn.GRU):
        (i_r, i_z, i_n), (h_r, h_z, h_n) = i.chunk(3, -1), h.chunk(3, -1)
        new, keep = (i_n + (i_r + h_r).sigmoid() * h_n).tanh(), (i_z + h_z).sigmoid()
        return ((1 - keep) * new + keep * state[0],)
    return ((i + h).relu() if layer.nonlinearity == "relu" else (i + h).tanh(),)
