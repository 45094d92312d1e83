"""Checkpoints: what goes in comes out bit for bit, and damage is noticed."""

from __future__ import annotations

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.runs.nests import same, trees

from drcl.lab.runs.checkpoint import Checkpoints, replace_whole


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.text(max_size=3), trees, max_size=3))
def test_a_checkpoint_keeps_it_all(tmp_path_factory, value):
    made = Checkpoints(tmp_path_factory.mktemp("c"))
    assert made.save(value)
    assert same(value, made.load())


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


def test_a_removal_that_is_cut_off_leaves_nothing_that_looks_like_a_checkpoint(tmp_path, monkeypatch):
    kept = Checkpoints(tmp_path / "checkpoint")
    for value in range(2):
        kept.save({"value": value})

    class Cut(BaseException):
        pass

    def half(path, **_):
        if path.exists():
            (path / "state.json").unlink()
            raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", half)
        with pytest.raises(Cut):
            kept.keep_last()
    assert kept.numbers() == [1]
    assert kept.read(1) == {"value": 1}
    kept.keep_last()
    assert [path.name for path in kept.folder.iterdir()] == ["00000001"]
