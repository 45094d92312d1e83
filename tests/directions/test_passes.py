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
    assert {"embedding.weight", "norm.weight", "encoder.layers.0.self_attn.in_proj_weight"}.isdisjoint(covered)
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
    return Passes(own, model, data, everything(model), lambda m, b: (m(b[0]), b[1]), groups or {}, channels, largest)


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
    assert all(torch.equal(rest[n], diagonal[n]) for n in rest)
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
    with pytest.raises(ValueError, match=r"Kronecker: .*give it batches that the model treats alike"):
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
