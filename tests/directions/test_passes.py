"""Which layers have directions, and what the passes over samples say of all others."""

import pytest
import torch
from tests.directions.problems import everything, measured
from tests.nets import Transformer
from torch import nn

from drcl import Fisher
from drcl.directions.passes import Passes


def test_long_patches_fall_back_to_channels():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    basis = measured(model, [(torch.randn(2, 3, 4, 4), None)], largest=20).bases["0.weight"]
    assert basis.eigenvalues.shape == (1, 9, 4, 3)


@pytest.mark.filterwarnings("ignore")
def test_everything_else_keeps_the_diagonal_fisher():
    torch.manual_seed(7)
    model = Transformer()
    data = [(torch.randint(1, 23, (6, 7)), torch.randint(5, (6,)))]
    whole = measured(model, data, labels="sampled")
    found, bases = whole.importance, whole.bases
    diagonal = Fisher().estimate(model, data, everything(model))
    assert {"encoder.layers.0.linear1.weight", "head.weight"} <= set(bases)
    covered = set(bases) | {n.removesuffix("weight") + "bias" for n, b in bases.items() if b.bias}
    assert list(found) == list(diagonal)
    assert {"embedding.weight", "norm.weight"}.isdisjoint(covered)
    assert {f"encoder.layers.0.self_attn.{n}" for n in ("in_proj_weight", "in_proj_bias", "out_proj.bias")} <= covered
    for name in set(found) - covered:
        torch.testing.assert_close(found[name], diagonal[name])
    # The directions of a layer share out exactly what its weights had.
    total = sum(float(found[n].sum()) for n in covered)
    assert total == pytest.approx(sum(float(diagonal[n].sum()) for n in covered), rel=1e-4)


def test_tied_and_reused_layers_keep_the_diagonal():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.out = nn.Linear(4, 4), nn.Linear(4, 4)
            self.tied = nn.Linear(4, 4)
            self.tied.weight = self.out.weight

        def forward(self, x):
            return self.tied(torch.tanh(self.out(torch.tanh(self.inner(torch.tanh(self.inner(x)))))))

    torch.manual_seed(8)
    model, data = Twice(), [(torch.randn(5, 4), torch.randint(4, (5,)))]
    whole = measured(model, data, labels="sampled")
    found, bases = whole.importance, whole.bases
    assert not bases
    for name, value in Fisher().estimate(model, data, everything(model)).items():
        torch.testing.assert_close(found[name], value)


def passes(model, data, groups=None, channels=False, largest=4096, **fisher):
    own = Fisher(**{"labels": "empirical", **fisher})
    return Passes(
        own, model, data, everything(model), lambda m, b: (m(b[0]), b[1]), groups or {}, channels, largest, twice=True
    )


def small(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(12, 4)).double()
    return model, [(torch.randn(n, 2, 3, 3).double(), torch.randint(4, (n,))) for n in (5, 2)]


def test_layers_and_their_biases():
    model, data = small()
    found = passes(model, data)
    assert found.samples == 7
    assert found.layers == {"0.weight": model[0], "3.weight": model[3]}
    assert found.biased == {"0.weight", "3.weight"}
    assert passes(model, data, groups={"0.weight": 0, "0.bias": 1}).biased == {"3.weight"}
    apart = passes(model, data, channels=True)
    assert apart.apart == {"0.weight": True, "3.weight": False}
    assert apart.biased == {"3.weight"}


def test_factors_are_means_and_the_rest_has_its_diagonal():
    model, data = small()
    found = passes(model, data)
    x = torch.cat([b[0] for b in data])
    rows = torch.cat([model[:3](x), torch.ones(7, 1).double()], 1)
    torch.testing.assert_close(found.factors()["3.weight"].a[0], rows.T @ rows / 7)
    diagonal = Fisher(labels="empirical").estimate(model, data, everything(model))
    rest = found.diagonal()
    assert set(rest) == {"1.weight", "1.bias"}
    torch.testing.assert_close(rest, {n: diagonal[n] for n in rest})
    model = nn.Sequential(nn.Linear(4, 3)).double()
    assert passes(model, [(torch.randn(5, 4).double(), torch.zeros(5, dtype=torch.long))]).diagonal() == {}


def test_a_model_without_layers_has_no_passes_to_make():
    model = nn.Sequential(nn.LayerNorm(4)).double()
    found = passes(model, [(torch.randn(5, 4).double(), torch.zeros(5, dtype=torch.long))])
    assert found.layers == found.factors() == found.eigenvalues({}) == {}
    assert set(found.diagonal()) == {"0.weight", "0.bias"}


class Mood(nn.Module):
    """Calls its layer once more where the first input of a batch is large: what a tap learned is not so there."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        h = self.inner(x)
        return self.head(self.inner(h) if float(x[0, 0]) > 5 else h)


def test_batches_that_the_model_treats_unlike_are_refused():
    model, y = Mood().double(), torch.zeros(4, dtype=torch.long)
    quiet, loud = torch.zeros(4, 3).double(), torch.full((4, 3), 9.0).double()
    found = passes(model, [(quiet, y), (loud, y)])
    with pytest.raises(ValueError, match=r"Kronecker: .*give it only batches for which the model calls"):
        found.factors()


def test_layers_that_mix_samples_have_no_directions():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            h = self.inner(x)
            return self.head(torch.tanh(h - 0.5 * h.mean(0)))

    torch.manual_seed(0)
    model, y = Centred().double(), torch.tensor([0, 1, 1, 0])
    assert passes(model, [(torch.randn(4, 3).double(), y)]).layers == {}


def test_a_gradient_that_is_not_finite_names_its_layer():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 2)), torch.randn(3, 3)
    x[2] = 1e30  # the first two are those that are tried
    found = passes(model, [(x, torch.tensor([0, 1, 0]))])
    with pytest.raises(FloatingPointError, match=r"'0.weight' is not finite"):
        found.factors()


# -- one pass ----------------------------------------------------------------------------------------------------------


def pictures(samples=512, seed=0):
    """A network whose convolution meets many rows, and its last layer few."""
    torch.manual_seed(seed)
    layers = (
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.Tanh(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(24, 3),
    )
    x = torch.randn(samples, 2, 8, 8).cumsum(2).cumsum(3) / 8
    return nn.Sequential(*layers).double().eval(), list(
        zip(x.double().split(64), torch.randint(3, (samples,)).split(64))
    )


def test_one_pass_is_as_good_as_two_within_its_spread():
    model, data = pictures()
    one, two = (measured(model, data, labels="empirical", passes=passes) for passes in (1, 2))
    a, b = one.bases["0.weight"], two.bases["0.weight"]
    for name, tolerance in (("input_factor", 0.15), ("output_factor", 0.3)):
        mine, exact = getattr(a, name), getattr(b, name)
        assert 0 < (mine - exact).norm() < tolerance * exact.norm()
    assert a.total == pytest.approx(b.total, rel=0.25)
    # Along the directions of one pass: what the samples' gradients say of each of them.
    exact = b.seen_in(a)
    assert (a.eigenvalues - exact).norm() < 0.35 * exact.norm()
    # The last layer has one row per sample: nothing was drawn there, nor of the norm.
    last = [m.bases["5.weight"] for m in (one, two)]
    torch.testing.assert_close(last[0].input_factor, last[1].input_factor)
    torch.testing.assert_close(last[0].eigenvalues.sum(), last[1].eigenvalues.sum())
    torch.testing.assert_close(one.importance["1.weight"], two.importance["1.weight"])


def test_what_is_drawn_has_a_seed():
    model, data = pictures()
    first, again, other = (measured(model, data, seed=seed).bases["0.weight"] for seed in (0, 0, 1))
    assert torch.equal(first.eigenvalues, again.eigenvalues)
    assert torch.equal(first.input_factor, again.input_factor)
    assert not torch.equal(first.input_factor, other.input_factor)


@pytest.mark.parametrize("eigenvalues", ["exact", "product"])
def test_few_samples_are_all_read_at_every_position(eigenvalues):
    model, data = pictures(30)
    one, two = (measured(model, data, eigenvalues=eigenvalues, passes=passes) for passes in (1, 2))
    for name in two.bases:
        torch.testing.assert_close(one.bases[name].tensors(), two.bases[name].tensors())
    torch.testing.assert_close(one.importance, two.importance)


def test_every_sample_comes_once_or_twice():
    model, data = pictures()
    shown = []
    model[0].register_forward_hook(lambda module, args, output: shown.append(len(output)))
    for passes, times in ((1, 1), (2, 2)):
        shown.clear()
        measured(model, data, passes=passes)
        assert 512 * times <= sum(shown) < 512 * times + 20  # and some that are tried first


def test_a_parameter_without_a_rule_has_its_diagonal_from_some_samples():
    torch.manual_seed(0)
    model, data = pictures()
    model[2] = nn.PReLU(init=0.3).double()
    found = measured(model, data, labels="empirical").importance["2.weight"]
    truth = Fisher(labels="empirical").estimate(model, data, everything(model))["2.weight"]
    assert 0.5 < float(found / truth) < 2
    exact = measured(model, data, labels="empirical", passes=2).importance["2.weight"]
    torch.testing.assert_close(exact, truth)
