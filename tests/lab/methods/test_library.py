"""Options that a method takes from the library, with the types, defaults and help of the library."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import pytest

from drcl import DRCL, Kronecker
from drcl.lab import methods
from drcl.lab.common import fields as options
from drcl.lab.methods._library import takes
from drcl.lab.methods.base import Method
from drcl.lab.methods.drcl import DIRECTIONS, SOLVER
from drcl.options import HELP, PRESETS


@dataclass
@takes(DRCL, "strength", "splitting", before="second", defaults={"strength": 7.0})
@takes(Kronecker, "rank")
class Toy(Method):
    name: ClassVar[str] = "toy"

    first: int = 1
    second: int = 2
    rank: Literal["own"] = "own"


def test_they_stand_where_they_are_put_and_what_the_class_declares_wins():
    assert [f.name for f in fields(Toy)] == ["first", "strength", "splitting", "second", "rank"]
    found = options.hints(Toy)
    assert found["strength"] == float | Literal["auto"]
    assert options.words(found["splitting"]) == "one of douglas-rachford, forward-backward, implicit"
    assert options.words(found["rank"]) == "one of own"
    assert (Toy().strength, Toy().splitting, Toy().rank) == (7.0, "forward-backward", "own")
    assert Toy(splitting="implicit").splitting == "implicit"


def test_an_unknown_place_or_option_is_noticed_at_once():
    with pytest.raises(ValueError, match="nowhere"):
        takes(DRCL, "strength", before="nowhere")(type("Other", (), {}))
    with pytest.raises(KeyError, match="strenght"):
        takes(DRCL, "strenght")(type("Other", (), {}))


@pytest.mark.parametrize("name", ["drcl", "drcl-kronecker"])
def test_defaults_of_the_lab_are_the_librarys(name):
    """Read from the library here once more, so that no second source can creep in."""
    known = options.defaults(methods.get(name))
    preset = PRESETS["directions"] if name == "drcl-kronecker" else {}
    for source, own in ((DRCL, (*SOLVER, "backend")), (Kronecker, DIRECTIONS)):
        signature = inspect.signature(source).parameters
        for key in own:
            assert known[key] == preset.get(key, signature[key].default), key
    told = {row["name"]: row["help"] for row in options.table(methods.get(name))}
    assert all(told[key] == HELP[key] for key in (*SOLVER, *DIRECTIONS) if key != "strength")
