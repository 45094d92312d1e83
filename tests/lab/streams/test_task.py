"""A stream is a plain sequence of tasks."""

from __future__ import annotations

import pytest
from tests.lab.streams.toys import toy

from drcl.lab import streams


def test_stream_is_an_immutable_sequence():
    stream = streams.class_split(toy(), seed=0, classes_per_task=2)
    assert len(stream) == 5
    assert [task.index for task in stream] == [0, 1, 2, 3, 4]
    part = stream[1:4]
    assert isinstance(part, streams.Stream)
    assert [task.index for task in part] == [1, 2, 3]
    assert part[0] is stream[1]
    assert stream[-1] is stream[4]
    assert part[::-1][0].index == 3
    assert part.heads == stream.heads == (2, 2, 2, 2, 2)
    with pytest.raises(IndexError):
        part[3]
    with pytest.raises(TypeError):
        stream[0] = stream[1]
