"""Per-sample gradients of the common layers, from the input and the derivative of the output.

Each rule is for one kind of layer. `gradients` returns the gradients of each sample; `add_moments` adds the sum over
samples of |gradient|^power to an accumulator, without holding more than a few samples' gradients at a time.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from drcl.per_sample.stand_ins import Projection

__all__ = ["Moments", "Rule", "add_power", "is_transposed", "rule_for"]

# Per-sample gradients to hold at once, in elements. On a CPU they should stay in the cache until they are squared; on
# an accelerator, kernel launches cost more than memory.
CPU_CHUNK, DEVICE_CHUNK = 2**19, 2**25

Moments = dict[str, torch.Tensor]


def chunk_length(elements: int, device: torch.device) -> int:
    """How many samples' gradients of that many elements to hold at once."""
    budget = CPU_CHUNK if device.type == "cpu" else DEVICE_CHUNK
    return max(1, budget // max(1, elements))


def add_power(total: torch.Tensor, gradients: torch.Tensor, power: int) -> None:
    """total += sum over samples of |gradients|^power."""
    wide = gradients.to(total.dtype)
    if len(wide) == 1:
        one = wide[0]
        total.addcmul_(one, one) if power == 2 else total.add_(one.abs())
    elif power == 2:
        total.add_(wide.square().sum(0))
    else:
        total.add_(wide.abs().sum(0))


class Rule:
    """One kind of layer. Its input x and output derivative d come as `[samples, rows, ...]`.

    `rows` is 1 unless the model folded another dimension into the batch dimension before it called the layer.
    """

    folds: ClassVar[bool] = True  # whether the samples may lie along another dimension than the first

    def fits(self, module: Any) -> bool:
        """Whether the formula is right for this layer with its settings."""
        return True

    def gradients(self, module: Any, x: torch.Tensor, d: torch.Tensor, names: list[str]) -> Moments:
        """Per-sample gradients, `[samples, *parameter.shape]`, of the parameters in `names`."""
        raise NotImplementedError

    def add_moments(self, module: Any, x: torch.Tensor, d: torch.Tensor, totals: Moments, power: int) -> None:
        """Add the moments of this one use of the layer to `totals`, only for the names in it."""
        names = list(totals)
        step = chunk_length(sum(t.numel() for t in totals.values()), d.device)
        for start in range(0, len(d), step):
            part = slice(start, start + step)
            for name, gradient in self.gradients(module, x[part], d[part], names).items():
                add_power(totals[name], gradient, power)


class _Linear(Rule):
    def gradients(self, module: Any, x: torch.Tensor, d: torch.Tensor, names: list[str]) -> Moments:
        x, d = x.flatten(1, -2), d.flatten(1, -2)
        found = {}
        if "weight" in names:
            found["weight"] = torch.bmm(d.transpose(1, 2), x)
        if "bias" in names:
            found["bias"] = d.sum(1)
        return found

    def add_moments(self, module: Any, x: torch.Tensor, d: torch.Tensor, totals: Moments, power: int) -> None:
        if d.shape[1:-1].numel() > 1:
            super().add_moments(module, x, d, totals, power)
            return
        # With one position per sample |d a^T|^power = |d|^power (|a|^power)^T, so one product sums over samples.
        d = _power(d.flatten(0, -2), power)
        if "weight" in totals:
            totals["weight"].addmm_(d.t(), _power(x.flatten(0, -2), power))
        if "bias" in totals:
            totals["bias"].add_(d.sum(0))


def _power(t: torch.Tensor, power: int) -> torch.Tensor:
    return t.square() if power == 2 else t.abs()


class _Blocks(_Linear):
    """A projection in blocks; each block is a linear map of its own part of the input."""

    def gradients(self, module: Any, x: torch.Tensor, d: torch.Tensor, names: list[str]) -> Moments:
        x, d = x.flatten(1, -2), d.flatten(1, -2)
        found = {}
        if "weight" in names:
            parts = (t.unflatten(-1, (module.groups, -1)) for t in (d, x))
            found["weight"] = torch.einsum("bpgm,bpgn->bgmn", *parts).flatten(1, 2)
        if "bias" in names:
            found["bias"] = d.sum(1)
        return found

    def add_moments(self, module: Any, x: torch.Tensor, d: torch.Tensor, totals: Moments, power: int) -> None:
        Rule.add_moments(self, module, x, d, totals, power)


class _Transposed(_Linear):
    """y = x W + b with W [inputs, outputs]."""

    def gradients(self, module: Any, x: torch.Tensor, d: torch.Tensor, names: list[str]) -> Moments:
        found = super().gradients(module, x, d, names)
        return {name: g.mT if name == "weight" else g for name, g in found.items()}

    def add_moments(self, module: Any, x: torch.Tensor, d: torch.Tensor, totals: Moments, power: int) -> None:
        turned = {name: t.mT if name == "weight" else t for name, t in totals.items()}
        if d.shape[1:-1].numel() == 1:
            super().add_moments(module, x, d, turned, power)
        else:
            Rule.add_moments(self, module, x, d, totals, power)


def is_transposed(module: nn.Module) -> bool:
    """GPT-2's linear layer, called Conv1D, recognised by its name and its shapes."""
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    if type(module).__name__ != "Conv1D" or weight is None or weight.ndim != 2 or len(module._parameters) != 2:
        return False
    return getattr(module, "nf", None) == weight.shape[1] and (bias is None or bias.shape == weight.shape[1:])


class _Conv(Rule):
    folds = False

    def gradients(self, module: Any, x: torch.Tensor, d: torch.Tensor, names: list[str]) -> Moments:
        found = {}
        if "weight" in names:
            weight_gradient = conv_weight_gradient(module)
            if d.device.type == "cpu" or len(d) == 1:
                # One sample's convolution keeps a core busy, and needs no unfolding.
                found["weight"] = torch.stack([weight_gradient(x[i], d[i]) for i in range(len(d))])
            else:
                found["weight"] = torch.vmap(weight_gradient)(x, d)
        if "bias" in names:
            found["bias"] = d.sum([i for i in range(1, d.ndim) if i != 2])
        return found

    def add_moments(self, module: Any, x: torch.Tensor, d: torch.Tensor, totals: Moments, power: int) -> None:
        if d.device.type != "cpu" or "weight" not in totals:
            super().add_moments(module, x, d, totals, power)
            return
        weight_gradient = conv_weight_gradient(module)
        for i in range(len(d)):
            add_power(totals["weight"], weight_gradient(x[i], d[i])[None], power)
        if "bias" in totals:
            super().add_moments(module, x, d, {"bias": totals["bias"]}, power)


def conv_weight_gradient(module: Any) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    explicit = isinstance(module.padding, str) or module.padding_mode != "zeros"
    padding = [0] * len(module.stride) if explicit else list(module.padding)
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    weight = module.weight.detach()
    settings = (list(module.stride), padding, list(module.dilation), False, [0] * len(padding), module.groups)

    def gradient(x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        if explicit:
            x = F.pad(x, module._reversed_padding_repeated_twice, mode=mode)
        wanted = [False, True, False]
        return torch.ops.aten.convolution_backward(d, x, weight.to(d.dtype), None, *settings, wanted)[1]

    return gradient


class _Embedding(Rule):
    def fits(self, module: nn.Embedding) -> bool:
        return module.max_norm is None and not module.scale_grad_by_freq

    def gradients(self, module: nn.Embedding, x: torch.Tensor, d: torch.Tensor, names: list[str]) -> Moments:
        keys, rows = self._rows(module, x, d)
        dense = d.new_zeros(len(d) * module.num_embeddings, module.embedding_dim)
        dense[keys] = rows
        return {"weight": dense.view(len(d), module.num_embeddings, module.embedding_dim)}

    def add_moments(self, module: nn.Embedding, x: torch.Tensor, d: torch.Tensor, totals: Moments, power: int) -> None:
        keys, rows = self._rows(module, x, d)
        totals["weight"].index_add_(0, keys % module.num_embeddings, _power(rows, power))

    @staticmethod
    def _rows(module: nn.Embedding, x: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows each sample touched: a key sample * entries + entry, and the sum over its occurrences."""
        d = d.reshape(-1, module.embedding_dim)
        sample = torch.arange(len(x), device=x.device).repeat_interleave(x[0].numel())
        keys = sample * module.num_embeddings + x.reshape(-1).long()
        if module.padding_idx is not None:
            real = x.reshape(-1) != module.padding_idx
            keys, d = keys[real], d[real]
        unique, inverse = keys.unique(return_inverse=True)
        return unique, d.new_zeros(len(unique), d.shape[1]).index_add_(0, inverse, d)


class _Normalisation(Rule):
    """y = xhat * weight + bias with xhat free of parameters: the gradients are sums of d * xhat and of d."""

    def gradients(self, module: Any, x: torch.Tensor, d: torch.Tensor, names: list[str]) -> Moments:
        others = self.summed(module, d)
        found = {}
        if "weight" in names:
            found["weight"] = (self.normalised(module, x) * d).sum(others)
        if "bias" in names:
            found["bias"] = d.sum(others)
        return found

    def add_moments(self, module: Any, x: torch.Tensor, d: torch.Tensor, totals: Moments, power: int) -> None:
        # Here the activations fill the memory, not the parameters.
        step = chunk_length(d[0].numel(), d.device)
        for start in range(0, len(d), step):
            part = slice(start, start + step)
            for name, gradient in self.gradients(module, x[part], d[part], list(totals)).items():
                add_power(totals[name], gradient, power)

    def normalised(self, module: Any, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def summed(self, module: Any, d: torch.Tensor) -> list[int]:
        """Dimensions of d, [samples, rows, channels, ...], that the parameters do not have."""
        return [i for i in range(1, d.ndim) if i != 2]


class _LayerNorm(_Normalisation):
    def normalised(self, module: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, module.normalized_shape, None, None, module.eps)

    def summed(self, module: nn.LayerNorm, d: torch.Tensor) -> list[int]:
        return list(range(1, d.ndim - len(module.normalized_shape)))


class _RMSNorm(_LayerNorm):
    def normalised(self, module: Any, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, module.normalized_shape, None, module.eps)


class _NamedRMSNorm(_Normalisation):
    """RMSNorm as transformers models write it; a gain of `weight` and one of `1 + weight` have the same derivative."""

    def normalised(self, module: Any, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + _epsilon(module))

    def summed(self, module: Any, d: torch.Tensor) -> list[int]:
        return list(range(1, d.ndim - 1))


def _epsilon(module: nn.Module) -> Any:
    return getattr(module, "variance_epsilon", getattr(module, "eps", None))


def _is_named_rms_norm(module: nn.Module) -> bool:
    weight = module._parameters.get("weight")
    alone = weight is not None and weight.ndim == 1 and len(module._parameters) == 1
    return alone and type(module).__name__.endswith("RMSNorm") and isinstance(_epsilon(module), float)


class _BatchNorm(_Normalisation):
    folds = False

    def fits(self, module: Any) -> bool:
        return not module.training and module.running_mean is not None and module.running_var is not None

    def normalised(self, module: Any, x: torch.Tensor) -> torch.Tensor:
        shape = [1, 1, -1] + [1] * (x.ndim - 3)
        scale = torch.rsqrt(module.running_var + module.eps).view(shape)
        return (x - module.running_mean.view(shape)).mul_(scale)


class _OwnBatchNorm(_BatchNorm):
    """A BatchNorm with its own forward, such as statistics per task; `normalised` is its output with a gain of one."""

    def fits(self, module: Any) -> bool:
        return not module.training and module.weight is not None and module.bias is not None

    def normalised(self, module: Any, x: torch.Tensor) -> torch.Tensor:
        own = dict(module._parameters)
        try:
            module._parameters["weight"] = torch.ones_like(own["weight"])
            module._parameters["bias"] = torch.zeros_like(own["bias"])
            return module.forward(x.flatten(0, 1)).view_as(x)
        finally:
            module._parameters.update(own)


class _GroupNorm(_Normalisation):
    folds = False

    def normalised(self, module: nn.GroupNorm, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        return F.group_norm(flat, module.num_groups, None, None, module.eps).view_as(x)


_TRANSPOSED, _BLOCKS, _NAMED_RMS, _OWN_BATCH = _Transposed(), _Blocks(), _NamedRMSNorm(), _OwnBatchNorm()
_RULES: Mapping[type, Rule] = {
    nn.Linear: _Linear(),
    Projection: _Linear(),
    nn.Conv1d: _Conv(),
    nn.Conv2d: _Conv(),
    nn.Conv3d: _Conv(),
    nn.Embedding: _Embedding(),
    nn.LayerNorm: _LayerNorm(),
    nn.RMSNorm: _RMSNorm(),
    nn.BatchNorm1d: _BatchNorm(),
    nn.BatchNorm2d: _BatchNorm(),
    nn.BatchNorm3d: _BatchNorm(),
    nn.GroupNorm: _GroupNorm(),
}


def rule_for(module: nn.Module) -> Rule | None:
    """The rule for exactly this kind of layer; a subclass has none, because it may compute something else.

    Batch normalisation is the exception: all its many kinds end in a gain and a shift. Rules are tested before use.
    """
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and type(module) not in _RULES:
        return _OWN_BATCH if _OWN_BATCH.fits(module) else None
    if isinstance(module, Projection) and module.groups > 1:
        return _BLOCKS
    rule = _RULES.get(type(module))
    if rule is None:
        return _TRANSPOSED if is_transposed(module) else _NAMED_RMS if _is_named_rms_norm(module) else None
    return rule if rule.fits(module) else None
