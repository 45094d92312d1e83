"""Continual fine-tuning with the Trainer of transformers, and with the trl trainers that build on it.

    kept = Continual(anchor="base.safetensors", probes={"old": old_loader})
    trainer = Trainer(model, args, train_dataset=..., callbacks=[kept])
    trainer.train()

The Trainer makes its optimizer as usual, from its own arguments; the callback puts DRCL around it. Checkpoints hold the
deployed weights and everything needed to resume exactly. ``continual(trainer, ...)`` does the same for a trainer that
already exists.

If a model came without its training data, ``self_samples(model, tokenizer, n)`` gives batches of text that the model
writes itself, for ``old=`` and ``consolidate``.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback

from drcl.integrations.generation import self_samples
from drcl.integrations.task import Continues, inside
from drcl.optimizer import DRCL

__all__ = ["Carried", "Continual", "continual", "self_samples"]

CARRIED = "drcl_state"


class Carried(DRCL):
    """DRCL whose state the wrapped optimizer can load too: the Trainer loads a checkpoint before it calls callbacks."""

    def state_dict(self) -> dict[str, Any]:
        assert self.inner is not None
        plain, own = self.inner.state_dict(), super().state_dict()
        first, *others = plain["param_groups"]
        return {**plain, "param_groups": [{**first, CARRIED: own}, *others]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        with contextlib.suppress(AttributeError, TypeError, KeyError, IndexError):  # DRCL reports bad states itself
            state_dict = state_dict["param_groups"][0].get(CARRIED, state_dict)
        super().load_state_dict(state_dict)


class Continual(Continues, TrainerCallback):
    """Protects the model's skills from the first step of ``train()`` on; see ``drcl.integrations.task``."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **things: Any) -> None:
        holder, found = things["optimizer"], inside(things["optimizer"])
        if found is None:
            own: Any = getattr(holder, "optimizer", None)
            found = self.task.around(own, Carried)
            holder.__setstate__({"optimizer": found})  # this also prepares it for a gradient scaler
            saved = own.param_groups[0].pop(CARRIED, None)
            if saved is not None:
                found.load_state_dict(saved)
        past = [entry["retention"] for entry in state.log_history if "retention" in entry]
        self.task.begin(
            things["model"], found, state.global_step > 0, measured=past[-1] if past else None, steps=state.max_steps
        )
        self._log(state)

    def on_step_begin(self, args: Any, state: Any, control: Any, **things: Any) -> None:
        self.optimizer.train()

    def on_step_end(self, args: Any, state: Any, control: Any, **things: Any) -> None:
        if control.should_training_stop:
            self.task.settle()
        if control.should_save:  # the Trainer saves right after this, and calls optimizer.train() before its next step
            self.optimizer.eval()

    on_epoch_end = on_step_end

    def on_save(self, args: Any, state: Any, control: Any, **things: Any) -> None:
        opt = self.optimizer
        if opt.progress.mode == "train" and any({"z", "start"} & held.keys() for _, held in opt.protected()):
            warnings.warn(
                f"drcl: checkpoint-{state.global_step} holds training weights, not the weights to deploy, because a "
                "callback after Continual asked for it; put Continual last among the callbacks",
                stacklevel=2,
            )

    def on_evaluate(self, args: Any, state: Any, control: Any, **things: Any) -> None:
        if self.task.running:
            self.task.look(things["model"], f"step {state.global_step}")
            self._log(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **things: Any) -> None:
        best = args.load_best_model_at_end and state.best_model_checkpoint is not None
        data = things.get("train_dataloader")
        self.task.end(things["model"], data, loaded=best, show=state.is_world_process_zero)
        self._log(state)

    def _log(self, state: Any) -> None:
        """Put the measures into the Trainer's own history, which checkpoints save and restore."""
        if self.retention is not None and self.retention.moments:
            state.log_history.append({"step": state.global_step, "retention": self.retention.facts()})


def continual(trainer: Trainer, *arguments: Any, **options: Any) -> Continual:
    """Make an existing Trainer a continual one: takes the arguments of Continual, returns the callback."""
    callback, make = Continual(*arguments, **options), trainer.create_optimizer

    def create_optimizer(model: nn.Module | None = None) -> torch.optim.Optimizer:
        made = make(model)
        if inside(made) is None:
            trainer.optimizer = callback.task.around(made, Carried)
        return trainer.optimizer

    trainer.create_optimizer = create_optimizer
    trainer.add_callback(callback)
    return callback
