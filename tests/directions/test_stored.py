"""Directions in states and anchor files: resumed like everything else, refused where they do not fit."""

import copy

import pytest
import torch
from safetensors import safe_open
from tests.directions.problems import VARIANTS, conv_net, images, protected, same, weights
from tests.tasks import fit, mlp, task

from drcl import DRCL, Anchor, AnchorError, Kronecker


@pytest.mark.parametrize("splitting", ["douglas-rachford", "forward-backward"])
@pytest.mark.parametrize(("steps", "variant"), [(1, "both"), (3, "rank"), (1, "long sides")])
def test_resuming_in_the_middle_of_a_task_changes_nothing(splitting, steps, variant, tmp_path):
    model = conv_net()
    opt = protected(
        model, images(0), VARIANTS[variant], momentum=0.9, splitting=splitting, plasticity_steps=steps, lr=0.1
    )
    fit(model, opt, images(1)[:2])
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, tmp_path / "saved.pt")
    twin_model, twin = copy.deepcopy((model, opt))
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    fresh = conv_net(9)
    again = DRCL(
        fresh.named_parameters(), lr=0.1, strength=0.1, momentum=0.9, splitting=splitting, plasticity_steps=steps
    )
    fresh.load_state_dict(saved["model"])
    again.load_state_dict(saved["opt"])
    for m, o in ((model, opt), (twin_model, twin), (fresh, again)):
        fit(m, o, images(2))
        o.consolidate(m, images(2), importance=Kronecker(**VARIANTS[variant]))
        fit(m, o, images(3))
        o.eval()
    assert same(weights(model), weights(twin_model))
    assert same(weights(model), weights(fresh))


def test_a_state_of_another_network_is_refused_before_anything_changes():
    opt = protected(mlp(), task(0))
    state = opt.state_dict()
    state["layers"][0]["inputs"] = state["layers"][0]["inputs"][:, :-1]
    model = mlp(1)
    other = DRCL(model.named_parameters(), lr=0.05, splitting="douglas-rachford")
    with pytest.raises(ValueError, match=r"'0\.weight'.*inputs"):
        other.load_state_dict(state)
    assert other.tasks == 0
    assert not other.progress.layers


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_anchor_file_carries_the_bases(variant, tmp_path):
    model = conv_net()
    opt = protected(model, images(0), {**VARIANTS[variant], "convolutions": "channels"})
    opt.anchor.save(tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert file.metadata()["format"] == "drcl.anchor/3"
    loaded = Anchor.load(tmp_path / "a.safetensors", model)
    for name, basis in opt.anchor.bases.items():
        assert loaded.bases[name].facts() == basis.facts()
        for key, t in basis.tensors().items():
            assert torch.equal(loaded.bases[name].tensors()[key], t)
    other = conv_net(5)
    other.load_state_dict(model.state_dict())
    again = DRCL(other.named_parameters(), lr=0.05, strength=0.1, splitting="douglas-rachford")
    again.protect(other, loaded)
    for m, o in ((model, opt), (other, again)):
        fit(m, o, images(1))
        o.consolidate(m, images(1), importance=Kronecker(**VARIANTS[variant]))
        fit(m, o, images(2))
    assert same(weights(model), weights(other))
    assert again.importance_mean == opt.importance_mean


def test_an_anchor_of_single_weights_has_no_bases(tmp_path):
    model = mlp()
    opt = DRCL(model.named_parameters(), lr=0.05, preset="weights")
    opt.consolidate(model, task(0))
    opt.anchor.save(tmp_path / "a.safetensors")
    assert Anchor.load(tmp_path / "a.safetensors").bases == {}


def test_a_basis_that_does_not_fit_is_refused():
    good = protected(mlp(), task(0)).anchor
    for change, words in (
        ({"3.weight": good.bases["2.weight"]}, "3.weight"),
        ({"0.weight": good.bases["2.weight"]}, "0.weight"),
    ):
        with pytest.raises(AnchorError, match=words):
            Anchor(good.weights, good.importance, {}, change)
    weights_only = {n: w for n, w in good.weights.items() if n != "0.bias"}
    importance = {n: i for n, i in good.importance.items() if n != "0.bias"}
    with pytest.raises(AnchorError, match=r"0\.bias"):
        Anchor(weights_only, importance, {}, good.bases)


def test_protecting_with_another_map_or_other_groups_is_refused():
    model = mlp()
    anchor = protected(model, task(0)).anchor
    with pytest.raises(ValueError, match="use prox='l1'"):
        DRCL(model.named_parameters(), lr=0.05, prox="box").protect(model, anchor)
    named = dict(model.named_parameters())
    parts = [[(n, p) for n, p in named.items() if n.endswith(end)] for end in ("weight", "bias")]
    opt = DRCL([{"params": part} for part in parts], lr=0.05, preset="weights")
    with pytest.raises(ValueError, match="different groups"):
        opt.protect(model, anchor)
    assert opt.tasks == 0
