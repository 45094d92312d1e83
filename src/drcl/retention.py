"""What you kept, what you learned: a measure of a model on named sets of data, before, during and after training.

    retention = Retention({"python": old_loader, "english": new_loader}, learned=["english"])
    retention.measure(model, "before")
    ...                                        # train
    retention.measure(model, "after", opt)
    print(retention)

The measure is the cross entropy unless you give another function; the change is its value after minus its value before.
After `consolidate`, ``retention.record(opt)`` puts the numbers into the anchor's provenance.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drcl.importance.arguments import bare, checked
from drcl.importance.batches import default_forward
from drcl.importance.outputs import scored
from drcl.optimizer import DRCL
from drcl.per_sample.draw import batch_length
from drcl.per_sample.plan import Forward
from drcl.preserve import check_model, undisturbed

Metric = Callable[[nn.Module, Iterable[Any]], float]


def cross_entropy(model: nn.Module, batches: Iterable[Any], forward: Forward | None = None) -> float:
    """The mean of -log p over all labels of the batches; positions labelled -100 do not count.

    Batches are as for ``consolidate``: ``(inputs, labels)``, or dicts by the names of the model's arguments.
    """
    ask = default_forward if forward is None else checked(forward)
    total, count = 0.0, 0
    for batch in batches:
        output, target = ask(model, batch)
        try:
            parts = scored(output, target, batch_length(batch), None, "cross_entropy")
        except (TypeError, ValueError) as reason:
            raise type(reason)(
                "cross entropy over classes is not defined for this output and these targets; pass "
                "Retention(metric=...), a function of the model and the batches that returns a number"
            ) from reason
        for part in parts:
            rows, labels = part.rows(), part.labels
            if labels is None or len(labels) != len(rows):
                raise ValueError(
                    "the batches have no label for each position of the output, and cross entropy needs them: "
                    "(inputs, labels), or a dict with 'labels'"
                )
            if part.counted is not None:
                rows, labels = rows[part.counted], labels[part.counted]
            total += float(F.cross_entropy(rows.float(), labels.long(), reduction="sum").double())
            count += len(rows)
    if not count:
        raise ValueError("there are no labels to measure on: the batches are empty, or all their labels are -100")
    return total / count


def measure(
    model: nn.Module,
    probes: Mapping[str, Iterable[Any]],
    metric: Metric | None = None,
    forward: Forward | None = None,
) -> dict[str, float]:
    """The measure of the model on each set of data, in eval mode; the model is left as it was."""
    check_model(model, "measure(model, probes)")
    _check(probes, metric, forward)
    model, found = bare(model), {}
    with undisturbed(model, seed=0), torch.no_grad():
        model.eval()
        for name, batches in probes.items():
            try:
                value = metric(model, batches) if metric is not None else cross_entropy(model, batches, forward)
            except (TypeError, ValueError) as reason:
                raise type(reason)(f"probe {name!r}: {reason}") from reason
            if isinstance(value, Tensor) and value.numel() == 1:
                value = value.item()
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"probe {name!r}: metric must return a number, not {type(value).__name__}")
            found[name] = float(value)
    return found


def _check(probes: Any, metric: Any, forward: Any) -> None:
    if not isinstance(probes, Mapping) or not probes or not all(isinstance(n, str) for n in probes):
        raise TypeError(f"probes={probes!r} must be batches by name, such as {{'old': loader}}")
    for name, batches in probes.items():
        if iter(batches) is batches if isinstance(batches, Iterable) else True:
            raise TypeError(
                f"probe {name!r} is a {type(batches).__name__}, which can be read only once: give a DataLoader or a "
                "list of batches"
            )
    if metric is not None and not callable(metric):
        raise TypeError(f"metric={metric!r} must be a function: metric(model, batches) returns a number")
    if forward is not None and not callable(forward):
        raise TypeError(f"forward={forward!r} must be a function: forward(model, batch) returns (output, target)")


def _check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, DRCL):
        raise TypeError(f"optimizer must be the drcl.DRCL that trains the model, not {type(optimizer).__name__}")


class Retention:
    """Measures on named probe sets, moment by moment; prints as a table of what was kept and what was learned.

    Args:
        probes: batches by name, such as DataLoaders of held-out data.
        learned: the names of the probes that training should improve; all others should be kept.
        metric: ``metric(model, batches)`` in place of the cross entropy; it is called in eval mode without gradients.
        title: what the table calls the measure.
        forward: ``forward(model, batch) -> (outputs, targets)`` for batches in any other form.
    """

    def __init__(
        self,
        probes: Mapping[str, Iterable[Any]],
        learned: Iterable[str] = (),
        metric: Metric | None = None,
        title: str | None = None,
        forward: Forward | None = None,
    ) -> None:
        _check(probes, metric, forward)
        if not isinstance(learned, Iterable):
            raise TypeError(f"learned={learned!r} must be the names of probes, such as ['new']")
        if title is not None and not isinstance(title, str):
            raise TypeError(f"title={title!r} must be what the table calls the measure, or None")
        self.probes, self.metric, self.forward = dict(probes), metric, forward
        self.learned = [learned] if isinstance(learned, str) else list(learned)
        for name in self.learned:
            if name not in self.probes:
                raise ValueError(f"learned: there is no probe {name!r}; there are {', '.join(map(repr, self.probes))}")
        self.title = title or ("cross entropy" if metric is None else getattr(metric, "__name__", "metric"))
        self.moments: dict[str, dict[str, float]] = {}  # in the order in which they were measured

    def measure(self, model: nn.Module, when: str, optimizer: DRCL | None = None) -> dict[str, float]:
        """Measure now and store it under this name; with an optimizer, at its deployed weights."""
        if not isinstance(when, str):
            raise TypeError(f"when={when!r} must be a name for this moment, such as 'before' or 'after'")
        if optimizer is not None:
            _check_optimizer(optimizer)
        with contextlib.nullcontext() if optimizer is None else optimizer.deployed():
            found = measure(model, self.probes, self.metric, self.forward)
        self.moments.pop(when, None)
        self.moments[when] = found
        return found

    def changes(self) -> dict[str, float]:
        """The last measure of each probe minus its first."""
        if len(self.moments) < 2:
            raise RuntimeError("a change needs two moments: call measure(model, 'before') and measure(model, 'after')")
        first, *_, last = self.moments.values()
        return {name: last[name] - first[name] for name in self.probes}

    def facts(self) -> dict[str, Any]:
        """All that was measured, as plain values."""
        return {
            "measure": self.title,
            "learned": list(self.learned),
            "moments": {w: dict(m) for w, m in self.moments.items()},
        }

    def load(self, facts: Mapping[str, Any]) -> None:
        """Continue with what `facts` returned, for example after a restart."""
        try:
            moments = {str(w): {name: float(m[name]) for name in self.probes} for w, m in facts["moments"].items()}
        except (TypeError, KeyError, ValueError, AttributeError) as reason:
            raise ValueError(f"these facts are from a Retention with other probes ({reason!r})") from None
        self.moments = moments

    def record(self, optimizer: DRCL) -> None:
        """Put the numbers into the provenance of the optimizer's anchor, with the task that ended last."""
        _check_optimizer(optimizer)
        if not optimizer.progress.made:
            raise RuntimeError("there is no task to record this with: call opt.consolidate(model, batches) first")
        optimizer.progress.made[-1]["retention"] = self.facts()

    def __str__(self) -> str:
        moments = [m for m in self.moments if m in (next(iter(self.moments)), next(reversed(self.moments)))]
        head = ["", *moments, *(["change"] if len(moments) == 2 else [])]
        lines = [head]
        for title, names in self._sections():
            lines.append([title])
            for name in names:
                values = [self.moments[m][name] for m in moments]
                more = [f"{values[1] - values[0]:+.4g}"] if len(values) == 2 else []
                lines.append([f"  {name}", *(f"{v:.4g}" for v in values), *more])
        width = [max(len(line[i]) for line in lines if i < len(line)) for i in range(len(head))]
        text = [
            "  ".join([c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, width))])
            for line in lines
        ]
        return "\n".join([f"{self.title}", *(line.rstrip() for line in text)])

    def _sections(self) -> list[tuple[str, list[str]]]:
        kept = [name for name in self.probes if name not in self.learned]
        parts = [("what you kept", kept), ("what you learned", self.learned)]
        return [(title, names) for title, names in parts if names]
