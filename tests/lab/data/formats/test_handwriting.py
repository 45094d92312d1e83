"""Handwriting rendered from the centre lines of strokes."""

from __future__ import annotations

import numpy as np

from drcl.lab.data.formats import handwriting


def test_centre_lines_are_evenly_spaced_and_upright() -> None:
    lines = handwriting.centre_lines([[[0, 900], [1024, 900]], [[512, 900], [512, 388], [512, -124]]])
    assert lines.shape == (2, handwriting.POINTS, 2)
    np.testing.assert_allclose(lines[0, [0, -1]], [[-0.5, -0.5], [0.5, -0.5]], atol=1e-12)
    np.testing.assert_allclose(lines[1, [0, -1]], [[0, -0.5], [0, 0.5]], atol=1e-12)  # y points down
    gaps = np.linalg.norm(np.diff(lines, axis=1), axis=2)
    np.testing.assert_allclose(gaps, 1 / (handwriting.POINTS - 1), rtol=1e-3)
