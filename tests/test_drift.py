"""Drift by hand: eight weights in two layers, of which we know where each one went."""

import math
import sys

import pytest
import torch
from torch import nn

import drcl
from drcl import Anchor, drift
from drcl.drift import between


@pytest.fixture
def moved():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1, bias=False))
    old = {
        "0.weight": torch.tensor([[1.0, -2.0], [0.0, 4.0]]),
        "0.bias": torch.tensor([2.0, 0.0]),
        "2.weight": torch.tensor([[3.0, 4.0]]),
    }
    new = {
        "0.weight": torch.tensor([[1.0, -2.0625], [0.0, 4.5]]),  # 0, 1/16 (3 %), 0, 1/2 (12.5 %)
        "0.bias": torch.tensor([2.0, 0.25]),  # 0, 1/4 away from zero
        "2.weight": torch.tensor([[3.0, 4.0]]),
    }
    model.load_state_dict(new)
    return model, Anchor(old, {k: torch.ones_like(v) for k, v in old.items()})


def test_numbers_by_hand(moved):
    table = drift(*moved)
    first, last = table
    assert len(table) == 2
    assert (first.layer, first.weights, first.unmoved) == ("0", 6, 3 / 6)
    assert first.mean_change == pytest.approx((1 / 16 + 1 / 2 + 1 / 4) / 6)
    assert first.largest_change == 0.5
    length = math.sqrt(1 / 256 + 1 / 4 + 1 / 16)
    assert first.relative_change == pytest.approx(length / math.sqrt(1 + 4 + 0 + 16 + 4 + 0))
    assert (last.layer, last.weights, last.unmoved, last.mean_change, last.largest_change) == ("2", 2, 1.0, 0.0, 0.0)
    assert last.relative_change == 0.0
    assert (table.total.weights, table.total.unmoved) == (8, 5 / 8)
    assert table.total.mean_change == pytest.approx((1 / 16 + 1 / 2 + 1 / 4) / 8)
    assert table.total.relative_change == pytest.approx(length / math.sqrt(25 + 25))
    # less than 5 % of the old value: the five that stayed (a zero that stayed counts) and the 3 % one
    assert table.effective_stability == 6 / 8
    assert table.stiffness == pytest.approx(length)


def test_it_prints_well(moved):
    lines = str(drift(*moved)).splitlines()
    assert lines[0].split() == ["layer", "weights", "unmoved", "mean", "change", "largest", "relative"]
    assert lines[2].split() == ["0", "6", "50.0%", "0.135", "0.5", "0.113"]
    assert lines[3].split() == ["2", "2", "100.0%", "0", "0", "0"]
    assert lines[5].split()[:3] == ["total", "8", "62.5%"]
    assert lines[-1] == "effective stability 75.0% (moved less than 5 %), stiffness 0.5625"
    assert len({len(line) for line in lines[:6]}) == 1
    assert repr(drift(*moved)) == str(drift(*moved))


def test_to_pandas(moved, monkeypatch):
    frame = drift(*moved).to_pandas()
    assert list(frame.index) == ["0", "2"]
    assert list(frame.columns) == ["weights", "unmoved", "mean_change", "largest_change", "relative_change"]
    assert frame.loc["0", "unmoved"] == 0.5
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
        drift(*moved).to_pandas()


def test_a_layer_that_left_zero_moved_most():
    model = nn.ModuleDict({"a": nn.Linear(1, 1, bias=False), "b": nn.Linear(1, 1, bias=False)})
    with torch.no_grad():
        model["a"].weight.fill_(2.0), model["b"].weight.fill_(0.1)
    old = {"a.weight": torch.tensor([[1.0]]), "b.weight": torch.tensor([[0.0]])}
    table = drift(model, Anchor(old, {k: torch.ones(1, 1) for k in old}))
    assert math.isnan({r.layer: r for r in table}["b"].relative_change)
    assert [r.layer for r in table.largest()] == ["b", "a"]
    assert [r.layer for r in table.largest(1)] == ["b"]


def test_rows_come_in_the_models_order_also_from_a_file(tmp_path):
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(12)))
    old = {n: p.detach().clone() for n, p in model.named_parameters()}
    Anchor(old, {n: torch.ones_like(w) for n, w in old.items()}).save(tmp_path / "a")
    assert [r.layer for r in drift(model, Anchor.load(tmp_path / "a"))] == [str(i) for i in range(12)]


def test_parameters_outside_the_anchor_and_empty_ones():
    model = nn.ModuleDict({"held": nn.Linear(2, 2), "free": nn.Linear(2, 2)})
    model.register_parameter("top", nn.Parameter(torch.zeros(3)))
    model.register_parameter("nothing", nn.Parameter(torch.zeros(0, 2)))
    names = ("held.weight", "top", "nothing")
    old = {n: p.detach().clone() for n, p in model.named_parameters() if n in names}
    table = drift(model, Anchor(old, {k: torch.ones_like(v) for k, v in old.items()}))
    assert [(r.layer, r.weights) for r in table] == [("top", 3), ("held", 4)]
    with pytest.raises(ValueError, match="nothing to compare"):
        drift(model, Anchor({"nothing": torch.zeros(0, 2)}, {"nothing": torch.zeros(0, 2)}))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_half_precision_is_compared_exactly(dtype):
    model = nn.Linear(3, 3, bias=False).to(dtype)
    old = {"weight": model.weight.detach().clone()}
    anchor = Anchor(old, {"weight": torch.ones(3, 3)})
    with torch.no_grad():
        model.weight[0, 0] = torch.nextafter(model.weight[0, 0].float(), torch.tensor(9.0)).to(dtype) + 1
    assert drift(model, anchor).total.unmoved == 8 / 9
    assert drcl.drift is drift


# ---- between two moments

BEFORE = {"a.w": torch.tensor([[1.0, -2.0], [0.0, 0.0]]), "b.w": torch.tensor([4.0])}
AFTER = {"a.w": torch.tensor([[1.0, -2.05], [0.0, 0.001]]), "b.w": torch.tensor([4.002])}


def test_shares_that_stayed_by_hand():
    """Exactly equal: 1.0 and the first 0. Within 5 %: also -2 -> -2.05 (0.05 < 0.1) and 4 -> 4.002; 0 -> 0.001 has
    moved. Within 0.1 %: -2 moved by 0.05, 4 by 0.002 < 0.004."""
    found = between(BEFORE, AFTER)
    assert found.total.unmoved == 2 / 5
    assert found.effective_stability == 4 / 5
    assert found.strict_stability == 3 / 5
    assert [(row.layer, row.weights) for row in found] == [("a", 4), ("b", 1)]


def test_the_length_of_the_way():
    # differences 3, 4 in one tensor and 12 in the other: sqrt(9 + 16 + 144) = 13
    before = {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor([[0.0]])}
    after = {"a": torch.tensor([4.0, 5.0]), "b": torch.tensor([[-12.0]])}
    assert between(before, after).stiffness == 13.0


def test_it_agrees_with_the_drift_from_an_anchor(moved):
    model, anchor = moved
    found = between(anchor.weights, {n: p.detach() for n, p in model.named_parameters()})
    assert str(found) == str(drift(model, anchor))


def test_a_weight_gone_nan_has_moved():
    found = between({"w": torch.tensor([1.0, 1.0])}, {"w": torch.tensor([1.0, math.nan])})
    assert found.total.unmoved == found.effective_stability == found.strict_stability == 0.5


def test_weights_that_need_gradients_and_half_precision():
    before = {"w": torch.tensor([1.0, 2.0, 3.0, 0.5], dtype=torch.bfloat16, requires_grad=True)}
    after = {"w": torch.tensor([1.0, 2.0, 3.5, 0.5], dtype=torch.bfloat16)}
    assert between(before, after).total.unmoved == 0.75


def test_weights_that_do_not_belong_together_are_refused():
    one, two = torch.zeros(1), torch.zeros(2)
    with pytest.raises(ValueError, match="'b' is in only one"):
        between({"a": one}, {"a": one, "b": one})
    with pytest.raises(ValueError, match=r"'a' has shape \(1,\) before and \(2,\) after"):
        between({"a": one}, {"a": two})
    with pytest.raises(ValueError, match="nothing to compare"):
        between({}, {})
