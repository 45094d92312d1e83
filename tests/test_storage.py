"""DRCL(storage=torch.bfloat16): importance and directions in half the bytes, against the same in 32 bits."""

import copy

import pytest
import torch
from tests.directions.adapted import adapted, products
from tests.tasks import fit, mlp, same, task, weights
from torch import nn

from drcl import DRCL, Anchor, Fisher, Kronecker, drift
from drcl.directions.basis import orthonormal

HALF = torch.bfloat16
WAYS = {
    "single weights": (lambda p, **o: DRCL(p, lr=0.1, momentum=0.9, strength=0.05, **o), Fisher(samples=40)),
    "a share": (lambda p, **o: DRCL(p, lr=0.1, stable=0.6, **o), Fisher(samples=40)),
    "groups": (lambda p, **o: DRCL(p, lr=0.1, strength=0.05, prox="group", **o), Fisher(samples=40)),
    "reflection": (
        lambda p, **o: DRCL(p, lr=0.1, strength=0.05, splitting="douglas-rachford", **o),
        Fisher(samples=40),
    ),
    "around, single weights": (
        lambda p, **o: DRCL.around(torch.optim.AdamW(p, lr=0.01), strength=0.05, **o),
        Fisher(samples=40),
    ),
    "directions": (lambda p, **o: DRCL(p, lr=0.1, momentum=0.9, preset="directions", **o), Kronecker(samples=40)),
    "few directions": (lambda p, **o: DRCL(p, lr=0.1, plasticity_steps=2, **o), Kronecker(samples=40, rank=3)),
    "around": (
        lambda p, **o: DRCL.around(torch.optim.AdamW(p, lr=0.01), plasticity_steps=2, **o),
        Kronecker(samples=40),
    ),
}


def learned(way, tasks=2, model=None, **options):
    """A few steps into the task after `tasks` consolidated ones."""
    make, importance = WAYS[way]
    model = mlp() if model is None else model
    opt = make(model.named_parameters(), **options)
    for t in range(tasks):
        fit(model, opt, task(t))
        opt.consolidate(model, task(t), importance)
    fit(model, opt, task(tasks)[:3])
    return model, opt


def kept(opt):
    """Tensors by kind: those of single weights, and those of directions."""
    single = {key: [s[key] for _, s in opt.protected()] for key in ("anchor", "importance")}
    held = [*opt.progress.layers.values(), *opt.progress.adapters.values()]
    return {**single, "directions": [t for one in held for t in one.basis.tensors().values()]}


@pytest.mark.parametrize("way", WAYS)
def test_importance_and_directions_take_half_the_bytes_and_the_anchor_all_of_them(way):
    (_, one), (_, other) = learned(way), learned(way, storage=HALF)
    before, after = ({k: sum(t.nbytes for t in ts) for k, ts in kept(opt).items()} for opt in (one, other))
    assert 2 * after["importance"] == before["importance"]
    assert 2 * after["directions"] == before["directions"]
    assert after["anchor"] == before["anchor"]
    assert sum(p.numel() * 4 for p, _ in other.protected()) == after["anchor"]


@pytest.mark.parametrize("way", WAYS)
def test_training_ends_nearly_where_it_does_with_every_digit(way):
    (wide, one), (narrow, other) = learned(way), learned(way, storage=HALF)
    for a, b in zip(weights(wide), weights(narrow)):
        assert float((a - b).norm()) < 0.01 * float(a.norm())
    for name, t in one.anchor.importance.items():
        assert float((t - other.anchor.importance[name]).norm()) < 0.05 * float(t.norm())
        assert other.anchor.importance[name].dtype is torch.float32
    assert other.penalty() == pytest.approx(one.penalty(), rel=0.05)


@pytest.mark.parametrize("backend", ["auto", "foreach", "reference"])
def test_a_step_is_that_of_the_rounded_importance_bit_for_bit(backend):
    found = []
    for storage in (None, HALF):
        model, before = learned("single weights", tasks=1)
        opt = WAYS["single weights"][0](model.named_parameters(), storage=storage, backend=backend)
        opt.load_state_dict(before.state_dict())
        for state in opt.state.values():
            state["importance"] = state["importance"].to(HALF).to(state["importance"].dtype)
        fit(model, opt, task(1))
        found.append(weights(model))
    assert same(*found)


def test_what_is_frozen_returns_to_its_weights_bit_for_bit():
    for importance in (Fisher(samples=40), Kronecker(samples=40)):
        model = mlp()
        opt = DRCL(model.named_parameters(), lr=0.1, strength=float("inf"), storage=HALF)
        fit(model, opt, task(0))
        opt.consolidate(model, task(0), importance)
        before = weights(model)
        fit(model, opt, task(1))
        assert same(before, weights(model))
        assert drift(model, opt.anchor).total.unmoved == 1


@pytest.mark.parametrize("size", [16, 200])
def test_directions_are_orthonormal_again_in_a_step(size):
    torch.manual_seed(0)
    u = torch.linalg.qr(torch.randn(1, size, size, dtype=torch.double)).Q
    rounded = u.to(HALF).double()

    def off(t):
        return float(torch.linalg.matrix_norm(t.mT @ t - torch.eye(size), 2))

    assert 1e-4 < off(rounded) < 2**-6
    assert off(orthonormal(rounded)) < 1e-9
    assert off(orthonormal(rounded.float()).double()) < 1e-5
    # The nearest orthonormal columns, by the polar decomposition.
    left, _, right = torch.linalg.svd(rounded)
    assert torch.allclose(orthonormal(rounded), left @ right, atol=1e-9)


def test_many_steps_that_hold_nothing_leave_weights_where_they_are():
    """Directions that were only rounded would change them by up to a percent per step."""
    model, opt = learned("directions", storage=HALF, tasks=1)
    opt.consolidate(model, task(1), Kronecker(samples=40))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))
    before = weights(model)
    for group in opt.param_groups:
        group.update(lr=0.0, momentum=0.0)
    fit(model, opt, task(1), epochs=100)
    for a, b in zip(before, weights(model)):
        assert torch.allclose(a, b, atol=2e-4)


@pytest.mark.parametrize("way", WAYS)
def test_going_on_from_a_state_or_a_copy_is_bit_exact(way):
    model, opt = learned(way, storage=HALF)
    twin, copied = copy.deepcopy((model, opt))
    other = mlp(seed=5)
    other.load_state_dict(model.state_dict())
    again = WAYS[way][0](other.named_parameters(), storage=HALF)
    again.load_state_dict(opt.state_dict())
    assert same(opt.state_dict(), again.state_dict())
    for m, o in ((model, opt), (twin, copied), (other, again)):
        fit(m, o, task(3))
        o.consolidate(m, task(3), WAYS[way][1])
        fit(m, o, task(4)[:3])
    for m, o in ((twin, copied), (other, again)):
        assert same(weights(model), weights(m))
        assert same(opt.state_dict(), o.state_dict())


@pytest.mark.parametrize("way", ["single weights", "directions", "few directions"])
def test_a_state_is_taken_into_either_kind_of_storage(way):
    for saved, wanted in ((None, HALF), (HALF, None)):
        model, opt = learned(way, storage=saved)
        again = WAYS[way][0](model.named_parameters(), storage=wanted)
        again.load_state_dict(opt.state_dict())
        types = {t.dtype for key in ("importance", "directions") for t in kept(again)[key]}
        assert types == {wanted or torch.float32}
        for layer in again.progress.layers.values() if wanted is None else ():
            for u in (layer.basis.inputs, layer.basis.outputs):
                if u is not None:
                    assert torch.allclose(u.mT @ u, torch.eye(u.shape[-1]), atol=1e-5)
        fit(model, again, task(2))


@pytest.mark.parametrize("way", ["single weights", "directions", "few directions"])
@pytest.mark.parametrize("dtype", [None, HALF])
def test_an_anchor_is_saved_loaded_and_protected(way, dtype, tmp_path):
    model, opt = learned(way, storage=HALF)
    opt.anchor.save(tmp_path / "a.safetensors", dtype)
    anchor = Anchor.load(tmp_path / "a.safetensors", model)
    assert same(anchor.weights, opt.anchor.weights)
    assert same(anchor.importance, opt.anchor.importance)  # which had 16 bits already
    other = mlp(seed=3)
    again = WAYS[way][0](other.named_parameters(), storage=HALF)
    again.protect(other, anchor)
    assert {t.dtype for key in ("importance", "directions") for t in kept(again)[key]} == {HALF}
    assert same([s["importance"] for _, s in again.protected()], [s["importance"] for _, s in opt.protected()])
    fit(other, again, task(2))
    again.consolidate(other, task(2), WAYS[way][1])


@pytest.mark.parametrize("way", ["single weights", "directions", "around"])
def test_a_head_grows(way):
    model, opt = learned(way, storage=HALF)
    opt.consolidate(model, task(2), WAYS[way][1])
    wider = nn.Linear(16, 5)
    opt.grow(model[2].weight, wider.weight)
    opt.grow(model[2].bias, wider.bias)
    before = model[2].weight.detach().clone()
    model[2] = wider
    assert {t.dtype for key in ("importance", "directions") for t in kept(opt)[key]} == {HALF}
    assert torch.equal(wider.weight[:3], before)
    assert not opt.state[wider.weight]["importance"][3:].any()
    fit(model, opt, task(2))
    opt.consolidate(model, task(2), WAYS[way][1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_parameters_of_any_type(dtype):
    for way in ("single weights", "directions", "around"):
        model = mlp().to(dtype)
        opt = WAYS[way][0](model.named_parameters(), storage=HALF)
        data = [(x.to(dtype), y) for x, y in task(0)]
        fit(model, opt, data)
        opt.consolidate(model, data, WAYS[way][1])
        fit(model, opt, data)
        assert {t.dtype for t in kept(opt)["anchor"]} == {dtype}
        assert {t.dtype for key in ("importance", "directions") for t in kept(opt)[key]} == {HALF}
        wide = torch.float32 if dtype is torch.bfloat16 else dtype
        assert {t.dtype for t in opt.anchor.importance.values()} == {wide}


def test_adapters_are_held_by_directions_in_16_bits():
    found = []
    for storage in (None, HALF):
        model = adapted()
        inner = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
        opt = DRCL.around(inner, strength=0.05, prox="l2", storage=storage)
        for t in range(2):
            fit(model, opt, task(t))
            opt.consolidate(model, task(t), Kronecker(samples=40))
        fit(model, opt, task(2))
        assert opt.penalty() > 0
        again = copy.deepcopy(opt)
        again.load_state_dict(opt.state_dict())
        assert same(again.state_dict(), opt.state_dict())
        found.append((products(model), sum(t.nbytes for t in kept(opt)["directions"])))
        opt.protect(model, opt.anchor)
    (wide, many), (narrow, few) = found
    assert many == 2 * few
    for a, b in zip(wide, narrow):
        assert float((a - b).norm()) < 0.02 * float(a.norm())


@pytest.mark.parametrize("storage", [torch.float16, torch.float32, torch.int8, "bfloat16", 16])
def test_another_type_is_refused(storage):
    with pytest.raises(ValueError, match=r"storage=.* must be torch.bfloat16, or None"):
        DRCL(mlp().named_parameters(), storage=storage)
