"""Importance gathered while training: the path integral of synaptic intelligence (Zenke, Poole, Ganguli 2017).

How much a weight's own motion lowered the loss, divided by how far it moved. It needs no extra pass over the data, but
it must watch the optimizer from the first step of the task.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from drcl.importance.base import Importance
from drcl.per_sample.plan import Forward, accumulator
from drcl.preserve import check_model

__all__ = ["PathIntegral"]


class _Path:
    """One parameter's path through the task: where it began and by how much it has lowered the loss so far."""

    def __init__(self, parameter: torch.Tensor) -> None:
        self.parameter = parameter
        self.start = parameter.detach().clone()
        self.omega = torch.zeros_like(self.start, dtype=accumulator(self.start))

    def restart(self) -> None:
        self.start.copy_(self.parameter.detach())
        self.omega.zero_()


class PathIntegral(Importance):
    """SI's importance, max(0, omega / (change^2 + damping)) with omega = - integral of gradient times motion.

        importance = drcl.PathIntegral().watch(optimizer)
        ...                                            # train
        optimizer.consolidate(model, None, importance=importance)

    Every step adds -g * (weights after - weights before), with the gradient the optimizer saw. This must be the
    gradient of the task's loss alone, without a penalty for leaving old weights. The motion is the real one, so
    momentum, Adam's scaling and weight decay count. With `step(closure)` every evaluation of the closure ends one piece
    of the path, so several evaluations per step are followed too. After `estimate` a new path begins.
    """

    needs_data: ClassVar[bool] = False

    def __init__(self, damping: float = 0.1) -> None:
        if not isinstance(damping, int | float) or not 0 < damping < float("inf"):
            raise ValueError(f"PathIntegral(damping={damping!r}): damping must be a finite number above 0")
        self.damping = float(damping)
        self.steps = 0
        self._optimizer: Optimizer | None = None
        self._handles: list[RemovableHandle] = []
        self._paths: dict[int, _Path] = {}
        self._pending: list[tuple[_Path, torch.Tensor, torch.Tensor]] = []

    def watch(self, optimizer: Optimizer) -> "PathIntegral":
        """Follow every step of `optimizer` from now on, instead of an optimizer followed before.

        Parameters that were followed already keep their path, so you may replace the optimizer in the middle of a task.
        """
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"watch() needs a torch optimizer, got {type(optimizer).__name__}")
        self.unwatch()
        self._optimizer = optimizer
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        known = self._paths
        self._paths = {}
        for p in self._parameters():
            self._paths[id(p)] = known.get(id(p)) or _Path(p)
        return self

    def unwatch(self) -> None:
        """Stop following; what was gathered stays."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._pending, self._optimizer = [], [], None

    def estimate(
        self,
        model: nn.Module,
        batches: Any,
        parameters: dict[str, nn.Parameter],
        forward: Forward | None = None,
    ) -> dict[str, torch.Tensor]:
        """The importance of `parameters` along the path so far; `batches` and `forward` are not used."""
        check_model(model, "estimate(model, batches, parameters)")
        if not isinstance(parameters, Mapping) or not parameters:
            raise TypeError(f"parameters must be tensors by name, dict(model.named_parameters()), not {parameters!r}")
        if not self.steps:
            raise RuntimeError("PathIntegral has seen no step to integrate over; call watch(optimizer) before training")
        result = {}
        for name, p in parameters.items():
            path = self._paths.get(id(p))
            if path is None or path.start.shape != p.shape:
                raise ValueError(
                    f"parameter {name!r} is not in the optimizer PathIntegral watches, or grew after its last step; "
                    "add it there, or watch the optimizer that trains it"
                )
            change = p.detach().to(path.omega.dtype) - path.start
            result[name] = (path.omega / (change * change + self.damping)).clamp_(min=0)
            if not torch.isfinite(result[name]).all():
                raise FloatingPointError(
                    f"the path of parameter {name!r} is not finite: a gradient or a step was nan or inf; "
                    "look for diverged training first"
                )
        for path in self._paths.values():
            path.restart()
        self.steps = 0
        return result

    def describe(self) -> dict[str, Any]:
        return {"estimator": "PathIntegral", "damping": self.damping, "steps": self.steps}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values, in the order of the optimizer's parameters, to resume from here."""
        paths = [self._paths[id(p)] for p in self._parameters()]
        return {
            "damping": self.damping,
            "steps": self.steps,
            "start": [path.start.clone() for path in paths],
            "omega": [path.omega.clone() for path in paths],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume a saved path; first `watch` an optimizer over the same parameters in the same order."""
        if self._optimizer is None:
            raise RuntimeError("watch(optimizer) first: the state belongs to the parameters of an optimizer")
        if not isinstance(state, Mapping) or not {"damping", "steps", "start", "omega"} <= state.keys():
            raise ValueError("state must be what PathIntegral.state_dict() gave: damping, steps, start and omega")
        parameters = self._parameters()
        shapes = [list(p.shape) for p in parameters]
        for field in ("start", "omega"):
            if not isinstance(state[field], list) or not all(isinstance(t, torch.Tensor) for t in state[field]):
                raise ValueError(f"the state's {field!r} must be a list of tensors; use another copy")
            found = [list(t.shape) for t in state[field]]
            if found != shapes:
                raise ValueError(
                    f"the saved path's {field!r} holds tensors of shapes {found}, the watched optimizer's "
                    f"parameters have {shapes}; load it into an optimizer over the same model"
                )
        for p, start, omega in zip(parameters, state["start"], state["omega"]):
            path = _Path(p)
            path.start.copy_(start)
            path.omega.copy_(omega)
            self._paths[id(p)] = path
        self.damping, self.steps = float(state["damping"]), int(state["steps"])

    def _parameters(self) -> list[torch.Tensor]:
        if self._optimizer is None:
            return [path.parameter for path in self._paths.values()]
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    @torch.no_grad()
    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._pending = []
        # torch passes the arguments of the unbound method: the optimizer comes first.
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._begin_piece()
            return None

        def watched(*a: Any, **k: Any) -> Any:
            self._end_piece()
            value = closure(*a, **k)
            self._begin_piece()
            return value

        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._end_piece()
        self.steps += 1

    @torch.no_grad()
    def _begin_piece(self) -> None:
        for p in self._parameters():
            path = self._paths.get(id(p))
            if path is None or path.start.shape != p.shape:  # a new group, or new rows
                path = self._paths[id(p)] = _Path(p)
            if p.grad is not None:
                gradient = p.grad.to_dense() if p.grad.is_sparse else p.grad
                # Copy the gradient too: an optimizer may overwrite it.
                self._pending.append((path, gradient.clone(), p.detach().clone()))

    @torch.no_grad()
    def _end_piece(self) -> None:
        for path, gradient, before in self._pending:
            wide = path.omega.dtype
            motion = path.parameter.to(wide) - before.to(wide)
            path.omega.addcmul_(gradient.to(wide), motion, value=-1.0)
        self._pending = []
