"""DRCL as a plugin of Avalanche's strategies.

    kept = Continual(probes={"first": loader})
    strategy = Naive(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), plugins=[kept], ...)
    for experience in benchmark.train_stream:
        strategy.train(experience)

The plugin puts DRCL around the strategy's optimizer and consolidates after every experience. Avalanche clears the state
of parameters that a growing classifier has replaced, and on first use of an optimizer the state of all parameters. The
plugin puts back what is protected, and extends it to the new rows.
"""

from __future__ import annotations

from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.models.utils import avalanche_forward
from torch import Tensor, nn
from torch.utils.data import DataLoader

from drcl.integrations.task import Continues, inside


def forward(model: nn.Module, batch: Any) -> tuple[Any, Any]:
    """Avalanche's batches: inputs, labels and the number of the task, or zero if that is missing."""
    device = next(model.parameters()).device
    inputs, labels = batch[0].to(device), batch[1].to(device)
    task = batch[2].to(device) if len(batch) > 2 else torch.zeros_like(labels)
    return avalanche_forward(model, inputs, task), labels


class Continual(Continues, SupervisedPlugin):
    """Protects every experience from later ones; see ``drcl.integrations.task``.

    ``probes`` are measured before the first experience and after each one; ``save`` is written after each one.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"forward": forward, **options})
        self._named: dict[str, Tensor] = {}  # what the optimizer trains, by name
        self._kept: dict[Tensor, dict[str, Any]] = {}  # its state before Avalanche clears it

    def before_training(self, strategy: Any, *_: Any, **__: Any) -> None:
        if inside(strategy.optimizer) is None:
            strategy.optimizer = self.task.around(strategy.optimizer)

    def before_train_dataset_adaptation(self, strategy: Any, *_: Any, **__: Any) -> None:
        """The last hook before the model grows and Avalanche calls ``update_optimizer``."""
        opt = inside(strategy.optimizer)
        assert opt is not None
        if not self._named:
            names = {p: name for name, p in strategy.model.named_parameters()}
            self._named = {names[p]: p for g in opt.param_groups for p in g["params"] if p in names}
        self._kept = {p: dict(state) for p, state in opt.state.items()}

    def before_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        opt, now = inside(strategy.optimizer), dict(strategy.model.named_parameters())
        assert opt is not None
        for name, old in self._named.items():
            new = now.get(name, old)
            if new is not old:  # Avalanche has put the new parameter in its place, without state
                opt.state.pop(new, None)
                for group in opt.param_groups:
                    group["params"][:] = [old if p is new else p for p in group["params"]]
            if old in self._kept:
                opt.state[old] = self._kept[old]
            if new is not old:
                opt.grow(old, new)
        self._named, self._kept = now, {}
        if not self.task.begun:
            self.task.begin(strategy.model, opt, resumed=False)

    def before_training_iteration(self, strategy: Any, *_: Any, **__: Any) -> None:
        self.optimizer.train()

    def before_eval(self, strategy: Any, *_: Any, **__: Any) -> None:
        if self.task.begun:
            self.optimizer.eval()

    def after_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        data = strategy.experience.dataset
        batches = DataLoader(data, batch_size=strategy.train_mb_size, collate_fn=getattr(data, "collate_fn", None))
        self.task.settle()
        self.task.look(strategy.model, f"experience {strategy.experience.current_experience}")
        self.task.consolidate(strategy.model, batches)

    def after_training(self, strategy: Any, *_: Any, **__: Any) -> None:
        if self.retention is not None:
            print(self.retention)
