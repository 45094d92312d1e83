"""Adapters found in models and kept in anchors; they come back as they were, merged, or in another rank."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.directions.adapted import Adapted, adapted, effective, merged, products
from tests.tasks import fit, task
from torch import nn

from drcl import DRCL, Anchor, Fisher, Kronecker, drift
from drcl.anchor import AnchorError, own_names
from drcl.directions.adapters import Adapter, fitted, pairs
from drcl.importance import PathIntegral


def around(model, **options):
    made = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    return DRCL.around(made, preset="directions", **options)


def trained(estimator=None, **options):
    model = adapted(**options)
    opt = around(model)
    fit(model, opt, task(0), 3)
    opt.consolidate(model, task(0), estimator or Kronecker(samples=40))
    return model, opt


def test_they_are_found_by_what_they_look_like():
    model = adapted()
    found = pairs(model, own_names(model))
    assert list(found) == ["0.base_layer.weight", "2.base_layer.weight"]
    pair = found["0.base_layer.weight"]
    assert pair.a is model[0].lora_A["default"].weight
    assert pair.b is model[0].lora_B["default"].weight
    assert not pairs(nn.Linear(2, 2), {})
    # One factor that is trained alone multiplies a constant: a weight like any other.
    assert not pairs(model, own_names(model), {pair.b})


def test_importance_is_that_of_the_weight_below():
    """The same directions and eigenvalues as of a network with the adapters merged, trained in full."""
    model, opt = trained()
    whole = merged(adapted())
    with torch.no_grad():
        for layer, weight in zip((whole[0], whole[2]), effective(model)):
            layer.base_layer.weight.copy_(weight)
    plain = nn.Sequential(whole[0].base_layer, nn.ReLU(), whole[2].base_layer).requires_grad_(True)
    for p in (plain[0].bias, plain[2].bias):
        p.requires_grad_(False)
    other = DRCL([p for p in plain.parameters() if p.requires_grad], preset="directions")
    other.consolidate(plain, task(0), Kronecker(samples=40))
    for name, basis in other.anchor.bases.items():
        held = opt.anchor.adapters[name.replace(".weight", ".base_layer.weight")].basis
        assert torch.allclose(
            held.eigenvalues, basis.eigenvalues, rtol=1e-3, atol=1e-3 * float(basis.eigenvalues.max())
        )
        assert torch.allclose(held.input_factor, basis.input_factor, rtol=1e-4, atol=1e-5)


def test_the_importance_of_factors_is_that_of_the_product_pulled_back():
    _, opt = trained(Fisher(samples=40))
    adapter = opt.progress.adapters["0.base_layer.weight"]
    weights, (a, b) = adapter.basis.eigenvalues[0, 0], (adapter.a.detach(), adapter.b.detach())
    for i, r in ((0, 0), (3, 1)):
        expected = sum(float(weights[i, j] * (1.5 * a[r, j]) ** 2) for j in range(a.shape[1]))
        assert float(opt.state[adapter.b]["importance"][i, r]) == pytest.approx(expected, rel=1e-4)
        expected = sum(float(weights[k, i] * (1.5 * b[k, r]) ** 2) for k in range(b.shape[0]))
        assert float(opt.state[adapter.a]["importance"][r, i]) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_an_anchor_file_has_the_product_and_comes_back(tmp_path):
    model, opt = trained()
    opt.anchor.save(tmp_path / "a")
    other = adapted(seed=1)
    saved = Anchor.load(tmp_path / "a", other)
    assert "2 adapters" in repr(saved)
    assert saved.provenance["adapters"] == ["0.base_layer.weight", "2.base_layer.weight"]
    again = around(other)
    again.protect(other, saved)
    assert all(torch.equal(p, q) for p, q in zip(products(model), products(other)))
    assert again.anchor.adapters.keys() == opt.anchor.adapters.keys()
    for name, adapter in again.anchor.adapters.items():
        for key, t in opt.anchor.adapters[name].tensors().items():
            assert torch.equal(t, adapter.tensors()[key])
    # Both go on alike.
    fit(model, opt, task(1), 2)
    fit(other, again, task(1), 2)
    assert all(torch.allclose(p, q) for p, q in zip(products(model), products(other)))
    report = drift(other, saved)
    moved = torch.cat([(p - q.product()).flatten() for p, q in zip(products(other), saved.adapters.values())])
    assert report.stiffness == pytest.approx(float(moved.norm()), rel=1e-3)
    tensors = load_file(tmp_path / "a")
    tensors["adapter/b/0.base_layer.weight"][0, 0] += 1
    save_file(tensors, tmp_path / "b", metadata={"format": "drcl.anchor/3"})
    with pytest.raises(AnchorError, match="does not match the digest"):
        Anchor.load(tmp_path / "b")


def test_merged_into_the_weight_it_is_protected_there():
    model, opt = trained()
    before, anchor = effective(model), opt.anchor
    model = merged(model)
    again = around(model)
    again.protect(model, anchor)
    assert all(torch.allclose(p, q) for p, q in zip(before, effective(model)))
    assert all(not p.any() for p in products(model))
    assert drift(model, anchor).total.largest_change == 0
    twin, other = trained()
    for m, o in ((model, again), (twin, other)):
        for group in o.param_groups:
            group["strength"] = 1.0
        fit(m, o, task(1), 4)
    # Held as well as the adapter that went on: free, it goes far away.
    free, loose = trained()
    loose.param_groups[0]["strength"] = 0.0
    fit(free, loose, task(1), 4)
    far = [float((p - q).norm()) for p, q in zip(before, effective(free))]
    for m in (model, twin):
        near = [float((p - q).norm()) for p, q in zip(before, effective(m))]
        assert all(n < f / 2 for n, f in zip(near, far))
    again.consolidate(model, task(1), Kronecker(samples=40))
    assert again.tasks == 2


def test_while_it_is_merged_for_a_time_nothing_changes():
    model, opt = trained()
    sketch = opt.progress.adapters["0.base_layer.weight"].sketch
    model[0].merge()
    opt.consolidate(model, task(0), Kronecker(samples=40))
    assert torch.allclose(opt.progress.adapters["0.base_layer.weight"].sketch, sketch, atol=1e-4)
    assert drift(model, opt.anchor).total.largest_change < 1e-5
    with pytest.raises(AnchorError, match=r"is merged into it for now; call model\.unmerge_adapter\(\) first"):
        opt.protect(model, opt.anchor)


@pytest.mark.parametrize("estimator", [Fisher(samples=40), Kronecker(samples=40)])
def test_in_half_precision(estimator):
    model = adapted().bfloat16()
    data = [(x.bfloat16(), y) for x, y in task(0)]
    opt = around(model, strength=1e-3)
    fit(model, opt, data, 2)
    opt.consolidate(model, data, estimator)
    before = products(model)
    fit(model, opt, data, 4)
    opt.consolidate(model, data, estimator)
    assert all(p.dtype is torch.bfloat16 and bool(torch.isfinite(p).all()) for p in products(model))
    assert any(not torch.equal(p, q) for p, q in zip(before, products(model)))
    whole = merged(model)
    around(whole).protect(whole, opt.anchor)


def test_of_another_rank_the_product_counts():
    model, opt = trained()
    wider = adapted(seed=1, rank=4, scale=0.5)
    again = around(wider)
    again.protect(wider, opt.anchor)
    assert all(torch.allclose(p, q, atol=1e-6) for p, q in zip(products(model), products(wider)))
    narrow = adapted(seed=1, rank=1)
    with pytest.raises(AnchorError, match=r"has rank 2, but this model's has only rank 1; give it r=2 or more"):
        around(narrow).protect(narrow, opt.anchor)
    lean = opt.anchor.adapters["0.base_layer.weight"]
    lean = Adapter(lean.a, torch.outer(lean.b[:, 0], torch.tensor([1.0, 2.0])), 1.5, False, lean.sketch, lean.basis)
    a, b = fitted(lean, 1)
    assert torch.allclose(1.5 * b @ a, lean.product(), atol=1e-5)


def test_an_anchor_of_another_adapter_is_refused():
    _, opt = trained()
    for layers in ((0,), (2,)):
        fewer = adapted(layers=layers)
        with pytest.raises(
            AnchorError, match="the anchor belongs to another adapter; make one with the same target_modules"
        ):
            around(fewer).protect(fewer, opt.anchor)
    _, one = trained(layers=(0,))
    more = adapted()
    with pytest.raises(ValueError, match=r"'2\.base_layer\.weight' is unknown in the anchor and trained here"):
        around(more).protect(more, one.anchor)
    other = adapted()
    with torch.no_grad():
        other[0].base_layer.weight.mul_(1.1)
    before = products(other)
    with pytest.raises(AnchorError, match="not the one that the anchor's adapter was trained on"):
        around(other).protect(other, opt.anchor)
    assert all(torch.equal(p, q) for p, q in zip(before, products(other)))
    wide = nn.Sequential(Adapted(nn.Linear(7, 16)), nn.ReLU(), Adapted(nn.Linear(16, 3)))
    with pytest.raises(AnchorError, match="belongs to another model"):
        opt.anchor.check(wide)
    plain = nn.Linear(6, 3)
    with pytest.raises(AnchorError, match="this model has none there"):
        DRCL(plain.named_parameters(), normalise="share").protect(plain, opt.anchor)


def test_what_else_is_refused():
    model = adapted()
    with pytest.raises(ValueError, match="PathIntegral would measure the factors"):
        around(model).consolidate(model, task(0), PathIntegral())
    with pytest.raises(ValueError, match=r"prox=Box\(\) works only on single weights, but adapters"):
        DRCL(model.parameters(), prox="box").consolidate(model, task(0), Fisher(samples=8))
    with pytest.raises(ValueError, match=r"group 0: stable=0\.5 counts weights that stay in place"):
        DRCL(model.parameters(), stable=0.5).consolidate(model, task(0), Fisher(samples=8))
    model[0].use_dora = {"default": True}
    with pytest.raises(ValueError, match="a variant of LoRA"):
        around(model).consolidate(model, task(0))
    several = adapted()
    layer = several[0]
    layer.lora_A["other"], layer.lora_B["other"] = nn.Linear(6, 2, bias=False), nn.Linear(2, 16, bias=False)
    layer.scaling["other"], layer.active_adapters = 1.0, ["default", "other"]
    with pytest.raises(ValueError, match="several active adapters, default, other; train one at a time"):
        around(several).consolidate(several, task(0))
    odd = adapted()
    odd[0].base_layer.weight = nn.Parameter(torch.zeros(5, 5), requires_grad=False)
    with pytest.raises(
        ValueError, match=r"makes a product of shape \(16, 6\), but the weight there has shape \(5, 5\)"
    ):
        around(odd).consolidate(odd, task(0))


def test_values_that_lie_in_other_tensors_are_refused():
    class Elsewhere(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise NotImplementedError

    model = adapted()
    found = pairs(model, own_names(model))
    inside = torch.Tensor._make_subclass(Elsewhere, found["0.base_layer.weight"].b.detach(), True)
    del model[0].lora_B["default"]._parameters["weight"]
    model[0].lora_B["default"].weight = inside
    with pytest.raises(ValueError, match="has a Elsewhere, whose values lie in other tensors"):
        pairs(model, {**own_names(model), "b": inside})


def test_a_model_in_four_bits_is_refused():
    class Params4bit(nn.Parameter):
        pass

    model = adapted()
    packed = torch.zeros(48, 1, dtype=torch.uint8)
    model[0].base_layer.weight = Params4bit(packed, requires_grad=False)
    opt = around(model)
    said = r"the model is quantised: parameter '0\.base_layer\.weight' is a Params4bit"
    with pytest.raises(ValueError, match=said):
        opt.consolidate(model, task(0))
    with pytest.raises(ValueError, match=said):
        opt.protect(model, trained()[1].anchor)
    told = adapted()
    told.is_loaded_in_4bit = True
    with pytest.raises(ValueError, match="without load_in_4bit or load_in_8bit"):
        around(told).consolidate(told, task(0))
