"""Continual fine-tuning with the Trainer of Lightning.

    kept = Continual(anchor="base.safetensors", probes={"old": old_loader})
    Trainer(max_epochs=3, callbacks=[kept]).fit(module, loader)

``configure_optimizers`` returns any torch optimizer, with or without schedulers; the callback puts DRCL around it.
Lightning validates and saves the deployed weights, and the module holds them in the end. A checkpoint has everything
needed to resume exactly.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl

from drcl.integrations.task import Continues, inside


class Continual(Continues, pl.Callback):
    """Protects the module's skills from the first step of ``fit`` on; see ``drcl.integrations.task``."""

    _measured: Mapping[str, Any] | None = None  # measures on the probes, from a checkpoint
    _weights_only = False  # whether checkpoints are saved without calling callbacks

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Put DRCL around the module's optimizer, before a checkpoint's state is loaded into it."""
        if len(trainer.optimizers) != 1:
            raise ValueError(
                f"configure_optimizers made {len(trainer.optimizers)} optimizers; Continual needs exactly one"
            )
        if inside(trainer.optimizers[0]) is None:
            trainer.strategy.optimizers = [self.task.around(trainer.optimizers[0])]
        self._weights_only = any(getattr(callback, "save_weights_only", False) for callback in trainer.callbacks)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        found = inside(trainer.optimizers[0])
        assert found is not None
        resumed, steps = trainer.ckpt_path is not None, trainer.estimated_stepping_batches
        self.task.begin(pl_module, found, resumed, measured=self._measured, steps=steps)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        self.optimizer.train()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        last = trainer.is_last_batch and trainer.current_epoch + 1 == trainer.max_epochs
        if last or trainer.global_step == trainer.max_steps:
            self.task.settle()
        if self._weights_only:
            self.optimizer.eval()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.task.running:
            self.optimizer.eval()  # until the next batch, because Lightning may save after validation

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.task.running:
            self.task.look(pl_module, f"step {trainer.global_step}")

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Put copies of the deployed weights into the checkpoint; Lightning has filled in those of training."""
        if not self.task.begun:
            return
        with self.optimizer.deployed():
            checkpoint["state_dict"] = copy.deepcopy(trainer.strategy.lightning_module_state_dict())
            if "optimizer_states" in checkpoint:
                checkpoint["optimizer_states"] = [copy.deepcopy(self.optimizer.state_dict())]

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.task.end(pl_module, trainer.train_dataloader, show=trainer.is_global_zero)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.retention is None else {"retention": self.retention.facts()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._measured = state_dict.get("retention")
