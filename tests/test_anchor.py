"""Anchor files: what goes in comes out, and nothing damaged, foreign or half-read gets in."""

import json
import os

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.tasks import after_one_task, fit, mlp, same, task, weights
from torch import nn

import drcl
from drcl import DRCL, Anchor, AnchorError, Kronecker
from drcl.anchor import digest


@pytest.fixture
def saved(tmp_path):
    model, opt = after_one_task()
    path = tmp_path / "model.safetensors"
    opt.anchor.save(path)
    return model, opt, path


def rewrite(path, tensors=None, signed=True, **metadata):
    """The same file with something changed and a new digest."""
    with safe_open(path, "pt") as file:
        about = {**file.metadata(), **metadata}
    content = {**load_file(path), **(tensors or {})}
    if signed:
        about["digest"] = digest(content, about)
    save_file(content, path, {k: v for k, v in about.items() if v is not None})


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


def test_every_flipped_bit_is_noticed(saved, tmp_path):
    """A file with a changed byte in any tensor or in its metadata does not load."""
    whole = bytearray(saved[2].read_bytes())
    rng = np.random.default_rng(0)
    flipped = tmp_path / "flipped"
    for at in rng.choice(8 * len(whole), 400, replace=False):
        damaged = bytearray(whole)
        damaged[at // 8] ^= 1 << (at % 8)
        flipped.write_bytes(damaged)
        with pytest.raises(AnchorError):
            Anchor.load(flipped)


class Normed(nn.Module):
    """A trunk with a batch norm, and a head that is not protected."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.trunk = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.trunk(x))

    def optimizer(self):
        groups = [
            {"params": list(self.trunk.named_parameters("trunk"))},
            {"params": list(self.head.named_parameters("head")), "free": True},
        ]
        return DRCL(groups, lr=0.1)


def test_an_anchor_is_all_that_is_needed_to_go_on(tmp_path):
    """Unprotected heads and running statistics come back too: a new process has nothing else."""
    model = Normed(0)
    opt = model.optimizer()
    fit(model, opt, task(0))
    opt.consolidate(model, task(0))
    x = torch.randn(20, 6)
    model.eval()
    expected = model(x)
    path = tmp_path / "anchor"
    opt.anchor.save(path)
    model.train()
    fit(model, opt, task(1))  # the anchor is that of the first task, whatever comes later
    opt.anchor.save(tmp_path / "later")
    for file in (path, tmp_path / "later"):
        fresh = Normed(7)
        again = fresh.optimizer()
        again.protect(fresh, Anchor.load(file, fresh))
        fresh.eval()
        assert torch.equal(fresh(x), expected)
        assert again.anchor.free.keys() == {"head.weight", "head.bias"}
    state = opt.state_dict()
    other = Normed(0)
    resumed = other.optimizer()
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(state)
    assert same(resumed.anchor.buffers, opt.anchor.buffers)
    assert same(resumed.anchor.free, opt.anchor.free)


def test_a_new_head_is_left_alone_with_a_warning(tmp_path):
    model = Normed(0)
    opt = model.optimizer()
    opt.consolidate(model, task(0))
    fresh = Normed(1)
    fresh.head = nn.Linear(16, 5)
    before = fresh.head.weight.detach().clone()
    again = fresh.optimizer()
    with pytest.warns(UserWarning, match="'head.weight', which is not protected, does not fit this model"):
        again.protect(fresh, opt.anchor)
    assert torch.equal(fresh.head.weight, before)
    assert torch.equal(fresh.trunk[0].weight, model.trunk[0].weight)
    fresh.trunk[1] = nn.BatchNorm1d(16, track_running_stats=False)
    with pytest.raises(AnchorError, match=r"buffer 'trunk.1.running_mean' is missing here.*another model"):
        opt.anchor.restore(fresh)


def test_foreign_files(tmp_path):
    model = mlp()
    save_file(model.state_dict(), tmp_path / "model")
    refused(tmp_path / "model", "not a drcl anchor.*anchors are written by Anchor.save")
    torch.save(model.state_dict(), tmp_path / "pickle")
    refused(tmp_path / "pickle", "not a safetensors file")


def test_altered_files(saved):
    path = saved[2]
    original = path.read_bytes()
    rewrite(path, {"weight/0.bias": torch.zeros(17), "importance/0.bias": torch.zeros(17)}, signed=False)
    refused(path, "digest.*was altered")
    path.write_bytes(original)
    rewrite(path, signed=False, digest="0" * 64)
    refused(path, "digest.*was altered")
    path.write_bytes(original)
    rewrite(path, signed=False, digest=None)
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
            r"protects '2.\w+', which this model does not have: the anchor belongs to another model",
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
    again, before = DRCL(other.named_parameters(), lr=0.1, preset="weights"), weights(other)
    with pytest.raises(AnchorError, match="provenance cannot be read"):
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
    with pytest.raises(ValueError, match="nothing in the anchor starts with 'head'; there are 0"):
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


def test_importance_and_directions_in_sixteen_bits(tmp_path):
    """Half the file size; weights are exact, directions are orthonormal again, and a task continues nearly the same."""
    model = mlp(sizes=(40, 64, 3))
    data = task(0, features=40)
    opt = DRCL(model.named_parameters(), lr=0.1, preset="directions")
    opt.consolidate(model, data, Kronecker(samples=40, rank=8))
    exact, path = opt.anchor, tmp_path / "half"
    exact.save(tmp_path / "whole")
    exact.save(path, dtype=torch.bfloat16)
    assert path.stat().st_size < 0.6 * (tmp_path / "whole").stat().st_size
    half = Anchor.load(path, model)
    for name, w in exact.weights.items():
        assert torch.equal(w, half.weights[name])
        assert torch.allclose(exact.importance[name], half.importance[name], rtol=2**-8)
    for name, basis in half.bases.items():
        for u, was in (
            (basis.inputs[0], exact.bases[name].inputs[0]),
            (basis.outputs[0], exact.bases[name].outputs[0]),
        ):
            assert torch.allclose(u.mT @ u, torch.eye(u.shape[1]), atol=1e-5)
            assert (u * was).sum(0).min() > 0.9999
    ends = []
    for anchor in (exact, half):
        other = mlp(sizes=(40, 64, 3))
        again = DRCL(other.named_parameters(), lr=0.1, preset="directions", plasticity_steps=2)
        again.protect(other, anchor)
        fit(other, again, task(1, features=40), 4)
        ends.append(torch.cat([(p - exact.weights[n]).flatten() for n, p in other.named_parameters()]).detach())
    assert ends[0].norm() > 0
    assert (ends[0] - ends[1]).norm() < 0.02 * ends[0].norm()
    with pytest.raises(ValueError, match=r"dtype=torch\.float16 must be torch\.bfloat16, or None"):
        exact.save(path, dtype=torch.float16)
