"""Names and what they stand for: ours first, others beside them, nothing taken away."""

from __future__ import annotations

import pytest

from drcl.lab.common import plugins
from drcl.lab.common.plugins import PluginError
from drcl.lab.common.registry import Registry


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(plugins, "SNAPSHOTS", [])
    return Registry("fruit", lambda: {"apple": 1, "pear": 2})


def test_ours_come_first_and_are_looked_up_once(monkeypatch):
    monkeypatch.setattr(plugins, "SNAPSHOTS", [])
    asked = []
    registry = Registry("fruit", lambda: asked.append(1) or {"apple": 1})
    assert asked == []
    registry.register("zebra", 3, "m")
    assert dict(registry) == {"apple": 1, "zebra": 3}
    assert list(registry) == ["apple", "zebra"]
    assert len(registry) == 2
    assert "apple" in registry
    assert "plum" not in registry
    assert asked == [1]


def test_an_unknown_name_gets_the_nearest(registry):
    assert registry.find("pear") == 2
    with pytest.raises(ValueError, match="there is no fruit 'aple': did you mean 'apple'"):
        registry.find("aple")
    with pytest.raises(KeyError):
        registry["aple"]


def test_names_are_taken_once(registry):
    with pytest.raises(PluginError, match="fruit 'apple': drcl has one of that name; give yours another"):
        registry.register("apple", 5, "m")
    registry.register("plum", 5, "m")
    registry.register("plum", 6, "m")  # the same module again: a notebook's cell
    with pytest.raises(PluginError, match="fruit 'plum': m has one of that name"):
        registry.register("plum", 7, "n")
    assert registry["plum"] == 6
    assert registry.whose("plum") == "m"
    assert registry.whose("apple") == ""


@pytest.mark.parametrize("name", ["", "a b", "../up", "a.b", "-x", None])
def test_names_fit_into_file_names(registry, name):
    with pytest.raises(PluginError, match="use letters, digits, -, _ and"):
        registry.register(name, 5, "m")


def test_the_way_back(registry):
    registry.register("plum", 5, "m")
    back = plugins.SNAPSHOTS[0]()
    registry.register("cherry", 6, "m")
    back()
    assert list(registry) == ["apple", "pear", "plum"]
