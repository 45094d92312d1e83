"""What the words of a report mean."""

from drcl.lab.report.glossary import WORDS
from drcl.lab.report.table import COLUMNS, HELD


def test_every_measure_of_the_table_has_a_sentence():
    for column in (*COLUMNS, HELD):
        assert column.about == WORDS[column.key]
        assert column.about.endswith(".")
        assert len(column.about) > 30
