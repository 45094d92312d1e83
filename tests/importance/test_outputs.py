"""Tokens, pixels, several outputs, ignored positions: importance against every label of every sample, written out."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.importance.brute import expected_squares, observed_squares
from tests.importance.problems import assert_same, named
from torch import nn

from drcl import DRCL, Fisher, Kronecker
from drcl.importance.labels import Question, exact_cotangents, observed_cotangents, signed_cotangents
from drcl.importance.outputs import Target


def tokens(classes=3):
    """[samples, tokens, classes]"""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, classes)).double()


def pixels():
    """[samples, classes, height, width]"""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 2, padding="same"), nn.Tanh(), nn.Conv2d(2, 2, 1)).double()


def data(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


X, IMAGES = data(4, 3, 2), data(3, 1, 2, 2)
LABELS = torch.tensor([[0, 1, 2], [2, -100, 0], [1, 1, -100], [-100, 0, 2]])
PIXEL_LABELS = torch.tensor([[[0, 1], [1, 0]], [[-100, 1], [0, 0]], [[1, 1], [-100, -100]]])


def token_rows(model, i):
    return model(X[i : i + 1])[0][LABELS[i] != -100]


def pixel_rows(model, i):
    return model(IMAGES[i : i + 1])[0].flatten(1).T[PIXEL_LABELS[i].flatten() != -100]


def test_exact_token_importance_leaves_ignored_positions_out():
    model = tokens()
    expected = expected_squares(model, token_rows, 4)
    assert_same(Fisher(labels="exact").estimate(model, [(X, LABELS)], named(model)), expected)


def test_exact_pixel_importance_leaves_ignored_positions_out():
    model = pixels()
    expected = expected_squares(model, pixel_rows, 3)
    assert_same(Fisher(labels="exact").estimate(model, [(IMAGES, PIXEL_LABELS)], named(model)), expected)


def test_labels_of_positions_are_summed_over_a_sample():
    model = tokens()
    expected = observed_squares(
        model, lambda m: (F.cross_entropy(m(X[i : i + 1])[0], LABELS[i], reduction="sum") for i in range(4))
    )
    assert_same(Fisher(labels="empirical").estimate(model, [(X, LABELS)], named(model)), expected)
    model = pixels()
    expected = observed_squares(
        model,
        lambda m: (F.cross_entropy(m(IMAGES[i : i + 1]), PIXEL_LABELS[i : i + 1], reduction="sum") for i in range(3)),
    )
    assert_same(Fisher(labels="empirical").estimate(model, [(IMAGES, PIXEL_LABELS)], named(model)), expected)


@pytest.mark.parametrize("labels", ["sampled", "signs"])
def test_one_pass_labels_have_the_exact_importance_in_the_mean(labels):
    """Within five standard errors, over seeds; and with the other layout they are the same numbers."""
    model = tokens()
    exact = expected_squares(model, token_rows, 4)
    draws = [Fisher(labels=labels, seed=s).estimate(model, [(X, LABELS)], named(model)) for s in range(150)]
    for name, value in exact.items():
        found = torch.stack([d[name] for d in draws])
        error = (found.mean(0) - value).abs()
        assert bool((error <= 5 * found.std(0) / 150**0.5 + 1e-12).all())


def test_two_classes_by_signs_are_exact_for_one_position_a_sample():
    model = tokens(classes=2)
    x = X[:, :1]
    exact = Fisher(labels="exact").estimate(model, [(x, None)], named(model))
    assert_same(Fisher(labels="signs").estimate(model, [(x, None)], named(model)), exact)


def test_all_signs_of_a_sample_give_the_covariance_of_its_positions():
    """One sample, two positions of three classes: 2^4 choices of signs, cotangents as vectors."""
    output = data(1, 2, 3)
    total, choices = torch.zeros(6, 6, dtype=torch.float64), 16
    for number in range(choices):
        bits = [[number >> k & 1 for k in range(4)][2 * t : 2 * t + 2] for t in range(2)]

        class Fixed:
            def integers(self, low, high, shape, bits=bits):
                return np.array(bits).reshape(shape)

        v = signed_cotangents(output, 1, Fixed())[0][0].flatten()
        total += v[:, None] * v / choices
    p = output[0].softmax(1)
    blocks = [torch.diag(q) - q[:, None] * q for q in p]
    torch.testing.assert_close(total, torch.block_diag(*blocks))


@pytest.mark.parametrize("labels", ["sampled", "signs", "exact", "empirical"])
def test_labels_do_not_depend_on_batches(labels):
    model = tokens()
    whole = Fisher(labels=labels).estimate(model, [(X, LABELS)], named(model))
    parts = Fisher(labels=labels, batch_size=1).estimate(model, [(X, LABELS)], named(model))
    assert_same(parts, whole)


def test_the_layout_that_fits_the_labels_is_taken():
    """Three dimensions have their classes last, four second; labels that fit only the other way decide."""
    for shape, labels, axis in (
        ((2, 3, 5), None, 2),
        ((2, 3, 5), (2, 3), 2),
        ((2, 3, 5), (2, 5), 1),
        ((2, 5, 3, 4), None, 1),
        ((2, 5, 3, 4), (2, 3, 4), 1),
        ((2, 3, 4, 5), (2, 3, 4), 3),
    ):
        output = data(*shape)
        target = None if labels is None else torch.zeros(labels, dtype=torch.long)
        (part,) = Question(output, target, 2).parts
        assert part.axis == axis
        assert torch.equal(part.back(part.rows()), output)
    with pytest.raises(ValueError, match=r"labels of shape \[2\] do not fit.*Kronecker\("):
        Question(data(2, 3, 5), torch.zeros(2, dtype=torch.long), 2, None, "Kronecker")


# -- several outputs ---------------------------------------------------------------------------------------------------


class TwoHeads(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.a, self.b = nn.Linear(2, 3), nn.Linear(3, 2), nn.Linear(3, 3)
        self.kind = kind
        self.double()

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.kind(a=self.a(h), b=self.b(h))


@pytest.mark.parametrize("kind", [dict, lambda **o: tuple(o.values())], ids=["dict", "tuple"])
def test_several_outputs_each_have_labels(kind):
    x, model = data(3, 2), TwoHeads(kind)
    target = kind(a=torch.tensor([0, 1, -100]), b=torch.tensor([2, 2, 0]))
    plain = TwoHeads(lambda **o: o)

    def exact(name):
        kept = [i for i in range(3) if name == "b" or i < 2]
        found = expected_squares(plain, lambda m, i: m(x[kept[i] : kept[i] + 1])[name], len(kept))
        return {n: t * len(kept) / 3 for n, t in found.items()}

    expected = {n: t + exact("b")[n] for n, t in exact("a").items()}  # labels of two heads are independent
    found = Fisher(labels="exact").estimate(model, [(x, target)], named(model))
    assert_same(found, expected)

    def losses(m):
        for i in range(3):
            o = m(x[i : i + 1])
            one = F.cross_entropy(o["a"], torch.tensor([[0], [1], [-100]][i]), reduction="sum")
            yield one + F.cross_entropy(o["b"], torch.tensor([[2], [2], [0]][i]))

    assert_same(
        Fisher(labels="empirical").estimate(model, [(x, target)], named(model)), observed_squares(plain, losses)
    )
    for labels in ("sampled", "signs"):
        whole = Fisher(labels=labels).estimate(model, [(x, target)], named(model))
        assert_same(Fisher(labels=labels, batch_size=1).estimate(model, [(x, target)], named(model)), whole)


def test_logits_stand_for_all_outputs():
    """A loss or hidden states beside them are not asked, and get no gradient."""
    x, y = data(3, 2), torch.tensor([0, 1, 1])
    model, alone = TwoHeads(lambda a, b: {"hidden": b, "logits": a}), TwoHeads(lambda a, b: a)
    for labels in ("sampled", "signs", "exact", "empirical"):
        found = Fisher(labels=labels).estimate(model, [(x, y)], named(model))
        expected = Fisher(labels=labels).estimate(alone, [(x, y)], named(alone))
        assert_same(found, expected)
        assert bool((found["b.weight"] == 0).all())


def test_outputs_without_labels_of_their_own_are_refused():
    x, y = data(3, 2), torch.tensor([0, 1, 1])
    model = TwoHeads(lambda a, b: (a, b))
    for target in (y, None):
        with pytest.raises(TypeError, match=r"tuple with 2 tensors.*labels for each.*Fisher\(likelihood=\.\.\.\)"):
            Fisher().estimate(model, [(x, target)], named(model))
    Fisher(likelihood="softmax").estimate(model, [x], named(model))


# -- other likelihoods -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [X, X[:, 0]], ids=["positions", "samples"])
def test_yes_or_no_labels(x):
    model = tokens(classes=2)
    target = (data(*model(x).shape) > 0).double()
    expected = expected_squares(model, lambda m, i: m(x[i : i + 1])[0].reshape(-1, 2), 4, "bernoulli")
    for given in (Fisher(labels="exact", likelihood="bernoulli"), Fisher(labels="exact", loss=nn.BCEWithLogitsLoss())):
        assert_same(given.estimate(model, [(x, target)], named(model)), expected)
    observed = observed_squares(
        model,
        lambda m: (F.binary_cross_entropy_with_logits(m(x[i]), target[i], reduction="sum") for i in range(4)),
    )
    assert_same(
        Fisher(labels="empirical", likelihood="bernoulli").estimate(model, [(x, target)], named(model)), observed
    )


@pytest.mark.parametrize("x", [X, X[:, 0]], ids=["positions", "samples"])
def test_numbers(x):
    """With variance one the exact importance is the diagonal of J^T J."""
    model = tokens(classes=2)
    target = data(*model(x).shape)

    def every_output(m):
        for i in range(4):
            yield from m(x[i : i + 1]).flatten()

    outputs = model(x)[0].numel()
    expected = {n: t * outputs for n, t in observed_squares(model, every_output).items()}
    found = Fisher(labels="exact", likelihood="gaussian").estimate(model, [(x, target)], named(model))
    assert_same(found, expected)
    observed = observed_squares(model, lambda m: (0.5 * (m(x[i]) - target[i]).square().sum() for i in range(4)))
    assert_same(
        Fisher(labels="empirical", likelihood="gaussian").estimate(model, [(x, target)], named(model)), observed
    )


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_one_output_a_sample_may_lack_its_dimension(likelihood):
    model = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)).double()
    x, y = data(4, 2), torch.tensor([0.0, 1.0, 1.0, 0.0]).double()
    flat = Fisher(labels="exact", likelihood=likelihood).estimate(model, [(x, y)], named(model))
    column = Fisher(labels="exact", likelihood=likelihood).estimate(model[0], [(x, y)], named(model[0]))
    assert_same({n.removeprefix("0."): t for n, t in flat.items()}, column)
    for labels in ("signs", "empirical"):
        given = Fisher(labels=labels, likelihood=likelihood)
        found = given.estimate(model[0], [(x, y)], named(model[0]))
        if labels == "signs":  # one number: exact
            assert_same(found, column)


def test_a_mask_of_positions_counts_for_numbers_too():
    output, mask = data(2, 3, 2), torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()
    for v in exact_cotangents(output, 2, Target(None, mask), "gaussian"):
        assert bool((v[0][~mask] == 0).all())
    v = observed_cotangents(output, Target(torch.zeros(2, 3, 2), mask), 2, "gaussian")[0][0]
    torch.testing.assert_close(v, output * mask[..., None])


def test_shares_of_classes_are_taken_where_softmax_is_asked_for_by_name():
    model, x = tokens(), X[:, 0]
    shares = data(4, 3).softmax(1)
    observed = observed_squares(model, lambda m: (F.cross_entropy(m(x[i]), shares[i]) for i in range(4)))
    given = Fisher(labels="empirical", likelihood="softmax")
    assert_same(given.estimate(model, [(x, shares)], named(model)), observed)
    with pytest.raises(ValueError, match="targets are float64"):
        Fisher(labels="empirical").estimate(model, [(x, shares)], named(model))


def test_wrong_labels_are_refused_by_name():
    model, x = tokens(), X[:, 0]
    given = Fisher(labels="empirical", likelihood="bernoulli")
    with pytest.raises(ValueError, match=r"must lie between 0 \(no\) and 1 \(yes\)"):
        given.estimate(model, [(x, 2 * torch.ones(4, 3))], named(model))
    given = Fisher(labels="empirical", likelihood="gaussian")
    with pytest.raises(ValueError, match=r"one number for each of the output's \[\d, 3\]"):
        given.estimate(model, [(x, torch.ones(4))], named(model))
    with pytest.raises(ValueError, match="likelihood='poisson'"):
        Kronecker(likelihood="poisson")


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_directions_share_out_the_importance_of_any_likelihood(likelihood):
    """And the anchor says which it was."""
    model = tokens(classes=2)
    batches = [(X, torch.zeros(4, 3, 2))]
    estimator = Kronecker(likelihood=likelihood, labels="exact")
    exact = Fisher(labels="exact", likelihood=likelihood).estimate(model, batches, named(model))
    for name, basis in estimator.measure(model, batches, named(model)).bases.items():
        whole = exact[name].sum() + exact[name.replace("weight", "bias")].sum()
        assert basis.total == pytest.approx(float(whole))
    opt = DRCL(model.named_parameters(), lr=0.1, preset="weights")
    opt.consolidate(model, batches, importance=estimator)
    told = opt.anchor.provenance
    assert told["made"][0]["likelihood"] == likelihood
    assert told["directions"] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert told["diagonal"] == []
