"""Grids of shares as coloured cells."""

import math

import numpy as np
import pytest
from tests.lab.report.fake_runs import write_run
from tests.lab.report.figures.looking import contrast, texts

from drcl.lab.report.figures import heat, matrix, style
from drcl.lab.report.svg import inline_svg
from drcl.lab.runs import read

NaN = math.nan


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_numbers_on_a_heat_map_can_be_read(theme):
    for k, tone in enumerate(style.HEAT):
        ink = heat.ink(k / (style.LEVELS - 1))
        assert contrast(getattr(tone, theme), getattr(ink, theme)) >= 4, (k, theme)


def test_a_long_stream_is_a_picture_not_ten_thousand_shapes(tmp_path):
    T = 60
    R = np.where(np.tri(T, dtype=bool), 0.5, NaN)
    write_run(tmp_path, "sgd", 0, R=R)
    figure = matrix.draw(read.find([tmp_path]))
    assert len(figure.axes[0].images) == 1
    assert len(inline_svg(figure, "n", "t", "d")) < 200_000
    assert texts(figure) == []
