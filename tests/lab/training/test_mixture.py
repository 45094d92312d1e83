"""Batches of one task or of several mixed: every example once, with its own head, from any batch on."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.lab.training.toys import blobs, stream

from drcl.lab import streams
from drcl.lab.training.mixture import Mixture


def test_a_mixture_holds_every_example_once_with_its_own_head():
    on = stream(tasks=3)
    data = Mixture(list(on), 7, seed=3)
    batches = list(data.epoch(0))
    assert len(batches) == data.batches == math.ceil(3 * 48 / 7)
    rows = sorted((int(h), int(y), x.numpy().tobytes()) for b in batches for x, y, h in zip(b.x, b.y, b.heads()))
    wanted = []
    for task in on:
        x, y = task.train.take(slice(None))
        wanted += [(task.head, int(label), image.numpy().tobytes()) for image, label in zip(x, y)]
    assert rows == sorted(wanted)
    again = list(data.epoch(0, start=11))
    assert len(again) == len(batches) - 11
    for a, b in zip(batches[11:], again):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.heads(), b.heads())
    assert not torch.equal(next(data.epoch(1)).x, batches[0].x)


def test_an_empty_task_is_refused():
    task = stream()[0]
    with pytest.raises(ValueError, match="no training examples"):
        Mixture([replace(task, train=task.train.subset(np.arange(0)))], 8, seed=0)


def test_one_task_alone_is_its_own_batches():
    task = stream()[0]
    data = Mixture([task], 7, seed=3)
    for epoch in (0, 1):
        wanted = task.train.batches(7, seed=3, epoch=epoch)
        for batch, (x, y) in zip(data.epoch(epoch), wanted, strict=True):
            assert torch.equal(batch.x, x)
            assert torch.equal(batch.y, y)
            assert batch.head == task.head


def test_an_online_task_comes_in_its_own_order():
    on = streams.online(blobs(2), seed=2, tasks=1, steps=5, batch=3, permute="labels", scenario="domain")
    found = torch.cat([batch.x for batch in Mixture(list(on), 3, seed=9).epoch(0)])
    assert torch.equal(found, on[0].train.take(slice(None))[0])
