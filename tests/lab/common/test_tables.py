"""Tables inside tables, laid flat."""

from __future__ import annotations

from drcl.lab.common.tables import flat, flat_text

TABLE = {"lr": 0.1, "model": {"kind": "mlp", "hidden": [8, 8], "more": {"deep": True}}, "none": {}}


def test_names_are_joined_and_values_kept():
    assert flat(TABLE) == {"lr": 0.1, "model.kind": "mlp", "model.hidden": [8, 8], "model.more.deep": True}
    assert flat({"torch": "2"}, "versions ") == {"versions torch": "2"}
    assert flat({"a": {"b.py": {"c": 1}}}, between=" ") == {"a b.py c": 1}


def test_values_as_text():
    assert flat_text(TABLE) == {
        "lr": "0.1",
        "model.kind": "mlp",
        "model.hidden": "[8, 8]",
        "model.more.deep": "true",
    }
