"""Tasks and heads of the three scenarios."""

from __future__ import annotations

from tests.lab.streams.toys import toy

from drcl.lab import streams


def test_scenarios_number_labels_and_heads():
    data = toy(classes=6)
    own = streams.class_split(data, seed=1, classes_per_task=2, scenario="task")
    shared = streams.class_split(data, seed=1, classes_per_task=2, scenario="domain")
    growing = streams.class_split(data, seed=1, classes_per_task=2, scenario="class")
    assert [task.head for task in own] == [0, 1, 2]
    assert [task.head for task in shared] == [task.head for task in growing] == [0, 0, 0]
    assert (own.heads, shared.heads, growing.heads) == ((2, 2, 2), (2,), (6,))
    assert [task.labels for task in own] == [(0, 1)] * 3
    assert [task.labels for task in growing] == [(0, 1), (2, 3), (4, 5)]
    assert [sorted(set(task.test.labels.tolist())) for task in growing] == [[0, 1], [2, 3], [4, 5]]
    assert [task.classes for task in own] == [task.classes for task in growing]
    assert {task.scenario for task in growing} == {"class"}
