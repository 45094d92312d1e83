"""Fine-tuning: train on each task in turn and protect nothing. The lower bound of every table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from drcl.lab.methods.base import Abilities, Method


@dataclass
class SGD(Method):
    """One head per task; heads of other tasks are not in the optimizer, so nothing moves them."""

    name: ClassVar[str] = "sgd"
    about: ClassVar[str] = "fine-tuning, no protection: the lower bound"
    abilities: ClassVar[Abilities] = Abilities(task_ends=False)
