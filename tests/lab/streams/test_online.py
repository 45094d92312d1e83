"""Online streams: fresh draws, and a change every so many steps."""

from __future__ import annotations

import numpy as np
import pytest
from tests.lab.streams.toys import numbers, toy

from drcl.lab import streams
from drcl.lab.streams.online import draws


def test_online_stream_draws_afresh_and_composes():
    data = toy(classes=7)  # 140 training images
    stream = streams.online(data, seed=4, tasks=4, steps=30, batch=3)
    assert stream.online
    assert stream.heads == (7,)
    tables = streams.label_permutations(4, 7, seed=4)
    seen = []
    for task, table in zip(stream, tables):
        assert task.online
        batches = list(task.train.batches(3))
        assert len(batches) == 30
        rows = numbers(task.train)
        assert len(set(rows)) == 90
        assert task.train.labels.tolist() == [int(table[row % 7]) for row in rows]
        assert task.test.labels.tolist() == [int(table[c]) for c in np.tile(np.arange(7), 5)]
        seen.append(tuple(rows))
    assert len(set(seen)) == 4


def test_online_draws_start_over_when_data_run_out():
    drawn = draws(10, 25, seed=0, task=3)
    assert len(drawn) == 25
    assert sorted(drawn[:10]) == sorted(drawn[10:20]) == list(range(10))
    assert len(set(drawn[20:].tolist())) == 5


def test_online_inputs_keep_the_labels():
    data = toy(classes=4)
    stream = streams.online(data, seed=0, tasks=3, steps=5, permute="inputs")
    for task in stream:
        order = task.test.view.permutation
        assert np.array_equal(task.test.images.reshape(-1, 64), data.test.images.reshape(-1, 64)[:, order])
        assert task.test.labels.tolist() == data.test.labels.tolist()
    with pytest.raises(ValueError, match="permute='pixels'"):
        streams.online(data, seed=0, tasks=3, steps=5, permute="pixels")
