"""Anchor files: what goes in comes out, and nothing damaged, foreign or half-read gets in."""

import json
import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.tasks import after_one_task, mlp, same, task, weights
from torch import nn

import drcl
from drcl import DRCL, Anchor, AnchorError


@pytest.fixture
def saved(tmp_path):
    model, opt = after_one_task()
    path = tmp_path / "model.safetensors"
    opt.anchor.save(path)
    return model, opt, path


def rewrite(path, tensors=None, **metadata):
    """The same file with something changed."""
    with safe_open(path, "pt") as file:
        about = {**file.metadata(), **metadata}
    save_file({**load_file(path), **(tensors or {})}, path, {k: v for k, v in about.items() if v is not None})


def test_round_trip(saved):
    model, opt, path = saved
    anchor = Anchor.load(path, model)
    assert same(anchor.weights, opt.anchor.weights)
    assert same(anchor.importance, opt.anchor.importance)
    assert anchor.provenance == opt.anchor.provenance == json.loads(json.dumps(opt.anchor.provenance))
    assert repr(anchor) == "Anchor(4 parameters, 163 weights, tasks=1)"


def test_provenance_says_how_it_was_made(saved):
    made = Anchor.load(saved[2]).provenance
    assert made["drcl"] == drcl.__version__
    assert made["torch"] == torch.__version__
    assert (made["tasks"], made["memory"]) == (1, "sum")
    assert made["importance_mean"] > 0
    assert made["made"][0]["estimator"] == "Fisher"
    assert made["made"][0]["samples"] == 40


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_every_dtype_and_layout(tmp_path, dtype):
    torch.manual_seed(0)
    weight = torch.randn(2, 3, 2, 2).to(dtype).to(memory_format=torch.channels_last)
    anchor = Anchor({"w": weight, "s": weight[0, 0, 0, 0]}, {"w": torch.ones(2, 3, 2, 2), "s": torch.ones(())})
    anchor.save(tmp_path / "a")
    again = Anchor.load(tmp_path / "a")
    assert same(again.weights, anchor.weights)
    assert again.importance["w"].dtype == torch.float32


def test_an_anchor_is_a_copy(saved):
    model, opt, _ = saved
    anchor = opt.anchor
    anchor.weights["0.weight"].zero_()
    anchor.importance["0.weight"].zero_()
    assert opt.anchor.weights["0.weight"].any()
    assert opt.anchor.importance["0.weight"].any()
    assert DRCL(model.parameters(), lr=0.1).anchor is None


def test_saving_is_all_or_nothing(saved, monkeypatch):
    _, opt, path = saved
    before = path.read_bytes()

    def full_disk(tensors, part, metadata):
        with open(part, "wb") as file:
            file.write(before[:50])
        raise OSError("no space left on device")

    monkeypatch.setattr("drcl.anchor.save_file", full_disk)
    with pytest.raises(OSError, match="no space"):
        opt.anchor.save(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def refused(path, pattern, model=None):
    with pytest.raises(AnchorError, match=pattern) as told:
        Anchor.load(path, model)
    assert str(path) in str(told.value) or model is not None


def test_truncated_files(saved, tmp_path):
    whole = saved[2].read_bytes()
    for size in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        short = tmp_path / "short"
        short.write_bytes(whole[:size])
        refused(short, "damaged, truncated or not a safetensors file")
    with pytest.raises(FileNotFoundError, match="no such anchor file"):
        Anchor.load(tmp_path / "nothing")


def test_foreign_files(tmp_path):
    model = mlp()
    save_file(model.state_dict(), tmp_path / "model")
    refused(tmp_path / "model", "not a drcl anchor.*anchors are written by Anchor.save")
    torch.save(model.state_dict(), tmp_path / "pickle")
    refused(tmp_path / "pickle", "not a safetensors file")


def test_altered_files(saved):
    path = saved[2]
    original = path.read_bytes()
    rewrite(path, {"weight/0.bias": torch.zeros(17), "importance/0.bias": torch.zeros(17)})
    refused(path, "digest.*was altered")
    path.write_bytes(original)
    rewrite(path, digest="0" * 16)
    refused(path, "digest.*was altered")
    path.write_bytes(original)
    rewrite(path, digest=None)
    refused(path, "digest.*was altered")
    path.write_bytes(original)
    rewrite(path, {"weight/extra": torch.zeros(2)})
    refused(path, "'extra' needs both a weight and an importance")
    for text, why in (("{not json", "Expecting property name"), ("[1]", "provenance must be a dict")):
        path.write_bytes(original)
        rewrite(path, provenance=text)
        refused(path, why)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite(saved, bad):
    path = saved[2]
    tensor = load_file(path)["weight/2.weight"]
    tensor[1, 1] = bad
    rewrite(path, {"weight/2.weight": tensor})
    refused(path, "'2.weight' holds NaN or infinite values; make the anchor again")


def test_importance_below_zero_or_of_another_shape(saved):
    path = saved[2]
    original = path.read_bytes()
    rewrite(path, {"importance/0.bias": torch.full((16,), -1.0)})
    refused(path, "'0.bias' has negative importance")
    path.write_bytes(original)
    rewrite(path, {"importance/0.bias": torch.ones(4, 4)})
    refused(path, r"'0.bias': the weight has shape \(16,\), its importance \(4, 4\)")
    with pytest.raises(AnchorError, match="without weights protects nothing"):
        Anchor({}, {})


def test_an_anchor_of_another_model_changes_nothing(saved):
    _, _, path = saved
    anchor = Anchor.load(path)
    for other, pattern in (
        (mlp(sizes=(6, 17, 3)), r"'0.weight' has shape \(17, 6\) here and \(16, 6\) in the anchor.*another model"),
        (
            nn.Sequential(nn.Linear(6, 16)),
            r"protects '2.\w+', which this model does not have: it is of another model",
        ),
    ):
        opt = DRCL(other.named_parameters(), lr=0.1)
        before = weights(other)
        refused(path, pattern, other)
        for call in (anchor.restore, lambda m, o=opt: o.protect(m, anchor), lambda m: drcl.drift(m, anchor)):
            with pytest.raises(AnchorError, match=pattern):
                call(other)
        assert same(before, weights(other))
        assert not opt.state
        assert opt.tasks == 0


def test_values_too_large_for_the_model():
    anchor = Anchor({"weight": torch.full((2, 2), 1e6)}, {"weight": torch.ones(2, 2)})
    half = nn.Linear(2, 2, bias=False).half()
    before = weights(half)
    with pytest.raises(AnchorError, match=r"'weight' holds values too large for the model's torch\.float16.*wider"):
        anchor.restore(half)
    assert same(before, weights(half))


@pytest.mark.parametrize("facts", [{"tasks": "many"}, {"importance_mean": "x"}, {"made": 3}, {"made": [3]}], ids=str)
def test_provenance_that_does_not_read_is_refused_before_anything_changes(saved, facts):
    anchor = Anchor.load(saved[2])
    anchor.provenance.update(facts)
    other = mlp(seed=8)
    again, before = DRCL(other.named_parameters(), lr=0.1), weights(other)
    with pytest.raises(AnchorError, match="provenance does not read"):
        again.protect(other, anchor)
    assert same(before, weights(other))
    assert not again.state


def test_restore_rolls_back_all_or_a_part(saved):
    model, _, path = saved
    anchor, start = Anchor.load(path), weights(model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
    assert anchor.restore(model, prefix="2.") == ["2.weight", "2.bias"]
    assert [same(a, b) for a, b in zip(start, weights(model))] == [False, False, True, True]
    with pytest.raises(ValueError, match="no anchored parameter starts with 'head'; there are 0"):
        anchor.restore(model, prefix="head")
    anchor.restore(model)
    assert same(start, weights(model))


def test_names_through_wrappers(saved):
    model, _, path = saved
    for wrapped in (torch.compile(model, backend="eager"), nn.DataParallel(model)):
        Anchor.load(path, wrapped)
        assert drcl.drift(wrapped, Anchor.load(path)).total.unmoved == 1.0


def test_a_layer_called_module_keeps_its_name():
    model = nn.ModuleDict({"module": nn.Linear(6, 3), "other": nn.Linear(6, 3)})
    model.register_parameter("weight", nn.Parameter(torch.zeros(3, 6)))
    opt = DRCL(model.named_parameters(), lr=0.1)
    opt.consolidate(model, task(0), forward=lambda m, b: (m["module"](b[0]) + m["other"](b[0]), b[1]))
    assert set(opt.anchor.weights) == {"weight", "module.weight", "module.bias", "other.weight", "other.bias"}
