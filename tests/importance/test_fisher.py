"""Fisher and MAS against closed forms and brute force; bad input; nothing left behind."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.importance.problems import (
    assert_same,
    assert_untouched,
    labelled,
    named,
    restless,
    snapshot,
    softmax_regression,
    squared_gradients,
)
from tests.nets import Transformer, mlp
from torch import nn
from torch.utils import data

from drcl.importance import MAS, Fisher


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_results_are_float_or_double_on_the_parameters_device(dtype):
    model = mlp(4, 5, 3).to(dtype)
    x, y = labelled(6)
    for name, value in Fisher().estimate(model, [(x.to(dtype), y)], named(model)).items():
        assert value.shape == named(model)[name].shape
        assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert not value.requires_grad
        assert (value >= 0).all()


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 0}, r"Fisher\(samples=0\): samples must be a whole number of at least 1"),
        ({"samples": 2.5}, "samples must be a whole number"),
        ({"samples": True}, "samples must be a whole number"),
        ({"batch_size": 0}, r"Fisher\(batch_size=0\)"),
        ({"seed": -1}, r"Fisher\(seed=-1\)"),
        ({"labels": "true"}, r"Fisher\(labels='true'\): labels must be None or one of sampled, signs, exact"),
        ({"labels": "sampled", "loss": F.l1_loss}, "use labels='empirical' with it"),
        ({"labels": "exact", "loss": nn.CrossEntropyLoss(label_smoothing=0.1)}, "use labels='empirical' with it"),
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


def test_mas_of_outputs_without_samples_is_refused():
    model = nn.Sequential(nn.Linear(4, 3).double(), nn.Flatten(0))
    with pytest.raises(ValueError, match="samples along the first dimension"):
        MAS().estimate(model, [(X, Y)], named(model))


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
