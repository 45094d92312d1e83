"""Look at a model without leaving a trace.

Importance is estimated in the middle of training. So whatever the estimator does to modes, gradients, buffers and
random generators inside this context is undone at its end, even after an exception.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = ["check_model", "undisturbed"]


def check_model(model: Any, call: str) -> None:
    """Raise unless this is a model; `call` shows the right call."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}: {call}")


@contextmanager
def undisturbed(model: nn.Module, seed: int | None = None) -> Iterator[None]:
    """Leave `model` and the global random generators exactly as they were found.

    Inside, gradients can be computed even if the caller has switched them off, every `.grad` is None, autocast is off,
    nothing is compiled, and the layers' fused inference path (which bypasses hooks) is off. With a `seed` the global
    generators start from it, so that random data augmentation does not depend on what ran before. Weights are not
    copied: code inside must not write to them.
    """
    check_model(model, "undisturbed(model)")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer)):
        raise TypeError(f"seed={seed!r} must be a whole number, or None to leave the generators as they are")
    modes = [(module, module.training) for module in model.modules()]
    # A frozen norm layer (drcl.norms) is always in evaluation mode and remembers the mode it was asked for.
    frozen: list[Any] = [own for module in model.modules() if hasattr(own := module.__dict__.get("train"), "asked")]
    asked = [own.asked for own in frozen]
    parameters = [(p, p.requires_grad, p.grad) for p in model.parameters()]
    buffers = [
        (module, name, buffer, None if buffer is None else buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    generators = _generator_states()
    fastpath = torch.backends.mha.get_fastpath_enabled()
    device = next((p.device.type for p, _, _ in parameters), "cpu")
    try:
        if seed is not None:
            _seed(seed)
        for p, _, _ in parameters:
            p.grad = None
        torch.backends.mha.set_fastpath_enabled(False)
        exact = torch.autocast(device, enabled=False)
        with torch.inference_mode(False), torch.enable_grad(), exact, _eager():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
        for module, training in modes:
            module.training = training
        for own, mode in zip(frozen, asked):
            own.asked = mode
        for p, requires_grad, grad in parameters:
            if p.requires_grad != requires_grad:
                p.requires_grad_(requires_grad)
            p.grad = grad
        with torch.no_grad():
            for module, name, buffer, copy in buffers:
                module._buffers[name] = buffer
                # Only when it changed: a needless write would invalidate a graph the caller holds.
                if buffer is not None and copy is not None and not torch.equal(buffer, copy):
                    buffer.copy_(copy)
        _restore_generators(generators)


def _eager() -> AbstractContextManager[Any]:
    """Run compiled code as it was written; a compiled layer would not call hooks added later."""
    # Loading the compiler takes seconds; while it is not loaded, nothing can be compiled.
    if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):
        return torch.compiler.set_stance("force_eager")
    return nullcontext()


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (the global generator is what user code may draw from)
    random.seed(seed)


def _generator_states() -> dict[str, Any]:
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),  # noqa: NPY002
        "python": random.getstate(),
    }
    # Asking an idle accelerator for its state would start it; before that it has no state to keep.
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    return states


def _restore_generators(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    random.setstate(states["python"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])
    if "mps" in states:
        torch.mps.set_rng_state(states["mps"])
