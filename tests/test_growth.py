"""A parameter gains rows: what follows, against states built by hand and a dense computation; and what is refused."""

import copy

import numpy as np
import pytest
import torch
from tests.tasks import closure_on, fit, mlp, same, task, weights, whole_state
from torch import nn

from drcl import DRCL, Anchor, Fisher, Kronecker, PathIntegral

OPTIMIZERS = {
    "sgd": lambda p, **k: DRCL(p, lr=0.1, momentum=0.9, strength=0.05, **k),
    "douglas-rachford": lambda p, **k: DRCL(p, lr=0.1, strength=0.05, splitting="douglas-rachford", **k),
    "proposal": lambda p, **k: DRCL(p, lr=0.1, momentum=0.9, strength=0.05, plasticity_steps=3, **k),
    "adamw": lambda p, **k: DRCL.around(torch.optim.AdamW(p, lr=0.01), strength=0.05, **k),
    "amsgrad": lambda p, **k: DRCL.around(torch.optim.Adam(p, lr=0.01, amsgrad=True), strength=0.05, **k),
    "inner sgd": lambda p, **k: DRCL.around(torch.optim.SGD(p, lr=0.1, momentum=0.9), strength=0.05, **k),
    "rmsprop": lambda p, **k: DRCL.around(torch.optim.RMSprop(p, lr=0.01, momentum=0.5), strength=0.05, **k),
}
SPREAD = (5, 0, 3)  # where the three old rows of the head go among six


def wider(model, more=3):
    """The head of the network with more rows, of a fixed start."""
    old = model[2]
    torch.manual_seed(7)
    return nn.Linear(old.in_features, old.out_features + more, dtype=old.weight.dtype)


def grow(model, opt, rows=None, in_place=False):
    """Give the network a head of three more classes."""
    head = wider(model)
    for name in ("weight", "bias"):
        old, new = getattr(model[2], name), getattr(head, name)
        if in_place:
            grown = new.detach().clone()
            grown[list(rows or range(len(old)))] = old.detach()
            old.data = grown
            opt.grow(old, old, rows=rows)
        else:
            opt.grow(old, new, rows=rows)
            setattr(model[2], name, new)
    model[2].out_features += 3


def into_the_second_task(kind, steps=2, estimator=None, **options):
    model = mlp()
    opt = OPTIMIZERS[kind](model.named_parameters(), **options)
    fit(model, opt, task(0))
    opt.consolidate(model, task(0), estimator or Fisher(samples=40))
    for batch in task(1)[:steps]:
        opt.step(closure_on(model, opt, batch))
    return model, opt


def by_hand(small, rows, start):
    """A copy of an optimizer's packed state in which the head (parameters 2 and 3) has six rows, built with loops."""
    state = copy.deepcopy(small)
    for part in (state["state"], state.get("inner", {}).get("state", {})):
        for index, fresh in ((2, start["weight"]), (3, start["bias"])):
            for key, value in part.get(index, {}).items():
                if isinstance(value, torch.Tensor) and value.ndim:
                    large = np.zeros(tuple(fresh.shape), dtype=np.float32)
                    if key in ("anchor", "z", "start"):
                        large[:] = fresh.detach().numpy()
                    for i, row in enumerate(rows):
                        large[row] = value[i].numpy()
                    part[index][key] = torch.from_numpy(large)
    return state


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_step_is_that_of_an_optimizer_whose_state_was_built_by_hand(kind, in_place):
    model, opt = into_the_second_task(kind)
    start, held = wider(model), {n: getattr(model[2], n).detach().clone() for n in ("weight", "bias")}
    state = by_hand(opt.state_dict(), SPREAD, {n: getattr(start, n) for n in held})
    other = mlp(sizes=(6, 16, 6))
    with torch.no_grad():
        other[0].load_state_dict(model[0].state_dict())
        for name, old in held.items():
            getattr(other[2], name).copy_(getattr(start, name))
            for i, row in enumerate(SPREAD):
                getattr(other[2], name)[row] = old[i]
    fresh = OPTIMIZERS[kind](other.named_parameters())
    fresh.load_state_dict(state)
    grow(model, opt, rows=SPREAD, in_place=in_place)
    batches = task(3, classes=6)
    for batch in batches:
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))
        opt.step(closure_on(model, opt, batch))
        fresh.step(closure_on(other, fresh, batch))
    assert same(opt.state_dict(), fresh.state_dict())
    for one in (opt, fresh):
        one.eval()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))


@pytest.mark.parametrize("rows", [(0, 1, 2), SPREAD])
@pytest.mark.parametrize("rank", [None, 2])
def test_directions_are_those_of_the_dense_matrix_with_zeros_for_new_rows(rank, rows):
    """z - a solves (1 + gamma * strength * H)(z - a) = x - a, with H of the old rows alone, written out in full."""
    torch.set_default_dtype(torch.float64)
    try:
        model = mlp()
        opt = DRCL(model.named_parameters(), lr=0.1, strength=0.4, prox="l2", normalise="share")
        fit(model, opt, task(0))
        opt.consolidate(model, task(0), Kronecker(samples=40, rank=rank))
        old = opt.progress.layers[model[2].weight].basis
        m, n = 3, 17  # outputs; inputs with the bias
        identity = np.eye(m * n)
        h = np.stack(
            [_times(old, torch.from_numpy(column).reshape(1, 1, m, n)).reshape(-1) for column in identity], axis=1
        )
        grow(model, opt, rows=rows)
        large = np.zeros((6, n, 6, n))
        for i, p in enumerate(rows):
            for j, q in enumerate(rows):
                large[p, :, q, :] = h.reshape(m, n, m, n)[i, :, j, :]
        before = torch.cat([model[2].weight, model[2].bias[:, None]], 1).detach().numpy()
        batch = task(3, classes=6)[0]
        closure_on(model, opt, (batch[0].double(), batch[1]))()
        gradient = torch.cat([model[2].weight.grad, model[2].bias.grad[:, None]], 1).numpy()
        opt.step()
        after = torch.cat([model[2].weight, model[2].bias[:, None]], 1).detach().numpy()
        system = np.eye(6 * n) + 0.1 * 0.4 * large.reshape(6 * n, 6 * n)
        expected = before + np.linalg.solve(system, (-0.1 * gradient).reshape(-1)).reshape(6, n)
        np.testing.assert_allclose(after, expected, rtol=1e-9, atol=1e-12)
        new = [i for i in range(6) if i not in rows]
        np.testing.assert_allclose(after[new], (before - 0.1 * gradient)[new], rtol=1e-12, atol=1e-14)
    finally:
        torch.set_default_dtype(torch.float32)


def _times(basis, d):
    """H d: every part of d between the directions and what they leave out, times its eigenvalue."""
    (j, k), values = basis.kept, basis.eigenvalues[0, 0].numpy()
    v = np.eye(basis.size[0]) if basis.outputs is None else basis.outputs[0].numpy()
    u = np.eye(basis.size[1]) if basis.inputs is None else basis.inputs[0].numpy()
    d, total = d[0, 0].numpy(), 0
    left = [np.outer(v[:, i], v[:, i]) for i in range(j)] + ([np.eye(len(v)) - v @ v.T] if j < len(v) else [])
    right = [np.outer(u[:, i], u[:, i]) for i in range(k)] + ([np.eye(len(u)) - u @ u.T] if k < len(u) else [])
    for a, p in enumerate(left):
        for b, q in enumerate(right):
            total = total + values[a, b] * p @ d @ q
    return total


@pytest.mark.parametrize("kind", ["sgd", "adamw", "douglas-rachford"])
@pytest.mark.parametrize("estimator", [Fisher, Kronecker])
def test_anchor_resume_and_the_next_task_after_it(kind, estimator, tmp_path):
    model, opt = into_the_second_task(kind, estimator=estimator(samples=40))
    grow(model, opt)
    anchor = opt.anchor
    assert anchor.weights["2.weight"].shape == (6, 16)
    assert float(anchor.importance["2.weight"][3:].abs().sum()) == 0
    assert float(anchor.importance["2.weight"][:3].abs().sum()) > 0
    anchor.save(tmp_path / "anchor.safetensors")
    Anchor.load(tmp_path / "anchor.safetensors", model)
    other = mlp(seed=5, sizes=(6, 16, 6))
    again = OPTIMIZERS[kind](other.named_parameters())
    other.load_state_dict(model.state_dict())
    again.load_state_dict(copy.deepcopy(opt.state_dict()))
    for m, o in ((model, opt), (other, again)):
        fit(m, o, task(3, classes=6))
        o.consolidate(m, task(3, classes=6), estimator(samples=40))
        fit(m, o, task(4, classes=6))
    assert same(weights(model), weights(other))
    assert same(opt.state_dict(), again.state_dict())
    assert float(opt.anchor.importance["2.weight"][3:].abs().sum()) > 0


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_both_weights_of_a_reflection_follow(mode):
    model, opt = into_the_second_task("douglas-rachford")
    getattr(opt, mode)()
    grow(model, opt, rows=SPREAD)
    opt.eval()
    z = model[2].weight.detach().clone()
    opt.train()
    y = model[2].weight.detach().clone()
    new = [1, 2, 4]
    assert torch.equal(z[new], y[new])
    assert torch.equal(y[new], wider(mlp()).weight[new])
    assert not torch.equal(z[list(SPREAD)], y[list(SPREAD)])


def test_new_rows_learn_at_full_speed():
    model, opt = into_the_second_task("sgd", steps=0)
    for group in opt.param_groups:
        group["strength"] = 1e6
    grow(model, opt)
    before = weights(model)
    batch = task(3, classes=6)[0]
    closure_on(model, opt, batch)()
    gradient = model[2].weight.grad.clone()
    opt.step()
    assert torch.equal(model[2].weight[:3], before[2][:3])
    assert torch.equal(model[2].weight[3:], (before[2] - 0.1 * gradient)[3:])


@pytest.mark.parametrize("kind", ["adagrad", "rprop", "adafactor"])
def test_state_that_does_not_start_at_zero(kind):
    """A new row's first step is that of a row whose training begins: Adagrad's sum, Rprop's step size."""
    made = {
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
        "rprop": lambda p: torch.optim.Rprop(p, lr=0.02),
        "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
    }[kind]
    weight = nn.Parameter(torch.ones(2, 3))
    opt = DRCL.around(made([weight]))
    for _ in range(3):
        weight.grad = torch.full((2, 3), 0.25)
        opt.step()
    larger = nn.Parameter(torch.ones(4, 3))
    opt.grow(weight, larger)
    larger.grad = torch.full((4, 3), 0.25)
    opt.step()
    moved = 1 - larger.detach()[2:].double()
    expected = {"adagrad": 0.1 * 0.25 / (0.5 + 0.25**2) ** 0.5, "rprop": 0.02}.get(kind)
    if expected is not None:
        np.testing.assert_allclose(moved.numpy(), expected, rtol=1e-5)
    else:
        assert opt.inner.state[larger]["row_var"].shape == (4, 1)
        assert bool((moved > 0).all())


def test_an_embedding_and_a_free_head():
    torch.manual_seed(0)
    model = nn.ModuleDict({"embedding": nn.Embedding(5, 4), "head": nn.Linear(4, 3)})
    groups = [{"params": [("embedding.weight", model["embedding"].weight)]}]
    groups += [{"params": [(f"head.{n}", p) for n, p in model["head"].named_parameters()], "free": True}]
    opt = DRCL(groups, lr=0.1, momentum=0.9, preset="weights")
    batch = (torch.arange(5), torch.tensor([0, 1, 2, 0, 1]))

    def forward(m, b):
        return m["head"](m["embedding"](b[0])), b[1]

    opt.consolidate(model, [batch], Fisher(labels="exact"), forward=forward)
    old, larger = model["embedding"].weight.detach().clone(), nn.Embedding(8, 4)
    fresh = larger.weight.detach().clone()
    opt.grow(model["embedding"].weight, larger.weight)
    head = nn.Linear(4, 6)
    opt.grow(model["head"].weight, head.weight)
    opt.grow(model["head"].bias, head.bias)
    model = nn.ModuleDict({"embedding": larger, "head": head})
    assert torch.equal(larger.weight, torch.cat([old, fresh[5:]]))
    anchor = opt.anchor
    assert torch.equal(anchor.weights["embedding.weight"], larger.weight)
    assert torch.equal(anchor.free["head.weight"], head.weight)
    with torch.no_grad():
        head.weight.zero_()
    anchor.restore(model)  # nothing is left out: the free head has grown too
    assert float(head.weight.detach().abs().sum()) > 0
    torch.nn.functional.cross_entropy(*forward(model, (torch.arange(8), torch.arange(8) % 6))).backward()
    opt.step()


def test_before_the_first_task_only_the_parameter_is_exchanged():
    model = mlp()
    opt = OPTIMIZERS["adamw"](model.named_parameters())
    fit(model, opt, task(0))
    grow(model, opt)
    assert opt.inner.state[model[2].weight]["exp_avg"].shape == (6, 16)
    fit(model, opt, task(3, classes=6))
    assert opt.name_of(model[2].weight) == "2.weight"


def test_a_parameter_that_grew_in_its_place_is_refused_until_grow_is_called():
    model, opt = into_the_second_task("sgd", estimator=Kronecker(samples=40))
    head = wider(model)
    for name in ("weight", "bias"):
        grown = getattr(head, name).detach().clone()
        grown[:3] = getattr(model[2], name).detach()
        getattr(model[2], name).data = grown
    with pytest.raises(ValueError, match=r"'2.weight' is .* opt\.grow\(old, new\)"):
        fit(model, opt, task(3, classes=6))
    opt.grow(model[2].weight, model[2].weight)
    with pytest.raises(ValueError, match=r"'2.bias' is .* opt\.grow\(old, new\)"):
        fit(model, opt, task(3, classes=6))
    opt.grow(model[2].bias, model[2].bias)
    fit(model, opt, task(3, classes=6))


def test_a_weight_whose_bias_did_not_grow_is_refused():
    model, opt = into_the_second_task("sgd", estimator=Kronecker(samples=40))
    head = wider(model)
    opt.grow(model[2].weight, head.weight)
    for act in (lambda: fit(model, opt, task(0)), lambda: opt.consolidate(model, task(0), Fisher(samples=40))):
        with pytest.raises(ValueError, match=r"opt\.grow|not in"):
            act()
    model[2].weight = head.weight
    model[0].weight.grad = torch.zeros_like(model[0].weight)
    with pytest.raises(ValueError, match=r"'2.weight' has 6 rows now, '2.bias' 3: call opt\.grow"):
        opt.step()


def test_grouped_outputs_fall_back_to_single_weights_with_a_sentence():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.LazyLinear(3))
    x, y = torch.randn(12, 4, 5, 5), torch.randint(3, (12,))
    model(x)
    opt = DRCL(model.named_parameters(), lr=0.1, preset="directions")
    opt.consolidate(model, [(x, y)], Kronecker(samples=12))
    assert model[0].weight in opt.progress.layers
    new = nn.Conv2d(4, 6, 3, groups=2)
    with pytest.warns(UserWarning, match="held weight by weight until the next consolidate"):
        opt.grow(model[0].weight, new.weight)
    assert new.weight not in opt.progress.layers
    assert "importance" in opt.state[new.weight]


def test_a_path_integral_begins_a_new_path():
    model = mlp()
    opt = DRCL(model.named_parameters(), lr=0.1)
    path = PathIntegral().watch(opt)
    fit(model, opt, task(0))
    grow(model, opt, in_place=True)
    with pytest.raises(ValueError, match="grew after its last step"):
        opt.consolidate(model, None, path)
    fit(model, opt, task(3, classes=6))
    opt.consolidate(model, None, path)


WRONG = {
    "no tensor": (lambda m, w: (3, w.weight), {}, TypeError, r"grow\(old=...\) must be a parameter"),
    "no new one": (lambda m, w: (m[2].weight, None), {}, TypeError, r"grow\(new=...\) must be a parameter"),
    "stranger": (lambda m, w: (w.weight, nn.Linear(16, 9).weight), {}, ValueError, "is not in this optimizer"),
    "other columns": (lambda m, w: (m[2].weight, nn.Linear(5, 6).weight), {}, ValueError, "only gain entries"),
    "fewer rows": (lambda m, w: (m[2].weight, nn.Linear(16, 2).weight), {}, ValueError, "only gain entries"),
    "other type": (lambda m, w: (m[2].weight, w.double().weight), {}, ValueError, "make both the same"),
    "taken": (lambda m, w: (m[2].bias, m[0].bias), {}, ValueError, "in this optimizer already, as '0.bias'"),
    "few places": (lambda m, w: (m[2].weight, w.weight), {"rows": [1, 2]}, ValueError, "there are 3 old rows"),
    "same place": (lambda m, w: (m[2].weight, w.weight), {"rows": [1, 2, 2]}, ValueError, "different positions"),
    "outside": (lambda m, w: (m[2].weight, w.weight), {"rows": [1, 2, 6]}, ValueError, "from 0 to 5"),
    "no rows": (lambda m, w: (m[2].weight, w.weight), {"rows": "abc"}, TypeError, "whole numbers"),
    "halves": (lambda m, w: (m[2].weight, w.weight), {"rows": [0.5, 1, 2]}, TypeError, "whole numbers"),
    "no leaf": (lambda m, w: (m[2].weight, w.weight * 2), {}, TypeError, "ordinary torch.nn.Parameter"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_refused_changes_nothing(kind):
    arguments, options, error, sentence = WRONG[kind]
    model, opt = into_the_second_task("sgd")
    before = whole_state(model, opt)
    with pytest.raises(error, match=sentence):
        opt.grow(*arguments(model, wider(model)), **options)
    assert same({**before, "random": 0}, {**whole_state(model, opt), "random": 0})


def test_lbfgs_is_refused():
    model = mlp()
    opt = DRCL.around(torch.optim.LBFGS(model.parameters()))
    with pytest.raises(TypeError, match="LBFGS keeps all parameters in one vector"):
        opt.grow(model[2].weight, wider(model).weight)
