"""What a run tells while it goes on, and in which order."""

from __future__ import annotations

import math

from tests.lab.training.toys import learner

from drcl.lab.training.events import Event, Watcher
from drcl.lab.training.rows import CurvePoint


def test_events_count_and_time_goes_forward():
    events: list[Event] = []

    class Look(Watcher):
        def event(self, event):
            events.append(event)

    learner(watcher=Look()).run()
    assert [(e.kind, e.task) for e in events if e.kind not in ("step", "finish")] == [
        (kind, task) for task in (0, 1) for kind in ("task", "epoch", "epoch", "consolidation", "evaluation")
    ]
    last = events[-1]
    assert (last.kind, last.tasks) == ("finish", 2)
    assert last.average_accuracy is not None
    assert [(e.epoch, e.epochs, e.step, e.steps) for e in events if e.kind == "epoch"] == [
        (0, 2, 6, 12),
        (1, 2, 12, 12),
    ] * 2
    seconds = [e.seconds for e in events]
    assert seconds == sorted(seconds)


def test_a_watcher_may_ignore_it_all():
    watcher = Watcher()
    assert watcher.event(Event("start")) is None
    assert watcher.log({"loss": 1.0}, 3) is None
    assert watcher.curve(CurvePoint(0, 0, 1, 0.5, math.nan)) is None
    assert watcher.row(0, [0.5]) is None
    assert watcher.drift([]) is None
    assert watcher.save(dict) is None


def test_what_is_not_known_yet_is_none():
    event = Event("task", 1, 5)
    assert (event.task, event.tasks, event.seconds) == (1, 5, 0.0)
    assert {event.epoch, event.epochs, event.step, event.steps, event.loss, event.accuracy} == {None}
