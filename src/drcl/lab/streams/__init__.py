"""Streams of tasks. They are cut from a data set here; the learner trains on one task after the other."""

from collections.abc import Callable

from drcl.lab.common.registry import Registry
from drcl.lab.streams.assembly import shared_stream, shared_task
from drcl.lab.streams.builders import (
    attributes,
    chain,
    class_split,
    label_permutations,
    permuted_inputs,
    permuted_labels,
    rotated_inputs,
    shards,
)
from drcl.lab.streams.online import online
from drcl.lab.streams.parts import Parts, split_parts
from drcl.lab.streams.task import Scenario, Stream, Task

# The names used in benchmark descriptions. Plugins can add their own builders.
BUILDERS: Registry[Callable[..., Stream]] = Registry(
    "builder",
    lambda: {
        "class-split": class_split,
        "permuted-inputs": permuted_inputs,
        "permuted-labels": permuted_labels,
        "rotated-inputs": rotated_inputs,
        "attributes": attributes,
        "shards": shards,
        "chain": chain,
        "online": online,
    },
)

__all__ = [
    "BUILDERS",
    "Parts",
    "Scenario",
    "Stream",
    "Task",
    "attributes",
    "chain",
    "class_split",
    "label_permutations",
    "online",
    "permuted_inputs",
    "permuted_labels",
    "rotated_inputs",
    "shards",
    "shared_stream",
    "shared_task",
    "split_parts",
]
