"""Anchor: the protected weights, their importance and where both come from, as one .safetensors file.

Save it to continue training months later without the old data. It contains what to protect, and also the unprotected
heads and the buffers (statistics of norm layers) as they were when the task ended. Loading never unpickles anything
and refuses a file in which a single bit has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from drcl import sharding
from drcl.directions.adapters import Adapter, Pair, matched, pairs
from drcl.directions.basis import TENSORS, Eigenbasis, bias_of, orthonormal
from drcl.preserve import check_model
from drcl.version import __version__

FORMAT = "drcl.anchor/3"
_WEIGHT, _IMPORTANCE, _BASIS, _FREE, _BUFFER = "weight/", "importance/", "basis/", "free/", "buffer/"
_STATISTICS, _ADAPTER = "statistics/", "adapter/"


def plain_name(name: str) -> str:
    """A parameter's name without what torch.compile and DistributedDataParallel put in front."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


def own_names(model: nn.Module) -> dict[str, nn.Parameter]:
    """The model's parameters under their plain names; a shared one once, under its first name."""
    sharding.at_rest(model)
    return unwrapped(model, dict(model.named_parameters()))


def own_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The model's buffers that are part of its state, under their plain names."""
    kept = model.state_dict().keys()
    return unwrapped(model, {name: b for name, b in model.named_buffers() if name in kept})


def unwrapped(model: nn.Module, parts: dict[str, Any]) -> dict[str, Any]:
    """The same parts under plain names."""
    names = [n.replace("_orig_mod.", "") for n, _ in model.named_parameters()]
    # A wrapper puts the same prefix before all names; a layer that just happens to be called `module` keeps its name.
    prefix = "module." if names and all(n.startswith("module.") for n in names) else ""
    return {n.replace("_orig_mod.", "").removeprefix(prefix): t for n, t in parts.items()}


def digest(tensors: dict[str, Tensor], about: dict[str, str]) -> str:
    """A digest of everything in a file: names, shapes, types and bytes of all tensors, and the metadata."""
    found = hashlib.sha256(json.dumps({k: v for k, v in about.items() if k != "digest"}, sort_keys=True).encode())
    for name in sorted(tensors):
        t = tensors[name].detach().cpu().contiguous()
        found.update(json.dumps([name, str(t.dtype), list(t.shape)]).encode())
        found.update(t.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def provenance(**facts: Any) -> dict[str, Any]:
    return {"drcl": __version__, "torch": torch.__version__, **facts}


def _bases(tensors: dict[str, Tensor], facts: dict[str, dict[str, Any]]) -> dict[str, Eigenbasis]:
    return {
        name: Eigenbasis.restored(
            {k: tensors[key] for k in TENSORS if (key := f"{_BASIS}{k}/{name}") in tensors}, about
        )
        for name, about in facts.items()
    }


def _adapters(tensors: dict[str, Tensor], facts: dict[str, dict[str, Any]]) -> dict[str, Adapter]:
    parts = ("a", "b", "sketch", *TENSORS)
    return {
        name: Adapter.restored({k: tensors[key] for k in parts if (key := f"{_ADAPTER}{k}/{name}") in tensors}, about)
        for name, about in facts.items()
    }


def _is_measured(key: str) -> bool:
    """Whether a tensor of a file was measured (importance or directions), as opposed to weights."""
    return key.startswith((_IMPORTANCE, _BASIS)) or key.startswith(tuple(f"{_ADAPTER}{k}/" for k in TENSORS))


def _widened(key: str, t: Tensor) -> Tensor:
    """A tensor stored in 16 bits as 32 bits; directions are made orthonormal again."""
    if t.dtype is not torch.bfloat16 or not _is_measured(key):
        return t
    t = t.float()
    if key.startswith(tuple(f"{p}{k}/" for p in (_BASIS, _ADAPTER) for k in ("inputs", "outputs"))) and t.ndim == 3:
        t = orthonormal(t)
    return t


OTHER = "belongs to another model"


class AnchorError(ValueError):
    """An anchor file that cannot be used, and why."""


def _check_kinds(anchor: Anchor) -> None:
    """Raise unless every field is a dict from names to the kind of entry it needs."""
    kinds: dict[str, type] = {"weights": Tensor, "importance": Tensor, "free": Tensor, "buffers": Tensor}
    kinds["statistics"] = Tensor
    for field_name in ("provenance", *kinds, "bases", "adapters"):
        value = getattr(anchor, field_name)
        if not isinstance(value, dict):
            raise AnchorError(f"{field_name} must be a dict, not {type(value).__name__}")
        kind = {**kinds, "bases": Eigenbasis, "adapters": Adapter}.get(field_name, object)
        for name, entry in value.items():
            if not isinstance(entry, kind):
                raise AnchorError(f"{field_name}[{name!r}] must be a {kind.__name__}, not {type(entry).__name__}")


def _as_path(path: Any) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path={path!r} must be the name of a file, not {type(path).__name__}")
    return Path(path)


@dataclass
class Anchor:
    """Weights to stay near, and the importance of each of them.

    ``bases`` are the directions of layers that ``drcl.Kronecker`` protects, by the name of the layer's weight. The
    importance of such a weight is computed from its directions for information only; training uses the directions.
    ``free`` are the unprotected parameters (heads) and ``buffers`` the model's buffers, both as they were when the task
    ended. ``statistics`` are the buffers of norm layers of every task, stacked, with ``norms="per-task"``. ``adapters``
    are low-rank adapters, by the name of the weight they add to: their factors, and the importance of their product.
    """

    weights: dict[str, Tensor]
    importance: dict[str, Tensor]
    provenance: dict[str, Any] = field(default_factory=dict)
    bases: dict[str, Eigenbasis] = field(default_factory=dict)
    free: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    statistics: dict[str, Tensor] = field(default_factory=dict)
    adapters: dict[str, Adapter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_kinds(self)
        if not self.weights and not self.adapters:
            raise AnchorError("an anchor without weights protects nothing")
        for name in self.weights.keys() ^ self.importance.keys():
            raise AnchorError(f"{name!r} needs both a weight and an importance")
        for name, weight in self.weights.items():
            importance = self.importance[name]
            if weight.shape != importance.shape:
                raise AnchorError(
                    f"{name!r}: the weight has shape {tuple(weight.shape)}, its importance {tuple(importance.shape)}"
                )
            if not bool(torch.isfinite(weight).all()) or not bool(torch.isfinite(importance).all()):
                raise AnchorError(f"{name!r} holds NaN or infinite values; make the anchor again from a sound model")
            if bool((importance < 0).any()):
                raise AnchorError(f"{name!r} has negative importance; importance must be >= 0")
        for name, basis in self.bases.items():
            for needed in (name, bias_of(name)) if basis.bias else (name,):
                if needed not in self.weights:
                    raise AnchorError(f"the basis of {name!r} needs {needed!r}, which the anchor does not have")
            try:
                basis.check(self.weights[name])
            except ValueError as reason:
                raise AnchorError(f"{name!r}: {reason}; make the anchor again") from None

        for name, adapter in self.adapters.items():
            try:
                adapter.check()
            except ValueError as reason:
                raise AnchorError(f"the adapter of {name!r}: {reason}; make the anchor again") from None

    def __repr__(self) -> str:
        count = sum(w.numel() for w in self.weights.values())
        if self.adapters:
            parts = f"{len(self.adapters)} adapters, {len(self.weights)} parameters, {count:,} weights"
            return f"Anchor({parts}, {self._age()})"
        return f"Anchor({len(self.weights)} parameters, {count:,} weights, {self._age()})"

    def _age(self) -> str:
        return f"tasks={self.provenance.get('tasks', '?')}"

    def save(self, path: str | os.PathLike[str], dtype: torch.dtype | None = None) -> None:
        """Write the file in one piece: a crash leaves the old file or the new one, never half of either.

        With ``dtype=torch.bfloat16`` importance and directions take half the bytes, with a relative error of at most
        0.4 % per number; weights, free parameters and buffers stay exact.
        """
        path = _as_path(path)
        if dtype not in (None, torch.bfloat16):
            raise ValueError(f"dtype={dtype!r} must be torch.bfloat16, or None to keep full precision")
        tensors = {_WEIGHT + n: w.detach().cpu().contiguous() for n, w in self.weights.items()}
        tensors |= {_IMPORTANCE + n: i.detach().cpu().contiguous() for n, i in self.importance.items()}
        tensors |= {_FREE + n: t.detach().cpu().contiguous() for n, t in self.free.items()}
        tensors |= {_BUFFER + n: t.detach().cpu().contiguous() for n, t in self.buffers.items()}
        tensors |= {_STATISTICS + n: t.detach().cpu().contiguous() for n, t in self.statistics.items()}
        for name, basis in self.bases.items():
            tensors |= {f"{_BASIS}{k}/{name}": t.detach().cpu().contiguous() for k, t in basis.tensors().items()}
        for name, adapter in self.adapters.items():
            tensors |= {f"{_ADAPTER}{k}/{name}": t.detach().cpu().contiguous() for k, t in adapter.tensors().items()}
        if dtype is not None:
            tensors = {key: t.to(dtype) if _is_measured(key) else t for key, t in tensors.items()}
        about = {"format": FORMAT, "provenance": json.dumps(self.provenance)}
        about["bases"] = json.dumps({name: basis.facts() for name, basis in self.bases.items()})
        if self.adapters:
            about["adapters"] = json.dumps({name: adapter.facts() for name, adapter in self.adapters.items()})
        about["digest"] = digest(tensors, about)
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
        os.close(handle)
        try:
            save_file(tensors, part, metadata=about)
            with open(part, "rb+") as written:
                os.fsync(written.fileno())
            os.replace(part, path)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module | None = None) -> Anchor:
        """Read an anchor and check all of it; also check that it fits ``model`` if one is given."""
        path = _as_path(path)
        if model is not None:
            check_model(model, "Anchor.load(path, model)")
        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such anchor file")
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                if about.get("format") != FORMAT:
                    raise AnchorError(
                        f"{path}: a safetensors file, but not a drcl anchor (format {about.get('format')!r}, "
                        f"expected {FORMAT!r}); anchors are written by Anchor.save"
                    )
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except SafetensorError as reason:
            raise AnchorError(
                f"{path}: damaged, truncated or not a safetensors file ({reason}); use another copy of it"
            ) from reason
        if about.get("digest") != digest(tensors, about):
            raise AnchorError(
                f"{path}: the content does not match the digest written with it, so the file was altered or damaged; "
                "use another copy of it"
            )

        tensors = {key: _widened(key, t) for key, t in tensors.items()}

        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}

        try:
            anchor = cls(
                part(_WEIGHT),
                part(_IMPORTANCE),
                json.loads(about.get("provenance", "{}")),
                _bases(tensors, json.loads(about.get("bases", "{}"))),
                part(_FREE),
                part(_BUFFER),
                part(_STATISTICS),
                _adapters(tensors, json.loads(about.get("adapters", "{}"))),
            )
        except (ValueError, TypeError, AttributeError) as reason:
            raise AnchorError(f"{path}: {reason}") from reason
        if model is not None:
            anchor.check(model)
        return anchor

    def check(self, model: nn.Module) -> None:
        """Raise unless every anchored parameter is in the model with the same shape; for adapters, their product."""
        check_model(model, "anchor.check(model)")
        own = own_names(model)
        adapters_in(model, self)
        for name in self.weights:
            if name not in own:
                raise AnchorError(f"the anchor protects {name!r}, which this model does not have: the anchor {OTHER}")
        for name in filter(self.weights.__contains__, own):
            weight = self.weights[name]
            if own[name].shape != weight.shape:
                raise AnchorError(
                    f"{name!r} has shape {tuple(own[name].shape)} here and {tuple(weight.shape)} in the anchor, "
                    f"which {OTHER}"
                )
            if not bool(torch.isfinite(weight.to(own[name].dtype)).all()):
                raise AnchorError(
                    f"{name!r} holds values too large for the model's {own[name].dtype}; use a wider type for the model"
                )

        buffers = own_buffers(model)
        for name, buffer in self.buffers.items():
            if name not in buffers or buffers[name].shape != buffer.shape:
                found = f"of shape {tuple(buffers[name].shape)}" if name in buffers else "missing"
                raise AnchorError(
                    f"the buffer {name!r} is {found} here and of shape {tuple(buffer.shape)} in the anchor, "
                    f"which {OTHER}"
                )

    @torch.no_grad()
    def restore(self, model: nn.Module, prefix: str = "") -> list[str]:
        """Roll back: copy everything whose name starts with ``prefix`` into the model; returns the names.

        A free parameter that the model does not have, or has in another shape (a new head), is skipped with a warning.
        """
        self.check(model)
        if not isinstance(prefix, str):
            raise TypeError(f"prefix={prefix!r} must be a string that names begin with, such as 'body.'")
        own = own_names(model)
        given = {**self.weights, **self.free}
        fits = {n: t for n, t in given.items() if n in own and own[n].shape == t.shape}
        targets: dict[str, Tensor] = {**own, **own_buffers(model)}
        found = {n: t for n, t in {**fits, **self.buffers}.items() if n.startswith(prefix)}
        adapters = {n: pair for n, pair in adapters_in(model, self).items() if n.startswith(prefix)}
        for name in (n for n, pair in adapters.items() if pair.merged):
            raise AnchorError(f"the adapter of {name!r} is merged into it for now; call model.unmerge_adapter() first")
        if not found and not adapters:
            known = ", ".join([*given, *self.adapters])
            raise ValueError(f"prefix: nothing in the anchor starts with {prefix!r}; there are {known}")
        for name in sorted(given.keys() - fits.keys()):
            if name.startswith(prefix):
                warnings.warn(
                    f"drcl: the anchor's {name!r}, which is not protected, does not fit this model and is skipped",
                    stacklevel=2,
                )
        names = [name for name in targets if name in found]
        for name in names:
            sharding.local(targets[name]).copy_(sharding.part(found[name], targets[name]))
        for name, pair in adapters.items():
            pair.take(self.adapters[name])
        return [*names, *adapters]


def adapters_in(model: nn.Module, anchor: Anchor) -> dict[str, Pair]:
    """The model's adapters that match the anchor's; raises if one is missing or does not match."""
    try:
        return matched(pairs(model, own_names(model)), anchor.adapters) if anchor.adapters else {}
    except ValueError as reason:
        raise AnchorError(str(reason)) from None
