"""Low-rank adapters (LoRA) in a model, an optimizer or an anchor: two thin factors, held by their product.

Layers of peft are recognised by their attributes: a ``base_layer``, factors by the adapter's name in ``lora_A`` and
``lora_B``, and a ``scaling``. peft itself is not imported. `drcl.directions.lowrank` says why the product is held.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from drcl import sharding
from drcl.directions.basis import TENSORS, Eigenbasis, as_weight
from drcl.importance.base import importance_dtype


def thin(a: Tensor, b: Tensor, turned: bool) -> tuple[Tensor, Tensor]:
    """The factors of the product in the weight's orientation, [rows, r] and [columns, r]."""
    a, b = a.flatten(1).mT, b.flatten(1)
    return (a, b) if turned else (b, a)


def gathered(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both factors in whole: they are small, and every process of a sharded model has to ask."""
    return sharding.full(a.detach()), sharding.full(b.detach())


@dataclass(frozen=True)
class Adapter:
    """Two thin factors, and the importance of their product. In an anchor the factors are copies."""

    a: Tensor  # [r, inputs]
    b: Tensor  # [outputs, r]
    scale: float
    turned: bool  # the weight is stored as [inputs, outputs]
    sketch: Tensor  # of the weight without the adapter
    basis: Eigenbasis

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the product, which is also the weight's."""
        rows, columns = thin(self.a, self.b, self.turned)
        return rows.shape[0], columns.shape[0]

    def product(self) -> Tensor:
        """The whole product s B A, in the shape of the weight."""
        return product(self.a, self.b, self.scale, self.turned)

    def importance(self) -> tuple[Tensor, Tensor]:
        """The importance of each weight of A and of B that follows from the product's, for reports."""
        whole = self.basis.at_work(importance_dtype(self.a)).diagonal()[0][0, 0]
        rows, columns = (t.to(whole.dtype).square() for t in thin(*gathered(self.a, self.b), self.turned))
        left, right = whole @ columns * self.scale**2, whole.mT @ rows * self.scale**2
        a, b = (left, right) if self.turned else (right, left)
        return a.mT.reshape(self.a.shape), b.reshape(self.b.shape)

    # -- being stored ----------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        return {"a": self.a, "b": self.b, "sketch": self.sketch, **self.basis.tensors()}

    def facts(self) -> dict[str, Any]:
        return {"scale": self.scale, "turned": self.turned, **self.basis.facts()}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Adapter:
        """From `tensors()` and `facts()`; ValueError if they do not belong together."""
        if not {"a", "b", "sketch"} <= set(tensors) or not {"scale", "turned"} <= set(facts):
            raise ValueError("an adapter is incomplete")
        basis = Eigenbasis.restored({k: t for k, t in tensors.items() if k in TENSORS}, facts)
        own = {k: tensors[k] for k in ("a", "b", "sketch")}
        return cls(**own, scale=float(facts["scale"]), turned=bool(facts["turned"]), basis=basis)

    def check(self) -> None:
        """ValueError unless all parts are finite and fit each other."""
        a, b = self.a, self.b
        if a.ndim < 2 or b.ndim < 2 or a.shape[0] != b.flatten(1).shape[1]:
            raise ValueError(f"the factors of an adapter have shapes {tuple(a.shape)} and {tuple(b.shape)}")
        if self.sketch.shape != self.shape[:1] or self.basis.bias:
            raise ValueError(f"an adapter of shape {self.shape} does not fit what is kept of its weight")
        for name, t in (("A", a), ("B", b), ("sketch", self.sketch), ("scale", torch.tensor(self.scale))):
            if not bool(torch.isfinite(sharding.local(t)).all()):
                raise ValueError(f"the {name} of an adapter holds NaN or infinite values")
        self.basis.check(torch.Size(self.shape))


# -- in a model --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """An adapter in a model, and the weight that it adds to."""

    name: str  # of the weight
    weight: Tensor
    a: nn.Parameter
    b: nn.Parameter
    scale: float
    turned: bool
    merged: bool  # whether the weight includes the product at the moment

    def sketch(self) -> Tensor:
        """The weight times a random vector, always the same one: enough to tell whether the weight has changed."""
        found = sketched(sharding.full(self.weight.detach()).flatten(1))
        return found - self.product_sketch() if self.merged else found

    def product_sketch(self) -> Tensor:
        rows, columns = (t.float() for t in thin(*gathered(self.a, self.b), self.turned))
        return self.scale * (rows @ sketched(columns.mT))

    def held(self, importance: Tensor, basis: Eigenbasis | None) -> Adapter:
        """The adapter with the importance of its weight, along directions if there are any."""
        if basis is None or basis.eigenvalues.shape[:2] != (1, 1) or basis.bias:
            whole = importance.flatten(1)[None, None]
            sides = whole.new_zeros(1, whole.shape[3]), whole.new_zeros(1, whole.shape[2])
            basis = Eigenbasis(None, None, whole.contiguous(), *sides, False)
        return Adapter(self.a, self.b, self.scale, self.turned, self.sketch(), basis)

    def like(self, saved: Adapter, dtype: torch.dtype) -> Adapter:
        """These factors with copies of the importance of another adapter that has the same product."""
        made = replace(saved, scale=self.scale, sketch=self.sketch())
        return cast(made, self.a, self.b, dtype)

    def has_merged(self, saved: Adapter) -> bool:
        """Whether the saved product is already merged into the weight here; ValueError if it is another weight."""
        base, now = saved.sketch.to(self.weight.device).double(), self.sketch().double()
        rows, columns = (t.detach().float() for t in thin(saved.a, saved.b, saved.turned))
        more = (saved.scale * (rows @ sketched(columns.mT))).to(base)
        size, moved = float(base.norm()), float((now - base).norm())
        if moved <= 1e-5 * size:
            return False
        rounding = 4 * torch.finfo(self.weight.dtype).eps * size
        if float((now - base - more).norm()) <= max(0.01 * float(more.norm()), rounding):
            return True
        raise ValueError(
            f"the weight {self.name!r} is not the one that the anchor's adapter was trained on, with or without the "
            "adapter merged into it; use the model that the anchor was made with"
        )

    @torch.no_grad()
    def take(self, saved: Adapter) -> None:
        """Put the saved product into the adapter; if the weight already includes it, make the adapter zero."""
        down, up = (t.clone() for t in gathered(self.a, self.b))
        up.zero_()
        if not self.has_merged(saved):
            a, b = fitted(saved, self.a.shape[0])
            down[: len(a)].copy_(a)
            up[:, : b.shape[1]].copy_(b * (saved.scale / self.scale) if saved.scale != self.scale else b)
        sharding.put(self.a, down)
        sharding.put(self.b, up)


def fitted(saved: Adapter, rank: int) -> tuple[Tensor, Tensor]:
    """Factors of the same product with at most this rank; ValueError if the product needs more."""
    if saved.a.shape[0] <= rank:
        return saved.a, saved.b
    a, b = saved.a.flatten(1).double(), saved.b.flatten(1).double()
    (q, left), (p, right) = torch.linalg.qr(b), torch.linalg.qr(a.mT)
    u, s, v = torch.linalg.svd(left @ right.mT)
    if float(s[rank:].norm()) > 1e-6 * float(s.norm()):
        raise ValueError(
            f"the anchor's adapter has rank {saved.a.shape[0]}, but this model's has only rank {rank}; "
            f"give it r={saved.a.shape[0]} or more, or merge the old adapter into the model first"
        )
    root = s[:rank].sqrt()
    a, b = (p @ v.mT[:, :rank] * root).mT, q @ u[:, :rank] * root
    return a.reshape(rank, *saved.a.shape[1:]).to(saved.a.dtype), b.reshape(len(b), rank, *saved.b.shape[2:]).to(
        saved.b.dtype
    )


def sketched(matrix: Tensor) -> Tensor:
    signs = torch.randint(2, (matrix.shape[1],), generator=torch.Generator().manual_seed(0))
    return matrix.float() @ (2 * signs - 1).to(matrix.device, torch.float32)


def product(a: Tensor, b: Tensor, scale: float, turned: bool) -> Tensor:
    rows, columns = thin(a, b, turned)
    return scale * (rows @ columns.mT)


def pairs(model: nn.Module, own: Mapping[str, Tensor], chosen: set[Tensor] | None = None) -> dict[str, Pair]:
    """The active adapters, by the name of the weight that each adds to.

    `own` are the model's parameters by name. If `chosen` is given, both factors must be among them: a factor whose
    partner is not trained multiplies a constant, so it is a weight like any other.
    """
    names = {id(p): name for name, p in own.items()}
    found: dict[str, Pair] = {}
    for module in model.modules():
        base: Any = getattr(module, "base_layer", None)
        for kind in ("lora", "lora_embedding"):
            candidates = _factors(module, kind) if isinstance(base, nn.Module) else {}
            trained = {k: ab for k, ab in candidates.items() if all(p.requires_grad for p in ab)} or candidates
            if chosen is not None:
                trained = {k: ab for k, ab in candidates.items() if set(ab) <= chosen}
            if not trained:
                continue
            weight: Any = getattr(base, "weight", None)
            name = names.get(id(weight), f"{names[id(next(iter(trained.values()))[0])]} (no weight)")
            if len(trained) > 1:
                raise ValueError(f"{name!r} has several active adapters, {', '.join(trained)}; train one at a time")
            if not found:
                refuse_quantised(model)
            key, (a, b) = next(iter(trained.items()))
            turned = kind == "lora_embedding" or bool(getattr(module, "fan_in_fan_out", False))
            _check(module, base, name, key, a, b, turned)
            merged = key in getattr(module, "merged_adapters", ())
            found[name] = Pair(name, weight, a, b, float(module.scaling[key]), turned, merged)  # type: ignore[index]
    return found


def matched(found: Mapping[str, Pair], adapters: Mapping[str, Adapter]) -> dict[str, Pair]:
    """The model's adapters that match the given ones; ValueError if one is missing or does not match."""
    for name, saved in adapters.items():
        if name not in found:
            raise ValueError(
                f"the anchor protects an adapter of {name!r}, but this model has none there: the anchor belongs to "
                "another adapter; make one with the same target_modules"
            )
        pair = found[name]
        here = tuple(pair.weight.flatten(1).shape)
        if here != saved.shape or pair.turned != saved.turned or pair.a.shape[1:] != saved.a.shape[1:]:
            raise ValueError(
                f"the adapter of {name!r} makes a product of shape {here} here and {saved.shape} in the anchor, which "
                "belongs to another model"
            )
        if not pair.has_merged(saved):
            fitted(saved, pair.a.shape[0])
    return {name: found[name] for name in adapters}


def _factors(module: Any, kind: str) -> dict[str, tuple[nn.Parameter, nn.Parameter]]:
    """A and B of every active adapter of a layer."""
    down: Any = getattr(module, f"{kind}_A", None)
    up: Any = getattr(module, f"{kind}_B", None)
    if not isinstance(down, nn.ModuleDict | nn.ParameterDict) or not hasattr(module, "scaling"):
        return {}
    active = getattr(module, "active_adapters", list(down.keys()))
    active = [active] if isinstance(active, str) else active
    both = [key for key in down.keys() if key in up and key in active]  # noqa: SIM118
    return {k: (_weight(down[k]), _weight(up[k])) for k in both}


def _weight(factor: Any) -> Any:
    """The weight of a layer; a bare parameter is its own weight."""
    return getattr(factor, "weight", factor)


def _check(module: Any, base: Any, name: str, key: str, a: Tensor, b: Tensor, turned: bool) -> None:
    """ValueError unless the layer adds scale * B A to its weight."""
    for p in (a, b, getattr(base, "weight", a)):
        if not sharding.is_sharded(p) and type(p).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            raise ValueError(
                f"the adapter of {name!r} has a {type(p).__name__}, whose values lie in other tensors (quantised, "
                "say); adapters are held by their product in ordinary tensors or those of FSDP2: load them as such, or "
                "put their parameters in a group with free=True"
            )
    use_dora = getattr(module, "use_dora", {})
    if key in getattr(module, "lora_variant", {}) or (isinstance(use_dora, Mapping) and use_dora.get(key)):
        raise ValueError(
            f"the adapter of {name!r} is a variant of LoRA (such as DoRA) that does more than add B A to the weight; "
            "use plain LoRA, or put its parameters in a group with free=True"
        )
    weight, rows, columns = getattr(base, "weight", None), *thin(a, b, turned)
    shape = rows.shape[0], columns.shape[0]
    if not isinstance(weight, Tensor) or weight.ndim < 2 or tuple(weight.flatten(1).shape) != shape:
        found = tuple(weight.shape) if isinstance(weight, Tensor) else "none"
        raise ValueError(
            f"the adapter of {name!r} makes a product of shape {shape}, but the weight there has shape {found}; put "
            "its parameters in a group with free=True"
        )


def refuse_quantised(model: nn.Module) -> None:
    """ValueError if weights of the model are packed into fewer bits."""
    told = [word for word in ("is_loaded_in_4bit", "is_loaded_in_8bit") if getattr(model, word, False) is True]
    for name, p in model.named_parameters():
        if hasattr(p, "quant_state") or type(p).__name__ in ("Params4bit", "Int8Params") or told:
            raise ValueError(
                f"the model is quantised: parameter {name!r} is a {type(p).__name__} of {p.dtype}. Importance cannot "
                "be measured with weights of 4 or 8 bits; load the model in 16 or 32 bits, without load_in_4bit or "
                "load_in_8bit"
            )


def weight_importance(basis: Eigenbasis, weight: Tensor) -> Tensor:
    """The importance of each weight of an adapter's layer, in its shape."""
    return as_weight(basis.diagonal()[0], weight)


def cast(adapter: Adapter, a: Tensor, b: Tensor, dtype: torch.dtype) -> Adapter:
    """The adapter with other factors and copies of everything else."""
    sketch = adapter.sketch.detach().to(a.device, copy=True)
    return replace(adapter, a=a, b=b, sketch=sketch, basis=adapter.basis.cast(a, dtype))
