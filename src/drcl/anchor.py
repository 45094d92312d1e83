"""Anchor: the protected weights, their importance and where both come from, as one .safetensors file.

It is what an engineer ships beside a model so that the next round of training, months later and without the old data,
knows what to protect. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from drcl.directions.basis import TENSORS, Eigenbasis, bias_of

# The second adds bases; an anchor without any is written as the first.
FORMATS = ("drcl.anchor/1", "drcl.anchor/2")
_WEIGHT, _IMPORTANCE, _BASIS = "weight/", "importance/", "basis/"


def plain_name(name: str) -> str:
    """A parameter's name without what torch.compile and DistributedDataParallel put in front."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


def own_names(model: nn.Module) -> dict[str, nn.Parameter]:
    """The model's parameters under their plain names; a shared one once, under its first name."""
    names = {n.replace("_orig_mod.", ""): p for n, p in model.named_parameters()}
    # A wrapper puts the same word before all of them; a layer that merely is called `module` keeps its name.
    wrapped = bool(names) and all(n.startswith("module.") for n in names)
    return {n.removeprefix("module.") if wrapped else n: p for n, p in names.items()}


def digest(weights: dict[str, Tensor]) -> str:
    """Identifies a model by the names and shapes of its protected parameters."""
    text = json.dumps(sorted((name, list(w.shape)) for name, w in weights.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def provenance(**facts: Any) -> dict[str, Any]:
    import drcl

    return {"drcl": drcl.__version__, "torch": torch.__version__, **facts}


def _bases(tensors: dict[str, Tensor], facts: dict[str, dict[str, Any]]) -> dict[str, Eigenbasis]:
    return {
        name: Eigenbasis.restored(
            {k: tensors[key] for k in TENSORS if (key := f"{_BASIS}{k}/{name}") in tensors}, about
        )
        for name, about in facts.items()
    }


class AnchorError(ValueError):
    """An anchor file that cannot be used, and why."""


@dataclass
class Anchor:
    """Weights to stay near, and how much each of them matters (of mean one a task over all protected weights).

    ``bases`` are the directions of layers that ``drcl.Kronecker`` protects, by the name of the layer's weight; the
    importance of such a weight is what its directions make of it, and is not used itself.
    """

    weights: dict[str, Tensor]
    importance: dict[str, Tensor]
    provenance: dict[str, Any] = field(default_factory=dict)
    bases: dict[str, Eigenbasis] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.provenance, dict):
            raise AnchorError(f"provenance must be a dict, not {type(self.provenance).__name__}")
        if not self.weights:
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

    def __repr__(self) -> str:
        count = sum(w.numel() for w in self.weights.values())
        return f"Anchor({len(self.weights)} parameters, {count:,} weights, tasks={self.provenance.get('tasks', '?')})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file in one piece: a crash leaves the old file or the new one, never half of either."""
        path = Path(path)
        tensors = {_WEIGHT + n: w.detach().cpu().contiguous() for n, w in self.weights.items()}
        tensors |= {_IMPORTANCE + n: i.detach().cpu().contiguous() for n, i in self.importance.items()}
        for name, basis in self.bases.items():
            tensors |= {f"{_BASIS}{k}/{name}": t.detach().cpu().contiguous() for k, t in basis.tensors().items()}
        about = {"format": FORMATS[bool(self.bases)], "digest": digest(self.weights)}
        about |= {"provenance": json.dumps(self.provenance)}
        if self.bases:
            about["bases"] = json.dumps({name: basis.facts() for name, basis in self.bases.items()})
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
        os.close(handle)
        try:
            save_file(tensors, part, metadata=about)
            os.replace(part, path)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module | None = None) -> Anchor:
        """Read an anchor, checked in full before anything is returned; against ``model`` too if one is given."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such anchor file")
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                if about.get("format") not in FORMATS:
                    raise AnchorError(
                        f"{path}: a safetensors file, but not a drcl anchor (format {about.get('format')!r}, "
                        f"expected {' or '.join(map(repr, FORMATS))}); anchors are written by Anchor.save"
                    )
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except SafetensorError as reason:
            raise AnchorError(
                f"{path}: damaged, truncated or not a safetensors file ({reason}); use another copy of it"
            ) from reason
        try:
            anchor = cls(
                {k.removeprefix(_WEIGHT): t for k, t in tensors.items() if k.startswith(_WEIGHT)},
                {k.removeprefix(_IMPORTANCE): t for k, t in tensors.items() if k.startswith(_IMPORTANCE)},
                json.loads(about.get("provenance", "{}")),
                _bases(tensors, json.loads(about.get("bases", "{}"))),
            )
        except (ValueError, TypeError, AttributeError) as reason:
            raise AnchorError(f"{path}: {reason}") from reason
        if about.get("digest") != digest(anchor.weights):
            raise AnchorError(f"{path}: the shapes do not match the digest written with them; the file was altered")
        if model is not None:
            anchor.check(model)
        return anchor

    def check(self, model: nn.Module) -> None:
        """Raise unless every anchored parameter is in the model with the same shape."""
        own = own_names(model)
        for name in self.weights:
            if name not in own:
                raise AnchorError(
                    f"the anchor protects {name!r}, which this model does not have: it is of another model"
                )
        for name in filter(self.weights.__contains__, own):
            weight = self.weights[name]
            if own[name].shape != weight.shape:
                raise AnchorError(
                    f"{name!r} has shape {tuple(own[name].shape)} here and {tuple(weight.shape)} in the anchor, "
                    "which is of another model"
                )
            if not bool(torch.isfinite(weight.to(own[name].dtype)).all()):
                raise AnchorError(
                    f"{name!r} holds values too large for the model's {own[name].dtype}; use a wider type for the model"
                )

    @torch.no_grad()
    def restore(self, model: nn.Module, prefix: str = "") -> list[str]:
        """Roll back: put the anchored weights whose names start with ``prefix`` into the model; returns the names."""
        self.check(model)
        own = own_names(model)
        names = [n for n in own if n in self.weights and n.startswith(prefix)]
        if not names:
            raise ValueError(f"no anchored parameter starts with {prefix!r}; there are {', '.join(self.weights)}")
        for name in names:
            own[name].copy_(self.weights[name])
        return names
