"""Nested state and checkpoints: what goes in comes out bit for bit, and damage is noticed."""

from __future__ import annotations

import json
import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drcl.lab.runs import nested
from drcl.lab.runs.checkpoint import Checkpoints, replace_whole
from drcl.lab.runs.nested import NestedError

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


@st.composite
def some_tensor(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    made = torch.from_numpy(np.random.default_rng(draw(st.integers(0, 99))).integers(0, 255, shape, np.uint8))
    made = made.to(draw(st.sampled_from(DTYPES)))
    if draw(st.booleans()) and made.ndim > 1:
        made = made.transpose(0, 1)
    return made[..., ::2] if draw(st.booleans()) and made.ndim else made


keys = st.one_of(st.text(max_size=4), st.integers(), st.booleans(), st.none(), st.tuples(st.integers(), st.text()))
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), some_tensor())
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=12,
)


def same(a, b) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        # Of a dimension of length one (or of nothing at all) the stride means nothing.
        laid = a.numel() == 0 or all(m == n for m, n, size in zip(a.stride(), b.stride(), a.shape) if size > 1)
        return laid and torch.equal(a, b)
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict):
        return [*map(repr, a)] == [*map(repr, b)] and all(same(x, y) for x, y in zip(a.values(), b.values()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return a == b


@settings(max_examples=150, deadline=None)
@given(trees)
def test_state_comes_back_bit_for_bit(value):
    text, tensors = nested.pack(value)
    again = nested.unpack(json.loads(json.dumps(text, allow_nan=False)), tensors)
    assert same(value, again)


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.text(max_size=3), trees, max_size=3))
def test_a_checkpoint_keeps_it_all(tmp_path_factory, value):
    made = Checkpoints(tmp_path_factory.mktemp("c"))
    assert made.save(value)
    assert same(value, made.load())


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


def test_the_last_two_are_kept(tmp_path):
    made = Checkpoints(tmp_path / "c")
    assert made.load() is None
    for k in range(5):
        assert made.save({"k": k, "t": torch.full((4,), float(k))})
    assert made.numbers() == [3, 4]
    found = made.load()
    assert found is not None
    assert found["k"] == 4
    made.keep_last()
    assert made.numbers() == [4]


def test_half_written_ones_are_ignored_and_cleared(tmp_path):
    made = Checkpoints(tmp_path / "c")
    made.save({"k": 0})
    (tmp_path / "c" / "new-99999").mkdir()
    (tmp_path / "c" / "new-99999" / "tensors.safetensors").write_bytes(b"half")
    assert made.numbers() == [0]
    found = made.load()
    assert found == {"k": 0}
    made.save({"k": 1})
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["00000000", "00000001"]


def test_each_flipped_bit_is_noticed(tmp_path):
    said: list[str] = []
    made = Checkpoints(tmp_path / "c", said.append)
    made.save({"k": 0, "w": torch.arange(20.0)})
    path = tmp_path / "c" / "00000000" / "tensors.safetensors"
    good = path.read_bytes()
    for at in range(0, len(good), 7):
        bad = bytearray(good)
        bad[at] ^= 4
        made = Checkpoints(tmp_path / f"c{at}", said.append)
        made.save({"k": 0, "w": torch.arange(20.0)})
        (tmp_path / f"c{at}" / "00000000" / "tensors.safetensors").write_bytes(bad)
        assert made.load() is None
    assert len(said) == len(range(0, len(good), 7))
    assert all("is damaged" in sentence for sentence in said)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "f.json"
    replace_whole(path, b"old")

    def full(handle):
        raise OSError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="no space"):
            replace_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["f.json"]
