"""Nested state as JSON and tensors: what goes in comes out bit for bit."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tests.lab.runs.nests import same, trees

from drcl.lab.runs import nested
from drcl.lab.runs.nested import NestedError


@settings(max_examples=150, deadline=None)
@given(trees)
def test_state_comes_back_bit_for_bit(value):
    text, tensors = nested.pack(value)
    again = nested.unpack(json.loads(json.dumps(text, allow_nan=False)), tensors)
    assert same(value, again)


def test_tensors_are_copies_both_ways():
    original = torch.zeros(3)
    text, tensors = nested.pack({"a": original})
    original += 1
    again = nested.unpack(text, tensors)
    assert again["a"].tolist() == [0, 0, 0]
    again["a"] += 5
    assert nested.unpack(text, tensors)["a"].tolist() == [0, 0, 0]
    assert again["a"].data_ptr() % 64 == 0


@pytest.mark.parametrize(
    "value",
    [object(), {1.5: 0}, np.float32(1), np.zeros(3), {"a": [set()]}, torch.zeros(2).to_sparse(), torch.zeros(2) * 1j],
    ids=["object", "float key", "numpy scalar", "array", "set", "sparse", "complex"],
)
def test_what_cannot_be_kept_is_refused_by_name(value):
    with pytest.raises(NestedError, match="state"):
        nested.pack(value)


@pytest.mark.parametrize("text", [{"a": 1}, {"dict": [], "tuple": []}, {"tensor": {"at": "7"}}, {"tensor": 3}])
def test_text_of_others_is_refused(text):
    with pytest.raises(NestedError):
        nested.unpack(text, {})


def test_optimizers_of_all_kinds_survive():
    torch.manual_seed(0)
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
        lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True),
    ):
        layer = torch.nn.Linear(3, 2)
        optimizer = make(layer.parameters())

        def step(layer, optimizer):
            optimizer.zero_grad()
            layer(torch.ones(1, 3)).square().sum().backward()
            optimizer.step()

        step(layer, optimizer)
        text, tensors = nested.pack({"o": optimizer.state_dict(), "m": dict(layer.state_dict())})
        saved = nested.unpack(json.loads(json.dumps(text)), tensors)
        twin = torch.nn.Linear(3, 2)
        twin.load_state_dict(saved["m"])
        again = make(twin.parameters())
        again.load_state_dict(saved["o"])
        for _ in range(3):
            step(layer, optimizer)
            step(twin, again)
        assert torch.equal(layer.weight, twin.weight)
