"""Colours and markers that stay apart."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from drcl.lab.report.figures.palette import MARKERS, OWN, PALETTE


def _oklab(colour):
    """Ottosson's space, in which the distance of two colours is about as large as they look different."""
    linear = np.array([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)])
    to_cones = [[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]]
    to_lab = [[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]]
    return np.array(to_lab) @ np.cbrt(np.array(to_cones) @ linear)


@pytest.mark.parametrize("ground", ["light", "dark"])
def test_no_two_colours_look_alike(ground):
    seen = [_oklab(getattr(tone, ground)) for tone in {*PALETTE, *OWN.values()}]
    # 0.02 is about the smallest difference that is seen at all
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 0.05


def test_there_are_thirty_five_of_each_and_every_tone_has_its_own_name():
    assert len(MARKERS) == 35
    assert len(PALETTE) == 35
    assert len({tone.name for tone in (*PALETTE, OWN["joint"])}) == 36
