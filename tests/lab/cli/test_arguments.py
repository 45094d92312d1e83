"""Arguments that several commands take."""

from __future__ import annotations

import pytest
import typer

from drcl.lab.cli.arguments import load, parsed


def test_pairs_become_a_table_of_texts():
    assert parsed(["lr=0.1", " model.hidden = [8, 8] ", "name=a=b"]) == {
        "lr": "0.1",
        "model.hidden": "[8, 8]",
        "name": "a=b",
    }
    assert parsed([]) == {}


@pytest.mark.parametrize("pair", ["lr", "=3", " =3"])
def test_what_is_no_pair_is_bad_usage(pair, capsys):
    with pytest.raises(typer.Exit) as caught:
        parsed([pair])
    assert caught.value.exit_code == 2
    assert f"-o {pair}: write key=value, such as -o epochs=5" in capsys.readouterr().err


def test_a_plugin_that_cannot_be_loaded_is_bad_usage(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load(None) == ()
    with pytest.raises(typer.Exit) as caught:
        load(["mine.py"])
    assert caught.value.exit_code == 2
    assert capsys.readouterr().err.startswith("drcl: plugin mine.py: there is no such file in")
