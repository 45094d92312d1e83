"""Fisher, MAS and the path integral against closed forms and brute force; bad input; nothing left behind."""

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.nets import Transformer, mlp
from torch import nn
from torch.utils import data

import drcl.importance
from drcl.importance import MAS, Fisher, Importance, PathIntegral
from drcl.preserve import undisturbed


def softmax_regression(features=4, classes=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, classes)).double()


def labelled(n, features=4, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=generator, dtype=torch.float64)
    return x, torch.randint(classes, (n,), generator=generator)


def named(model):
    return dict(model.named_parameters())


def squared_gradients(model, x, loss_of):
    """Mean over samples of squared gradients, sample by sample."""
    model = copy.deepcopy(model).eval()
    totals = {name: torch.zeros_like(p, requires_grad=False) for name, p in model.named_parameters()}
    for i in range(len(x)):
        for weight, loss in loss_of(model(x[i : i + 1]), i):
            gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            for name, g in zip(totals, gradients):
                totals[name] += weight * g**2 / len(x)
    return totals


def assert_same(found, expected, rtol=1e-9):
    assert set(found) == set(expected)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=rtol, atol=1e-13)


def test_empirical_fisher_of_softmax_regression_in_closed_form():
    """There the gradient is (p - onehot(y)) x^T."""
    model, (x, y) = softmax_regression(), labelled(20)
    d = model(x).detach().softmax(1) - F.one_hot(y, 3)
    expected = {"0.weight": (d**2).T @ (x**2) / 20, "0.bias": (d**2).mean(0)}
    assert_same(Fisher(labels="empirical").estimate(model, [(x, y)], named(model)), expected)


def test_exact_fisher_of_softmax_regression_in_closed_form():
    """E_y (p - onehot(y))_c^2 = p_c (1 - p_c)."""
    model, (x, y) = softmax_regression(), labelled(20)
    p = model(x).detach().softmax(1)
    d2 = p * (1 - p)
    expected = {"0.weight": d2.T @ (x**2) / 20, "0.bias": d2.mean(0)}
    assert_same(Fisher(labels="exact").estimate(model, [(x, y)], named(model)), expected)


def test_exact_fisher_is_the_expectation_over_labels():
    model, (x, y) = mlp(4, 6, 5).double(), labelled(12, classes=5)

    def all_classes(logits, i):
        log_p = logits.log_softmax(1)[0]
        return [(log_p[c].exp().detach(), log_p[c]) for c in range(5)]

    expected = squared_gradients(model, x, all_classes)
    assert_same(Fisher(labels="exact").estimate(model, [(x, y)], named(model)), expected)


def test_exact_fisher_of_a_very_confident_model():
    """Probabilities down to exp(-600): no overflow, no nan, still the closed form."""
    model, (x, y) = softmax_regression(), labelled(10)
    with torch.no_grad():
        model[0].weight.mul_(200)
    p = model(x).detach().softmax(1)
    found = Fisher(labels="exact").estimate(model, [(x, y)], named(model))
    torch.testing.assert_close(found["0.bias"], (p * (1 - p)).mean(0), rtol=1e-9, atol=1e-15)


def weight_draws(labels, model, batch, seeds=400):
    return torch.stack(
        [Fisher(labels=labels, seed=s).estimate(model, [batch], named(model))["0.weight"] for s in range(seeds)]
    )


@pytest.mark.parametrize("labels", ["sampled", "signs"])
def test_a_drawn_fisher_is_unbiased(labels):
    """The mean over 400 seeds comes within 5 standard errors of the exact Fisher."""
    model, batch = softmax_regression(), labelled(10)
    exact = Fisher(labels="exact").estimate(model, [batch], named(model))["0.weight"]
    draws = weight_draws(labels, model, batch)
    allowed = 5 * draws.std(0) / 20 + 1e-12  # the first class's signs cancel in the square: no noise there
    assert bool(((draws.mean(0) - exact).abs() < allowed).all())


def test_signs_keep_their_size_where_drawn_labels_vanish():
    """A model that is sure of itself: nearly every drawn label is the likely one, whose gradient is almost zero."""
    model, batch = softmax_regression(), labelled(10)
    with torch.no_grad():
        model[0].weight.mul_(8)
    exact = Fisher(labels="exact").estimate(model, [batch], named(model))["0.weight"].sum()
    sampled, signs = (weight_draws(labels, model, batch, 200).sum((1, 2)) / exact for labels in ("sampled", "signs"))
    assert signs.std() < sampled.std() / 2


def test_signs_are_exact_with_two_classes():
    model, (x, y) = mlp(4, 6, 2).double(), labelled(20)
    exact = Fisher(labels="exact").estimate(model, [(x, y % 2)], named(model))
    assert_same(Fisher(labels="signs", seed=3).estimate(model, [(x, y % 2)], named(model)), exact)


@pytest.mark.parametrize("labels", ["sampled", "signs"])
def test_drawn_labels_do_not_depend_on_the_batch_size(labels):
    model, (x, y) = mlp(4, 6, 3).double(), labelled(37)
    once = Fisher(labels=labels, batch_size=37).estimate(model, [(x, y)], named(model))
    for size in (1, 5, 16):
        assert_same(Fisher(labels=labels, batch_size=size).estimate(model, [(x, y)], named(model)), once)


def test_batches_are_merged_or_halved_by_what_their_activations_weigh():
    """Two samples are tried first, one of them alone; then the work is done in passes of the sizes given."""
    sizes = []

    def forward(model, batch):
        sizes.append(len(batch[0]))
        return model(batch[0]), None

    light, x = mlp(4, 6, 3), torch.randn(40, 4)
    loader = data.DataLoader(data.TensorDataset(x), batch_size=10)
    MAS().estimate(light, loader, named(light), forward)
    assert sizes == [1, 2, 20, 20]
    sizes.clear()
    MAS(batch_size=10).estimate(light, loader, named(light), forward)
    assert sizes == [1, 2, 10, 10, 10, 10]
    sizes.clear()
    heavy = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    MAS().estimate(heavy, [(torch.randn(20, 1, 100, 100),)], named(heavy), forward)
    assert sizes == [1, 2, 10, 10]


def test_it_is_not_the_square_of_the_mean_gradient():
    model, (x, y) = softmax_regression(), labelled(64)
    found = Fisher(labels="empirical").estimate(model, [(x, y)], named(model))["0.weight"]
    gradient = torch.autograd.grad(F.cross_entropy(model(x), y), model[0].weight)[0]
    assert (found > 3 * gradient**2).all()


def test_samples_limit_what_is_looked_at():
    model, (x, y) = softmax_regression(), labelled(50)
    loader = data.DataLoader(data.TensorDataset(x, y), batch_size=8)
    one = Fisher(samples=1, labels="empirical").estimate(model, loader, named(model))["0.weight"]
    d = model(x).detach().softmax(1) - F.one_hot(y, 3)
    each = (d**2)[:, :, None] * (x**2)[:, None]
    assert torch.isclose(each, one).all((1, 2)).sum() == 1
    whole = Fisher(samples=50, labels="empirical").estimate(model, loader, named(model))["0.weight"]
    torch.testing.assert_close(whole, each.mean(0))


def test_own_loss_as_a_vector_or_a_mean():
    """Regression: the gradient of (w x - t)^2 is 2 (w x - t) x."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 1)).double()
    x, t = torch.randn(9, 3).double(), torch.randn(9, 1).double()
    r = (model(x) - t).detach()
    expected = {"0.weight": ((2 * r * x) ** 2).mean(0, keepdim=True), "0.bias": (4 * r**2).mean(0)}
    for loss in (
        lambda o, t: ((o - t) ** 2).squeeze(1),
        lambda o, t: ((o - t) ** 2).mean(),
        lambda o, t: ((o - t) ** 2).sum(),
        nn.MSELoss(),
    ):
        found = Fisher(labels="empirical", loss=loss).estimate(model, [(x, t)], named(model))
        assert_same(found, expected)


class TokenModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 5)
        self.out = nn.Linear(5, 9)

    def forward(self, ids):
        return self.out(torch.tanh(self.embedding(ids)))


def test_token_logits_have_one_gradient_a_sequence():
    """A mean over the tokens that count, of which each sequence has its own number."""
    torch.manual_seed(0)
    model = TokenModel().double()
    ids = torch.randint(9, (6, 7))
    target = torch.where(torch.rand(6, 7) < 0.4, -100, ids)

    def loss(logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100)

    expected = squared_gradients(model, ids, lambda o, i: [(1, loss(o, target[i : i + 1]))])
    found = Fisher(labels="empirical", loss=loss).estimate(model, [(ids, target)], named(model))
    assert_same(found, expected)


def test_outputs_of_several_tensors_with_own_loss():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 3)

        def forward(self, x):
            return {"a": self.a(x), "b": self.b(x)}

    torch.manual_seed(0)
    model, (x, y) = Two().double(), labelled(7)

    def loss(output, target):
        return output["a"].square().sum(1) + F.cross_entropy(output["b"], target, reduction="none")

    expected = squared_gradients(model, x, lambda o, i: [(1, loss(o, y[i : i + 1]).sum())])
    assert_same(Fisher(labels="empirical", loss=loss).estimate(model, [(x, y)], named(model)), expected)


def test_transformer_classifier_through_the_whole_estimator():
    torch.manual_seed(0)
    model, ids = Transformer().double(), torch.randint(23, (9, 7))
    labels = torch.randint(5, (9,))

    def cross_entropy(logits, i):
        return [(1, F.cross_entropy(logits, labels[i : i + 1]))]

    expected = squared_gradients(model, ids, cross_entropy)
    found = Fisher(labels="empirical").estimate(model, [(ids, labels)], named(model))
    assert_same(found, expected, rtol=1e-7)


def test_mas_in_closed_form():
    """f = W x: d |f|^2 / d W = 2 f x^T."""
    model, (x, _) = softmax_regression(), labelled(20)
    f = model(x).detach()
    expected = {"0.weight": (2 * f).abs().T @ x.abs() / 20, "0.bias": (2 * f).abs().mean(0)}
    assert_same(MAS().estimate(model, [(x,)], named(model)), expected)
    assert_same(MAS().estimate(model, [x[:9], x[9:]], named(model)), expected)


def test_forward_hook_for_dict_batches_and_heads():
    torch.manual_seed(0)
    body, heads = nn.Linear(4, 6), nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 2)])
    model = nn.ModuleDict({"body": body, "heads": heads}).double()
    x, y = labelled(12)
    found = Fisher(labels="empirical").estimate(
        model,
        [{"image": x, "label": y}],
        named(model),
        forward=lambda m, batch: (m["heads"][0](torch.tanh(m["body"](batch["image"]))), batch["label"]),
    )
    whole = nn.Sequential(body, nn.Tanh(), heads[0])
    expected = squared_gradients(whole, x, lambda o, i: [(1, F.cross_entropy(o, y[i : i + 1]))])
    torch.testing.assert_close(found["body.weight"], expected["0.weight"])
    torch.testing.assert_close(found["heads.0.bias"], expected["2.bias"])
    assert found["heads.1.weight"].eq(0).all()
    assert found["heads.1.bias"].eq(0).all()


def test_target_may_be_missing_where_it_is_not_needed():
    model, (x, _) = softmax_regression(), labelled(6)
    for estimator in (Fisher(), Fisher(labels="exact"), MAS()):
        estimator.estimate(model, [{"x": x}], named(model), forward=lambda m, b: (m(b["x"]), None))
    with pytest.raises(ValueError, match="needs labels, but the batch has none"):
        Fisher(labels="empirical").estimate(model, [x], named(model))


def test_only_the_parameters_asked_for_come_back():
    model, batch = mlp(4, 5, 3).double(), labelled(8)
    every = Fisher().estimate(model, [batch], named(model))
    some = Fisher().estimate(model, [batch], {"3.weight": model[3].weight})
    assert_same(some, {"3.weight": every["3.weight"]})


def test_frozen_parameters_can_be_asked_for_and_stay_frozen():
    model, batch = mlp(4, 5, 3).double(), labelled(8)
    every = Fisher().estimate(model, [batch], named(model))
    model.requires_grad_(False)
    assert_same(Fisher().estimate(model, [batch], named(model)), every)
    assert not any(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_results_are_float_or_double_on_the_parameters_device(dtype):
    model = mlp(4, 5, 3).to(dtype)
    x, y = labelled(6)
    for name, value in Fisher().estimate(model, [(x.to(dtype), y)], named(model)).items():
        assert value.shape == named(model)[name].shape
        assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert not value.requires_grad
        assert (value >= 0).all()


class Restless(nn.Module):
    """Has everything a careless estimate could disturb, and disturbs some of it itself."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
        self.head = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("nothing", None)

    def forward(self, x):
        self.calls += 1
        return self.head(self.body(x))


def restless():
    torch.manual_seed(0)
    model = Restless().double().train()
    model.body[1].eval()
    model.head.bias.requires_grad_(False)
    x, y = labelled(16)
    F.cross_entropy(model(x), y).backward()
    return model, (x, y)


def snapshot(model):
    return {
        "modes": [m.training for m in model.modules()],
        "requires": [p.requires_grad for p in model.parameters()],
        "gradients": [(id(p.grad), None if p.grad is None else p.grad.clone()) for p in model.parameters()],
        "weights": [p.detach().clone() for p in model.parameters()],
        "buffers": [(id(b), b.clone()) for b in model.buffers()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
        "torch": torch.get_rng_state(),
        "numpy": str(np.random.get_state()),  # noqa: NPY002
        "python": random.getstate(),
        "grad mode": torch.is_grad_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
    }


def assert_untouched(before, after):
    for key, value in before.items():
        if key in ("weights", "torch"):
            torch.testing.assert_close(after[key], value, rtol=0, atol=0)
        elif key in ("gradients", "buffers"):
            assert [i for i, _ in value] == [i for i, _ in after[key]], key
            for (_, a), (_, b) in zip(value, after[key]):
                assert (a is None) == (b is None)
                assert a is None or torch.equal(a, b), key
        else:
            assert value == after[key], key


class Augmented(data.Dataset):
    """Draws from every global generator for each sample."""

    def __len__(self):
        return 16

    def __getitem__(self, i):
        noise = torch.randn(4).double() + random.random() + np.random.rand()  # noqa: NPY002
        return noise, i % 3


@pytest.mark.parametrize("estimator", [Fisher(), Fisher(labels="exact"), MAS()], ids=repr)
def test_nothing_is_left_behind(estimator):
    model, _ = restless()
    loader = data.DataLoader(Augmented(), batch_size=4, shuffle=True)
    before = snapshot(model)
    first = estimator.estimate(model, loader, named(model))
    assert_untouched(before, snapshot(model))
    torch.randn(3)
    random.random()
    # Whatever the global generators were at: the augmentation inside has its own beginning.
    assert_same(estimator.estimate(model, loader, named(model)), first)
    with torch.no_grad():
        assert_same(estimator.estimate(model, loader, named(model)), first)
    with torch.inference_mode():
        assert_same(estimator.estimate(model, loader, named(model)), first)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(estimator.estimate(model, loader, named(model)), first)


def test_nothing_is_left_behind_by_a_failure():
    model, (x, y) = restless()
    before = snapshot(model)

    def failing(m, batch):
        m.eval()
        m(batch[0])
        raise KeyError("the caller's own mistake")

    with pytest.raises(KeyError, match="the caller's own mistake"):
        Fisher().estimate(model, [(x, y)], named(model), forward=failing)
    with pytest.raises(ValueError, match="out of range"):
        Fisher(labels="empirical").estimate(model, [(x, y + 1)], named(model))
    assert_untouched(before, snapshot(model))


def test_undisturbed_restores_what_code_inside_replaces():
    model, _ = restless()
    before = snapshot(model)

    def meddle():
        with undisturbed(model, seed=4):
            model.eval()
            model.head.bias.requires_grad_(True)
            assert all(p.grad is None for p in model.parameters())
            model.head.weight.grad = torch.zeros_like(model.head.weight)
            model.calls.add_(5)
            model.body[1].running_mean = torch.zeros(6).double()
            torch.randn(2), np.random.rand(), random.random()  # noqa: NPY002
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        meddle()
    assert_untouched(before, snapshot(model))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 0}, r"Fisher\(samples=0\): samples must be a whole number of at least 1"),
        ({"samples": 2.5}, "samples must be a whole number"),
        ({"samples": True}, "samples must be a whole number"),
        ({"batch_size": 0}, r"Fisher\(batch_size=0\)"),
        ({"seed": -1}, r"Fisher\(seed=-1\)"),
        ({"labels": "true"}, r"Fisher\(labels='true'\): labels must be one of sampled, signs, exact, empirical"),
        ({"labels": "sampled", "loss": F.mse_loss}, "use labels='empirical' with it"),
        ({"labels": "exact", "loss": F.mse_loss}, "use labels='empirical' with it"),
    ],
)
def test_arguments_are_checked_when_given(arguments, message):
    with pytest.raises(ValueError, match=message):
        Fisher(**arguments)


def test_mas_checks_its_arguments_too():
    with pytest.raises(ValueError, match=r"MAS\(samples=-3\)"):
        MAS(samples=-3)


X, Y = labelled(6)


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([], ValueError, "batches holds no samples"),
        (iter(()), ValueError, "a generator already used up"),
        ([(X[:0], Y[:0])], ValueError, "batches holds no samples"),
        ([{"x": X}], TypeError, r"a batch must be \(inputs, labels\), got dict; pass forward="),
        ([(X, Y + 1)], ValueError, "label 3 is out of range: the model has 3 classes, 0 to 2"),
        ([(X, Y - 1)], ValueError, "label -1 is out of range"),
        ([(X, Y.float())], ValueError, "labels must be whole numbers"),
        ([(X, F.one_hot(Y, 3))], ValueError, r"labels must be whole numbers of shape \[6\]"),
        ([(X, Y[:4])], ValueError, "disagree on the number of samples"),
        (None, TypeError, "batches must be a DataLoader"),
        (data.TensorDataset(X, Y), TypeError, "wrap it in a torch"),
    ],
)
def test_bad_data_is_refused_with_the_remedy(batches, error, message):
    model = softmax_regression()
    before = snapshot(model)
    with pytest.raises(error, match=message):
        Fisher(labels="empirical").estimate(model, batches, named(model))
    assert_untouched(before, snapshot(model))


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (nn.Unflatten(1, (3, 1)), r"logits must have shape \[samples, classes\], got \[6, 3, 1\]"),
        (nn.Flatten(0), r"logits must have shape \[samples, classes\], got \["),
        (nn.Linear(3, 1).double(), "have one class"),
    ],
)
@pytest.mark.parametrize("labels", ["sampled", "signs", "empirical", "exact"])
def test_outputs_that_are_not_logits_are_refused(tail, message, labels):
    model = nn.Sequential(nn.Linear(4, 3).double(), copy.deepcopy(tail))
    with pytest.raises(ValueError, match=message):
        Fisher(labels=labels).estimate(model, [(X, Y)], named(model))


def test_mas_of_outputs_without_samples_is_refused():
    model = nn.Sequential(nn.Linear(4, 3).double(), nn.Flatten(0))
    with pytest.raises(ValueError, match="samples along the first dimension"):
        MAS().estimate(model, [(X, Y)], named(model))


def test_loss_of_the_wrong_shape_is_refused():
    model = softmax_regression()
    with pytest.raises(ValueError, match="a scalar or a vector of the 6 samples' losses, got \\[6, 3\\]"):
        Fisher(labels="empirical", loss=lambda o, t: o**2).estimate(model, [(X, Y)], named(model))
    with pytest.raises(ValueError, match="does not depend on the output"):
        Fisher(labels="empirical", loss=lambda o, t: o.detach().sum()).estimate(model, [(X, Y)], named(model))


def test_forward_of_the_wrong_kind_is_refused():
    model = softmax_regression()
    with pytest.raises(TypeError, match=r"must return a pair \(output, target\), got Tensor"):
        Fisher().estimate(model, [(X, Y)], named(model), forward=lambda m, b: m(b[0]))


@pytest.mark.parametrize("estimator", [Fisher(), Fisher(labels="exact"), MAS()], ids=repr)
def test_gradients_that_are_not_finite_name_their_parameter(estimator):
    model = mlp(4, 5, 3).double()
    x = X.clone()
    x[2, 1] = float("nan")
    with pytest.raises(FloatingPointError, match=r"the gradient of parameter '1.weight' is not finite"):
        estimator.estimate(model, [(x, Y)], named(model))
    model = softmax_regression().float()
    with torch.no_grad():
        model[0].weight.fill_(1e30)
    with pytest.raises(FloatingPointError, match=r"parameter '0.weight'"):
        MAS().estimate(model, [(1e25 * X.float(), Y)], named(model))


def test_parameters_of_another_model_are_refused():
    with pytest.raises(ValueError, match=r"parameter '0.weight' does not belong to the model"):
        Fisher().estimate(softmax_regression(), [(X, Y)], named(softmax_regression()))
    with pytest.raises(ValueError, match="parameters is empty"):
        Fisher().estimate(softmax_regression(), [(X, Y)], {})


def test_descriptions_are_plain_values():
    for estimator in (
        Fisher(samples=7, seed=3),
        Fisher(labels="empirical", loss=nn.MSELoss()),
        MAS(),
        PathIntegral(),
    ):
        assert isinstance(estimator, Importance)
        for value in estimator.describe().values():
            assert value is None or type(value) in (str, int, float, bool)
    assert Fisher(samples=7, seed=3).describe() == {
        "estimator": "Fisher",
        "samples": 7,
        "labels": "sampled",
        "loss": None,
        "seed": 3,
    }
    assert Fisher().needs_data
    assert not PathIntegral().needs_data
    assert set(drcl.importance.__all__) == {"Fisher", "Importance", "Labels", "MAS", "PathIntegral"}


def train(model, optimizer, steps, seed=0, closure=False):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(16, 4, generator=generator, dtype=torch.float64)
        y = (x[:, 0] > 0).long()

        def loss(x=x, y=y):
            optimizer.zero_grad()
            value = F.cross_entropy(model(x), y)
            value.backward()
            return value

        if closure:
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()


def test_path_integral_of_plain_sgd_is_lr_times_squared_gradients():
    model = softmax_regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    importance = PathIntegral(damping=0.2).watch(optimizer)
    start = {n: p.detach().clone() for n, p in named(model).items()}
    squares = {n: torch.zeros_like(p) for n, p in start.items()}
    hook = optimizer.register_step_pre_hook(
        lambda *_: [squares[n].addcmul_(p.grad, p.grad, value=0.1) for n, p in named(model).items()] and None
    )
    train(model, optimizer, 20)
    hook.remove()
    expected = {n: squares[n] / ((p.detach() - start[n]) ** 2 + 0.2) for n, p in named(model).items()}
    assert_same(importance.estimate(model, None, named(model)), expected)


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, foreach=True),
}


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_path_integral_follows_the_real_motion_of_any_optimizer(name, closure):
    """By hand: gradients and weights written down around every step."""
    model = softmax_regression()
    twin = copy.deepcopy(model)
    optimizer = OPTIMIZERS[name](model.parameters())
    importance = PathIntegral().watch(optimizer)
    train(model, optimizer, 15, closure=closure)

    by_hand = OPTIMIZERS[name](twin.parameters())
    start = [p.detach().clone() for p in twin.parameters()]
    omega = [torch.zeros_like(p) for p in start]
    generator = torch.Generator().manual_seed(0)
    for _ in range(15):
        x = torch.randn(16, 4, generator=generator, dtype=torch.float64)
        by_hand.zero_grad()
        F.cross_entropy(twin(x), (x[:, 0] > 0).long()).backward()
        before = [(p.detach().clone(), p.grad.clone()) for p in twin.parameters()]
        by_hand.step()
        for o, (w, g), p in zip(omega, before, twin.parameters()):
            o -= g * (p.detach() - w)
    expected = {
        n: (o / ((p.detach() - s) ** 2 + 0.1)).clamp(min=0) for (n, p), o, s in zip(named(twin).items(), omega, start)
    }
    assert_same(importance.estimate(model, None, named(model)), expected)


@pytest.mark.parametrize("closure", [False, True])
def test_path_integral_adds_up_to_the_loss_saved(closure):
    """Full-batch descent with small steps: the sum of omega is L(start) - L(end)."""
    model = softmax_regression()
    x, y = labelled(40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    importance = PathIntegral().watch(optimizer)

    def loss():
        optimizer.zero_grad()
        value = F.cross_entropy(model(x), y)
        value.backward()
        return value

    first = loss().item()
    for _ in range(200):
        if closure:
            optimizer.step(closure=loss)
        else:
            loss()
            optimizer.step()
    saved = sum(float(o.sum()) for o in importance.state_dict()["omega"])
    assert saved == pytest.approx(first - loss().item(), rel=0.02)


def test_path_integral_follows_every_evaluation_of_a_closure():
    """L-BFGS evaluates several times a step; its own path still adds up roughly to the loss saved."""
    torch.manual_seed(0)
    w = nn.Parameter(torch.tensor([3.0, -2.0], dtype=torch.float64))
    scale = torch.tensor([1.0, 1.5], dtype=torch.float64)
    optimizer = torch.optim.LBFGS([w], lr=0.05, max_iter=100, history_size=1)
    importance = PathIntegral().watch(optimizer)

    def loss():
        optimizer.zero_grad()
        value = (scale * w**2).sum() / 2
        value.backward()
        return value

    first = loss().item()
    optimizer.step(loss)
    saved = sum(float(o.sum()) for o in importance.state_dict()["omega"])
    assert saved == pytest.approx(first - loss().item(), rel=0.1)


def test_a_new_path_begins_after_the_estimate():
    model = softmax_regression()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    importance = PathIntegral().watch(optimizer)
    train(model, optimizer, 5)
    importance.estimate(model, None, named(model))
    with pytest.raises(RuntimeError, match="has seen no step"):
        importance.estimate(model, None, named(model))
    fresh_model = copy.deepcopy(model)
    fresh = torch.optim.Adam(fresh_model.parameters(), lr=0.01)
    fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    other = PathIntegral().watch(fresh)
    train(model, optimizer, 5, seed=1)
    train(fresh_model, fresh, 5, seed=1)
    assert_same(importance.estimate(model, None, named(model)), other.estimate(fresh_model, None, named(fresh_model)))


def test_path_integral_is_zero_where_motion_did_not_lower_the_loss():
    """Going uphill makes omega negative; standing still and frozen weights make it zero."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()
    model[1].bias.requires_grad_(False)
    groups = [
        {"params": [model[0].weight], "maximize": True},
        {"params": [model[0].bias], "lr": 0.0},
        {"params": [model[1].weight, model[1].bias]},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    importance = PathIntegral().watch(optimizer)
    train(model, optimizer, 10)
    assert (importance.state_dict()["omega"][0] < 0).all()
    found = importance.estimate(model, None, named(model))
    assert all(found[name].eq(0).all() for name in ("0.weight", "0.bias", "1.bias"))
    assert (found["1.weight"] > 0).all()


def test_path_integral_goes_on_from_a_saved_state(tmp_path):
    model = softmax_regression()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    importance = PathIntegral(damping=0.3).watch(optimizer)
    train(model, optimizer, 4)
    torch.save([importance.state_dict(), optimizer.state_dict(), model.state_dict()], tmp_path / "saved.pt")
    train(model, optimizer, 4, seed=1)
    expected = importance.estimate(model, None, named(model))

    again = softmax_regression(seed=9)
    path, steps, weights = torch.load(tmp_path / "saved.pt", weights_only=True)
    again.load_state_dict(weights)
    optimizer = torch.optim.Adam(again.parameters(), lr=0.01)
    optimizer.load_state_dict(steps)
    resumed = PathIntegral().watch(optimizer)
    resumed.load_state_dict(path)
    train(again, optimizer, 4, seed=1)
    found = resumed.estimate(again, None, named(again))
    assert all(torch.equal(found[n], expected[n]) for n in expected)


def test_groups_added_later_and_optimizers_made_anew_are_followed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    importance = PathIntegral().watch(optimizer)
    train(model, optimizer, 3)
    optimizer.add_param_group({"params": list(model[1].parameters())})
    train(model, optimizer, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    importance.watch(optimizer)
    train(model, optimizer, 3)
    assert importance.steps == 9
    found = importance.estimate(model, None, named(model))
    assert all((v > 0).any() for v in found.values())
    importance.unwatch()
    train(model, optimizer, 3)
    assert importance.steps == 0


def test_path_integral_refuses_what_it_cannot_do():
    model = softmax_regression()
    with pytest.raises(ValueError, match=r"PathIntegral\(damping=0\)"):
        PathIntegral(damping=0)
    with pytest.raises(TypeError, match="needs a torch optimizer, got Sequential"):
        PathIntegral().watch(model)
    with pytest.raises(RuntimeError, match=r"watch\(optimizer\) before training"):
        PathIntegral().estimate(model, None, named(model))
    optimizer = torch.optim.SGD([model[0].weight], lr=0.1)
    importance = PathIntegral().watch(optimizer)
    train(model, optimizer, 1)
    with pytest.raises(ValueError, match=r"parameter '0.bias' is not in the optimizer"):
        importance.estimate(model, None, named(model))
    with pytest.raises(RuntimeError, match=r"watch\(optimizer\) first"):
        PathIntegral().load_state_dict(importance.state_dict())
    other = PathIntegral().watch(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="over the same model"):
        other.load_state_dict(importance.state_dict())
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match=r"the path of parameter '0.weight' is not finite"):
        importance.estimate(model, None, {"0.weight": model[0].weight})
