"""If a step, the end of a task or a load fails halfway, put everything back as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from drcl.optimizer import DRCL


@contextlib.contextmanager
def loading(optimizer: DRCL) -> Iterator[None]:
    """Loading replaces whole objects; if it fails halfway, put back the old ones."""
    owners = [optimizer] if optimizer.inner is None else [optimizer, optimizer.inner]
    before = [(owner, owner.state, owner.param_groups) for owner in owners]
    progress = optimizer.progress
    try:
        yield
    except BaseException:
        for owner, state, groups in before:
            owner.state, owner.param_groups = state, groups
        optimizer.progress = progress
        raise


@contextlib.contextmanager
def all_or_nothing(optimizer: DRCL) -> Iterator[None]:
    """Undo everything if the code inside fails after it changed weights, such as a step with several evaluations."""
    weights = [(p, p.detach().clone()) for g in optimizer.param_groups for p in g["params"]]
    owners = [optimizer] if optimizer.inner is None else [optimizer, optimizer.inner]
    states = [{p: {k: _own(v) for k, v in s.items()} for p, s in owner.state.items()} for owner in owners]
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    progress = optimizer.progress.plain()
    try:
        yield
    except BaseException:
        for p, before in weights:
            p.copy_(before)
        for owner, state in zip(owners, states):
            owner.state.clear()
            owner.state.update(state)
        for group, before in zip(optimizer.param_groups, groups):
            group.update(before)
        for key, value in progress.items():
            setattr(optimizer.progress, key, value)
        raise


def _own(value: Any) -> Any:
    """A copy that is deep enough: optimizers write into tensors and append to lists, but not into tensors in lists."""
    return value.clone() if isinstance(value, Tensor) else list(value) if isinstance(value, list) else value
