"""Figure: where the time goes."""

import pytest
from tests.lab.report.fake_runs import R0, write_run

from drcl.lab.report.figures import time_parts
from drcl.lab.runs import read


def test_bars_add_up_to_the_time(tmp_path):
    write_run(tmp_path, "sgd", 0, R=R0, seconds=20.0)
    runs = read.find([tmp_path])
    widths = [bar.get_width() for bar in time_parts.draw(runs).axes[0].patches]
    assert widths == pytest.approx([19.0, 1.0, 1.3])  # 95 % and 5 % of 20 s, and the evaluation
    assert time_parts.describe(runs) == "Bar chart of seconds: sgd training 19.0, consolidation 1.0, evaluation 1.3."
