"""Figure: the accuracy matrix."""

from tests.lab.report.figures.looking import texts

from drcl.lab.report.figures import matrix


def test_matrix_shows_every_measured_cell(small):
    figure = matrix.draw(small)
    assert texts(figure) == ["80", "70", "80", "50", "60", "100"]
    assert len(figure.axes[0].patches) == 6
