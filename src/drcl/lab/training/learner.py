"""The loop: one network, one method, task after task. It writes no files; it tells a `Watcher` what happens.

Rules it keeps for every method: gradients are dropped, not zeroed; heads of other tasks are not in the optimizer or
have no gradient; each stage has a fresh optimizer; the model's mode is set and never inherited; each accuracy is
measured by running the model. Everything it does follows from its state and the seed, so a run can be interrupted
between any two steps and continues from `state_dict` bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from drcl.lab.common import parallel, seeds
from drcl.lab.methods.base import Batch, Method, Setting, Where
from drcl.lab.networks import Network
from drcl.lab.streams import Stream, Task
from drcl.lab.training import budget, evaluate
from drcl.lab.training.budget import Plan
from drcl.lab.training.cost import Cost
from drcl.lab.training.diary import Diary, loss_is_due
from drcl.lab.training.events import Event, Kind, Watcher
from drcl.lab.training.mixture import Mixture
from drcl.lab.training.plateau import Plateau
from drcl.lab.training.rows import CurvePoint
from drcl.lab.training.samples import Look
from drcl.lab.training.schedule import schedule
from drcl.lab.training.settings import Training
from drcl.lab.training.step import Running, Step
from drcl.lab.training.surroundings import pick_device, surroundings


class Diverged(FloatingPointError):
    """Training has diverged: a loss is not finite."""


class Learner:
    """``Learner(stream, network, method, plan).run()``; then read `matrix`, `cost`, `drifts`."""

    def __init__(
        self,
        stream: Stream,
        model: Network,
        method: Method,
        plan: Plan,
        training: Training | None = None,
        *,
        seed: int = 0,
        watcher: Watcher | None = None,
    ) -> None:
        self.stream, self.plan, self.seed = stream, plan, seed
        self.training = training or Training()
        self.watcher = watcher or Watcher()
        budget.check(stream, plan.schedule, self.training)
        self.device = pick_device(self.training.device)
        self._setting = Setting(
            scenario=stream.scenario,
            tasks=len(stream),
            heads=stream.heads,
            shape=stream.shape,
            seed=seed,
            lr=plan.lr,
            momentum=plan.momentum,
            batch=plan.batch,
            device=self.device,
            optimizer=self.training.optimizer,
            weight_decay=self.training.weight_decay,
            online=stream.online,
        )
        self.method = method
        self.model = method.build(model.to(self.device), self._setting).to(self.device)
        self.cost = Cost(self.device)
        T = len(stream)
        self.matrix = [[math.nan] * T for _ in range(T)]
        self.untrained: list[float] | None = None
        self.online: list[float] = []  # accuracy before the update, per task
        self.after_one_epoch = [math.nan] * T
        self.drifts: list[dict[str, float]] = []  # from the second task on, because the first starts at random weights
        self.step_norms: list[float] = []  # mean length of a step, per task
        self.diary = Diary(T)
        self.steps = 0  # of the whole run
        self.trained = 0  # tasks
        self.at = method.at = Where()
        self._inside = False  # whether the checkpoint was taken inside a task
        self._began = 0.0  # learning time when the task began, in seconds
        self._running = Running(self.device)
        self._before: dict[str, Tensor] = {}
        self._optimizer: torch.optim.Optimizer | None = None
        self._plateau: Plateau | None = None
        self._loaded: dict[str, Any] = {}
        self._told = 0.0

    # ---- the run

    def run(self) -> None:
        """Train on all tasks, or on the remaining ones after a resume."""
        with surroundings(self.training, self.device):
            self._seed()
            if self.untrained is None and self.training.evaluate_unseen and self.steps == 0 and not self._inside:
                self.untrained = self._test(range(len(self.stream)))
            while self.at.task < len(self.stream):
                self._task(self.at.task)
            self._tell("finish", average_accuracy=evaluate.mean(self.matrix[-1]))

    def _seed(self) -> None:
        """While a run trains, it owns the global generator, which dropout draws from."""
        here, states = parallel.world(), self._loaded.pop("rng", [])
        torch.manual_seed(seeds.derive(self.seed, "torch", here.rank))
        if here.rank < len(states):
            torch.set_rng_state(states[here.rank])
        if self.device.type == "cuda" and "cuda" in self._loaded:
            torch.cuda.set_rng_state(self._loaded.pop("cuda").cpu(), self.device)

    def _task(self, index: int) -> None:
        task, method = self.stream[index], self.method
        sources = list(method.data(task, self.stream))
        if not sources:
            self.at.task += 1
            return
        data = Mixture(sources, self.plan.batch, seeds.derive(self.seed, "training"))
        method.setting = budget.setting_of(self._setting, self.training, first=self.trained == 0)
        for each in sources:
            self.model.begin_task(each)
        if not self._inside:
            self._tell("task")
            self._began = self.cost.learning()
            method.before_task(task)
            self._before = self._trunk()
            self._running = Running(self.device)
            self.diary.begin()
            self._inside = True
        for stage in range(self.at.stage, method.stages):
            self._stage(task, data, stage)
            self.at.stage, self.at.step = stage + 1, 0
        # Consolidation is for the tasks to come, so it uses their settings.
        method.setting = budget.setting_of(self._setting, self.training, first=False)
        self._consolidate(task, sources)
        self._judge(index, task, len(sources) == 1)
        self._inside = False
        self.trained += 1
        self.at.task, self.at.stage, self.at.step = index + 1, 0, 0
        self._before, self._optimizer = {}, None
        self.watcher.save(self.state_dict)

    # ---- training

    def _stage(self, task: Task, data: Mixture, stage: int) -> None:
        at, method, training = self.at, self.method, self.training
        at.stage, at.batches = stage, data.batches
        whole = self.plan.steps_of(data.batches, training, first=self.trained == 0)
        at.steps = max(1, round(whole * method.stage_share(stage)))
        if at.step == 0:
            method.before_stage(task, stage)
        optimizer = self._optimizer = method.optimizer(task)
        if "optimizer" in self._loaded:
            optimizer.load_state_dict(self._loaded.pop("optimizer"))
        plateau = self._plateau = Plateau.of(self.plan.schedule, training, optimizer, self._loaded.pop("plateau", None))
        rates = schedule(optimizer, self.plan.schedule, at, plateau)
        look = Look(method, self.diary.samples, self._probe(task) if task.online else None, training.step_norms)
        step = Step(method, optimizer, self._cast(), self._running, self.cost, training.clip, look)
        alone = parallel.world().size == 1
        # All processes must save together, so the clock of a single one cannot decide when.
        every = training.checkpoint_every or (None if alone else 500)
        saved = time.perf_counter()
        if at.step == 0 and stage == 0:
            self._losses()
        self.model.train()
        self.cost.switch("training")
        while at.step < at.steps:
            for batch in data.epoch(at.step // data.batches, at.step % data.batches):
                at.epoch, at.batch = divmod(at.step, data.batches)
                rates()
                step(batch)
                at.step += 1
                self.steps += 1
                now = time.perf_counter()
                if at.batch + 1 == data.batches or at.step == at.steps:
                    self._end_of_epoch(task, data, optimizer)
                elif at.step % training.log_every == 0:
                    self._point(optimizer)
                elif now - self._told > 0.2:
                    self._progress()
                if at.step == at.steps:
                    break
                if (alone and now - saved >= training.checkpoint_seconds) or (every and at.step % every == 0):
                    self._save()
                    saved = time.perf_counter()
        self.cost.switch(None)
        parallel.same_buffers(self.model)
        if plateau is not None:
            plateau.restore(method)
            self._plateau = None

    def _end_of_epoch(self, task: Task, data: Mixture, optimizer: torch.optim.Optimizer) -> None:
        at = self.at
        accuracy = math.nan
        more = at.steps > data.batches or self.method.stages > 1
        if at.step == data.batches and at.stage == 0 and more and self._after_one_epoch(task, len(data.tasks) == 1):
            accuracy = self.after_one_epoch[at.task] = self._test([at.task])[at.task]
            self.model.train()
        if loss_is_due(at):
            self._losses()
        self._point(optimizer, accuracy)
        self._tell("epoch", loss=self._running.last, accuracy=None if math.isnan(accuracy) else accuracy)
        if self._plateau is not None:
            before = self.cost.switch("evaluation")
            if self._plateau.look(self.method, data.tasks, self.training.evaluate_batch, self._cast()):
                at.steps = at.step  # enough
            self.watcher.log({"validation_loss": self._plateau.last}, self.steps)
            self.cost.switch(before)
            self.model.train()

    def _losses(self) -> None:
        """Measure the loss of the first and of the newest task, without influencing anything else."""
        before = self.cost.switch("evaluation")
        self.watcher.records([self.diary.losses(self.method, self.stream, self.at, self.training)])
        self.cost.switch(before)

    def _probe(self, task: Task) -> Callable[[Batch], float]:
        return lambda batch: evaluate.loss_of(self.method, task, batch)

    def _after_one_epoch(self, task: Task, single: bool) -> bool:
        """Whether that accuracy makes sense: there are epochs, and this task alone is trained on."""
        return self.training.first_epoch and single and not task.online

    def _point(self, optimizer: torch.optim.Optimizer, accuracy: float = math.nan) -> None:
        """A point of the training curve: the mean loss since the one before."""
        loss, online = self._running.point()
        self._finite(loss)
        shown = online if self.stream.online else accuracy
        self.watcher.curve(CurvePoint(self.at.task, self.at.epoch, self.at.step, loss, shown))
        values = {"loss": loss, "lr": float(optimizer.param_groups[0]["lr"])}
        self.watcher.log(values | ({"online_accuracy": online} if self.stream.online else {}), self.steps)

    def _progress(self) -> None:
        loss = self._running.glance()
        if parallel.world().size == 1:  # with several processes, the others would wait forever for one that leaves
            self._finite(loss)
        self._tell("step", loss=loss)

    def _finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise Diverged(
                f"{self.method.name}: the loss is {loss} at step {self.at.step} of task {self.at.task + 1}: training "
                "has diverged. Lower lr, or the strength of the method's penalty if it has one"
            )

    def _consolidate(self, task: Task, sources: list[Task]) -> None:
        self._tell("consolidation")
        if task.online:
            self.online.append(self._running.online_accuracy())
        if self.training.step_norms:
            self.step_norms.append(self._running.task["norm"] / max(self._running.task["steps"], 1))
        self.watcher.records(self.diary.end(self.at.task))
        self.cost.switch(None)
        self.diary.values["directions_held"][self.at.task] = self.method.directions_held()
        self.cost.switch("consolidation")
        self.model.eval()
        self.method.after_task(task)
        for each in sources:
            self.model.end_task(each)
        self.cost.gradient_evaluations += self.method.gradients
        self.method.gradients = 0
        self.cost.state_bytes = max(self.cost.state_bytes, self.method.state_bytes())
        self.cost.switch(None)
        seconds = self.diary.values["seconds"][self.at.task] = self.cost.learning() - self._began
        self.cost.per_task_seconds.append(seconds)

    # ---- judgement

    def _judge(self, index: int, task: Task, single: bool) -> None:
        with self.method.deployed():
            now = self._trunk(copy=False)
            rows, summary = evaluate.movement(index, self._before, now)
            self.watcher.records(self.diary.moved(index, self._before, now, summary))
        if summary and self.trained > 0:
            self.drifts.append(summary)
        row = self.matrix[index] = self._test(evaluate.chosen(index, self.stream, self.training))
        if self._after_one_epoch(task, single) and self.at.steps == self.at.batches and self.method.stages == 1:
            self.after_one_epoch[index] = row[index]
        self.watcher.drift(rows)
        self.watcher.row(index, row)
        average = evaluate.mean(row[: index + 1])
        self._tell("evaluation", accuracy=row[index], average_accuracy=average)
        numbers = {f"accuracy/task{j + 1}": value for j, value in enumerate(row) if not math.isnan(value)}
        self.watcher.log(numbers | {"average_accuracy": average}, self.steps)

    def _test(self, chosen: Iterable[int]) -> list[float]:
        """Accuracy on the chosen tasks' test sets; the model is left in evaluation mode."""
        before = self.cost.switch("evaluation")
        out = [math.nan] * len(self.stream)
        self.model.eval()
        parallel.same_buffers(self.model)
        with self.method.deployed():
            for j in chosen:
                out[j] = evaluate.accuracy(
                    self.method,
                    self.stream[j],
                    self.training.evaluate_batch,
                    self._cast(),
                    self.training.evaluate_on,
                )
        self.cost.switch(before)
        return out

    def _trunk(self, copy: bool = True) -> dict[str, Tensor]:
        found = self.model.groups()["trunk"]
        return {name: p.detach().clone() if copy else p.detach() for name, p in found.items()}

    def _cast(self) -> AbstractContextManager[object]:
        if self.training.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _tell(self, kind: Kind, **values: Any) -> None:
        self._told, at = time.perf_counter(), self.at
        event = Event(kind, min(at.task, len(self.stream) - 1), len(self.stream), seconds=self.cost.total(), **values)
        if kind not in ("task", "finish") and at.batches:
            epochs = -(-at.steps // at.batches)
            event = replace(event, epoch=at.epoch, epochs=epochs, step=at.step, steps=at.steps)
        self.watcher.event(event)

    # ---- state

    def _save(self) -> None:
        phase = self.cost.switch(None)
        self.watcher.save(self.state_dict)
        self.cost.switch(phase)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on: tensors and plain values."""
        own = None if self.method.keeps_optimizer or self._optimizer is None else self._optimizer.state_dict()
        state = {
            "at": asdict(self.at),
            "inside": self._inside,
            "steps": self.steps,
            "trained": self.trained,
            "model": dict(self.model.state_dict()),
            "method": self.method.state_dict(),
            "method_gradients": self.method.gradients,
            "optimizer": own,
            "plateau": None if self._plateau is None else self._plateau.state_dict(),
            "before": self._before,
            "began": self._began,
            "running": self._running.state_dict(),
            "matrix": self.matrix,
            "untrained": self.untrained,
            "online": self.online,
            "after_one_epoch": self.after_one_epoch,
            "drifts": self.drifts,
            "step_norms": self.step_norms,
            "diary": self.diary.state_dict(),
            "cost": self.cost.state_dict(),
            "rng": parallel.gathered(torch.get_rng_state()),
        }
        if self.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self.device)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from this state; call `run` afterwards."""
        self.model.load_state_dict(state["model"])
        self.method.load_state_dict(state["method"])
        self.method.gradients = state["method_gradients"]
        self.at = self.method.at = Where(**state["at"])
        self._inside, self.steps = state["inside"], state["steps"]
        self._before = {name: t.to(self.device) for name, t in state["before"].items()}
        self._running = Running(self.device)
        self._running.load_state_dict(state["running"])
        self._began = state["began"]
        for key in ("trained", "matrix", "untrained", "online", "after_one_epoch", "drifts", "step_norms"):
            setattr(self, key, state[key])
        if "diary" in state:  # runs of older versions have none
            self.diary.load_state_dict(state["diary"])
        self.cost.load_state_dict(state["cost"])
        self._loaded = {k: state[k] for k in ("rng", "cuda", "optimizer", "plateau") if state.get(k) is not None}
