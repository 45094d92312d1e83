"""scikit-learn's digits: every scan once, split as promised."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from drcl.lab.data import load


def test_digits_are_scikit_learns(root: Path) -> None:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    data = load("digits")
    assert data.train.images.shape[1:] == (1, 8, 8)
    assert len(data.train) == 1442
    # Each digit n times gives floor(n / 5) test images: 178, 182, 177, ... in the set's description.
    assert np.bincount(data.test.labels).tolist() == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]
    # Every scan is there exactly once, and its ink can be recovered.
    both = np.concatenate([data.train.images, data.test.images])[:, 0]
    back = np.rint(both * (16 / 255)).astype(int).reshape(-1, 64)
    assert sorted(map(tuple, back.tolist())) == sorted(map(tuple, bunch.data.astype(int).tolist()))
    assert both.max() == 255
    first_zeros = np.flatnonzero(bunch.target == 0)
    np.testing.assert_array_equal(data.test.images[data.test.labels == 0][0, 0] > 0, bunch.images[first_zeros[4]] > 0)
