"""Train, valid and test: disjoint, complete, every class in its proportion."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.streams.toys import numbers, split, toy

from drcl.lab import streams
from drcl.lab.data.base import DataSet, Split
from drcl.lab.streams.parts import split_parts


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    share=st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9]),
    limit=st.one_of(st.none(), st.integers(1, 30)),
    seed=st.integers(0, 5),
)
def test_validation_is_stratified_for_any_class_sizes(counts, share, limit, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    images = np.zeros((len(labels), 1, 2, 2), np.uint8)
    data = DataSet("any", Split(images, labels), Split(images, labels), tuple(map(str, range(len(counts)))))
    cut = split_parts(data, seed=seed, valid=share, limit_per_class=limit)
    assert not set(numbers(cut.train)) & set(numbers(cut.valid))
    for c, count in enumerate(counts):
        kept = count if limit is None else min(count, limit)
        valid = int((cut.valid.labels == c).sum())
        assert valid + int((cut.train.labels == c).sum()) == kept
        assert int((cut.test.labels == c).sum()) == kept
        if share == 0:
            assert valid == 0
        elif kept > 1:
            assert 1 <= valid <= kept - 1
            assert abs(valid - share * kept) <= 0.5 or valid in (1, kept - 1)
        else:
            assert valid == 0


def test_official_validation_is_used_and_training_left_whole():
    base = toy()
    data = DataSet("own", base.train, base.test, base.classes, valid=split(3, 10, offset=20_000))
    task = streams.class_split(data, seed=0, classes_per_task=10, valid=0.5)[0]
    assert (len(task.train), len(task.valid), len(task.test)) == (200, 30, 50)
    assert task.valid.source is data.valid.images
