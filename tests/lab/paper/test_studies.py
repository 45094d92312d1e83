"""Rows of a solver study are found by the first line of their files."""

import math

from drcl.lab.paper.studies import studies

HEAD = "variant,about,strength,seeds,accuracy\n"


def test_files_are_told_by_their_first_line(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "mnist.csv").write_text(HEAD + 'a,"one, two",0.1,3,90.5\nb,x,,1,\n', encoding="utf-8")
    (tmp_path / "trials.csv").write_text("method,key,value\newc,lam,1\n", encoding="utf-8")
    (found,) = studies([tmp_path]).values()
    assert found.benchmark == "mnist"
    assert found.value("a", "accuracy") == 90.5
    assert found.rows["a"]["about"] == "one, two"
    assert math.isnan(found.value("b", "accuracy"))
    assert math.isnan(found.value("c", "accuracy"))


def test_one_file_may_be_named(tmp_path):
    file = tmp_path / "x.csv"
    file.write_text(HEAD, encoding="utf-8")
    assert list(studies([file])) == ["x"]
    assert studies([tmp_path / "none"]) == {}
