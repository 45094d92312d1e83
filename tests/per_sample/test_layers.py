"""The rules of single layers: per-sample gradients from inputs and output derivatives, against autograd."""

import copy

import pytest
import torch
from tests.importance.imitation import Conv1D
from tests.per_sample.definition import check, covered, doubles
from torch import nn

from drcl.per_sample.layers import add_power, chunk_length, conv_weight_gradient, rule_for

CONVOLUTIONS = [
    nn.Conv2d(4, 6, 3),
    nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), bias=False),
    nn.Conv2d(4, 6, 3, dilation=2, padding=2, groups=2),
    nn.Conv2d(4, 8, 3, groups=4, padding="same"),
    nn.Conv2d(4, 6, 4, padding="same"),
    nn.Conv2d(4, 6, 3, padding="valid"),
    nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"),
    nn.Conv2d(4, 6, 3, padding=2, padding_mode="replicate"),
    nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular", stride=2),
    nn.Conv2d(4, 6, 4, padding="same", padding_mode="circular"),
]


@pytest.mark.parametrize("layer", CONVOLUTIONS, ids=repr)
def test_convolutions(layer):
    model = nn.Sequential(copy.deepcopy(layer), nn.Tanh(), nn.Flatten(), nn.LazyLinear(3)).double()
    x = doubles(4, 4, 9, 8)
    model(x)
    assert "0.weight" in covered(model)
    check(model, x)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(4, 6, 3, padding=1, stride=2),
        nn.Conv1d(4, 6, 4, padding="same", dilation=2),
        nn.Conv1d(4, 6, 3, padding=2, padding_mode="reflect", groups=2),
    ],
    ids=repr,
)
def test_convolutions_along_one_dimension(layer):
    model = nn.Sequential(copy.deepcopy(layer), nn.Tanh(), nn.Flatten(), nn.LazyLinear(3)).double()
    x = doubles(4, 4, 11)
    model(x)
    check(model, x)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("shape", [(5, 4), (5, 1, 4), (5, 3, 4)], ids=str)
def test_weights_stored_as_inputs_by_outputs(shape, power):
    """GPT-2's Conv1D, at one position and at several."""
    model = nn.Sequential(Conv1D(6, 4), nn.Tanh(), Conv1D(3, 6)).double()
    assert set(covered(model)) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    check(model, doubles(*shape), power)


def test_only_the_name_and_the_shapes_together_tell_such_a_layer():
    layer = Conv1D(6, 4)
    assert rule_for(layer) is not None
    layer.nf = 4
    assert rule_for(layer) is None
    assert rule_for(type("Other", (Conv1D,), {})(6, 4)) is None


class TinyRMSNorm(nn.Module):
    """As models of transformers write it."""

    def __init__(self, width, plus=0.0):
        super().__init__()
        self.weight, self.variance_epsilon, self.plus = nn.Parameter(torch.randn(width)), 1e-6, plus

    def forward(self, x):
        return (self.weight + self.plus) * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


@pytest.mark.parametrize("plus", [0.0, 1.0])
@pytest.mark.parametrize("shape", [(5, 4), (5, 3, 4)], ids=str)
def test_root_mean_square_norms_of_other_libraries(shape, plus):
    model = nn.Sequential(nn.Linear(4, 4), TinyRMSNorm(4, plus), nn.Linear(4, 3)).double()
    assert "1.weight" in covered(model)
    check(model, doubles(*shape))


def test_convolution_rule_of_accelerators():
    """Where samples are not taken one by one, the same gradients come out of a vectorised convolution."""
    layer = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2).double()
    x, d = doubles(5, 1, 4, 9, 9), doubles(5, 1, 6, 5, 5, seed=1)
    rule = conv_weight_gradient(layer)
    found = torch.vmap(rule)(x, d)
    for i in range(5):
        expected = torch.autograd.grad((layer(x[i]) * d[i]).sum(), layer.weight)[0]
        torch.testing.assert_close(found[i], expected)


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(6),
        nn.GroupNorm(3, 6),
        nn.LayerNorm([6, 5, 5]),
        nn.LayerNorm(5, bias=False),
        nn.LayerNorm(5, elementwise_affine=False),
        nn.RMSNorm(5),
        nn.BatchNorm2d(6, affine=False),
    ],
    ids=repr,
)
def test_normalisation(norm):
    norm = copy.deepcopy(norm)
    for p in norm.parameters():
        nn.init.uniform_(p, 0.5, 1.5)
    model = nn.Sequential(nn.Conv2d(2, 6, 3), norm, nn.Tanh(), nn.Flatten(), nn.Linear(150, 3)).double()
    if isinstance(norm, nn.BatchNorm2d):
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
    assert covered(model) == {n for n, _ in model.named_parameters()}
    check(model, doubles(4, 2, 7, 7))


@pytest.mark.parametrize("length", [None, 5])
def test_batch_norm_1d_with_and_without_positions(length):
    norm = nn.BatchNorm1d(6)
    norm.running_mean.uniform_(-1, 1)
    first = nn.Linear(4, 6) if length is None else nn.Conv1d(4, 6, 1)
    model = nn.Sequential(first, norm, nn.Flatten(), nn.Tanh(), nn.Linear(6 * (length or 1), 3)).double()
    check(model, doubles(4, 4) if length is None else doubles(4, 4, length))


class TwoStatistics(nn.modules.batchnorm._BatchNorm):
    """A batch normalisation that keeps its statistics in its own way."""

    def __init__(self, channels):
        super().__init__(channels, track_running_stats=False)
        self.register_buffer("means", torch.randn(2, channels))

    def forward(self, x):
        ones = torch.ones_like(self.means[1])
        return nn.functional.batch_norm(x, self.means[1], ones, self.weight, self.bias, training=self.training)


def test_a_batch_norm_with_a_forward_of_its_own():
    norm = TwoStatistics(6)
    for p in norm.parameters():
        nn.init.uniform_(p, 0.5, 1.5)
    model = nn.Sequential(nn.Conv2d(2, 6, 3), norm, nn.Tanh(), nn.Flatten(), nn.Linear(150, 3)).double()
    assert rule_for(norm.train()) is None
    before = dict(norm.eval().named_parameters())
    assert {"1.weight", "1.bias"} <= covered(model.eval())
    check(model, doubles(4, 2, 7, 7))
    assert all(p is before[name] for name, p in norm.named_parameters())


# A layer, and the shape of what one sample brings to it.
LAYERS = {
    "linear": (lambda: nn.Linear(5, 4), (5,)),
    "linear at positions": (lambda: nn.Linear(5, 4), (3, 2, 5)),
    "linear without bias": (lambda: nn.Linear(5, 4, bias=False), (5,)),
    "convolution": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (4, 7, 6)),
    "convolution along one dimension": (lambda: nn.Conv1d(2, 3, 2, dilation=2), (2, 9)),
    "convolution in three": (lambda: nn.Conv3d(2, 3, 2, padding="same"), (2, 4, 3, 5)),
    "embedding": (lambda: nn.Embedding(7, 3, padding_idx=2), (6,)),
    "layer norm": (lambda: nn.LayerNorm([4, 5]), (3, 4, 5)),
    "rms norm": (lambda: nn.RMSNorm(5), (3, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 5)),
    "batch norm": (lambda: nn.BatchNorm2d(3).eval(), (3, 4, 5)),
}


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_every_rule_alone(name, rows, power, monkeypatch):
    """Each sample brings `rows` rows; moments in one chunk and in many."""
    torch.manual_seed(0)
    build, shape = LAYERS[name]
    layer = build().double()
    for p in layer.parameters():
        nn.init.uniform_(p, -1, 1)
    if isinstance(layer, nn.BatchNorm2d):
        layer.running_mean.uniform_(-1, 1)
        layer.running_var.uniform_(0.5, 2)
    x = torch.randint(7, (4, rows, *shape)) if isinstance(layer, nn.Embedding) else doubles(4, rows, *shape)
    out = layer(x.flatten(0, 1))
    d = doubles(4, rows, *out.shape[1:], seed=1)
    wanted = dict(layer.named_parameters())
    expected = {n: [] for n in wanted}
    for i in range(4):
        for n, g in zip(wanted, torch.autograd.grad((layer(x[i]) * d[i]).sum(), list(wanted.values()))):
            expected[n].append(g)
    expected = {n: torch.stack(g) for n, g in expected.items()}
    rule = rule_for(layer)
    found = rule.gradients(layer, x, d, list(wanted))
    assert set(found) == set(wanted)
    for chunk in (2**19, 1):
        monkeypatch.setattr("drcl.per_sample.layers.CPU_CHUNK", chunk)
        totals = {n: torch.ones_like(p, requires_grad=False) for n, p in wanted.items()}
        with torch.no_grad():
            rule.add_moments(layer, x, d, totals, power)
        for n, g in expected.items():
            torch.testing.assert_close(found[n].reshape(g.shape), g)
            torch.testing.assert_close(totals[n], 1 + (g.abs() ** power).sum(0))


@pytest.mark.parametrize("only", ["weight", "bias"])
@pytest.mark.parametrize("name", ["linear", "linear at positions", "convolution", "layer norm", "group norm"])
def test_only_what_is_asked_for_is_computed(name, only):
    torch.manual_seed(0)
    build, shape = LAYERS[name]
    layer = build().double()
    x = doubles(4, 1, *shape)
    d = doubles(4, 1, *layer(x[:, 0]).shape[1:], seed=1)
    every = rule_for(layer).gradients(layer, x, d, ["weight", "bias"])
    some = rule_for(layer).gradients(layer, x, d, [only])
    assert list(some) == [only]
    torch.testing.assert_close(some[only], every[only])
    total = {only: torch.zeros_like(getattr(layer, only), requires_grad=False)}
    with torch.no_grad():
        rule_for(layer).add_moments(layer, x, d, total, 2)
    torch.testing.assert_close(total[only], every[only].square().sum(0))


def test_layers_have_a_rule_only_where_its_formula_holds():
    class Own(nn.Linear):
        pass

    assert rule_for(Own(2, 2)) is None
    assert rule_for(nn.Bilinear(2, 2, 2)) is None
    assert rule_for(nn.Embedding(3, 2, max_norm=1.0)) is None
    assert rule_for(nn.Embedding(3, 2, scale_grad_by_freq=True)) is None
    assert rule_for(nn.BatchNorm1d(2).train()) is None
    assert rule_for(nn.BatchNorm1d(2, track_running_stats=False).eval()) is None
    assert rule_for(nn.BatchNorm1d(2).eval()) is not None


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("samples", [1, 4])
def test_powers_are_added(samples, power):
    gradients, total = doubles(samples, 2, 3).float(), doubles(2, 3, seed=1)
    expected = total + (gradients.double().abs() ** power).sum(0)
    add_power(total, gradients, power)
    torch.testing.assert_close(total, expected)


def test_as_many_samples_at_once_as_fit():
    assert chunk_length(2**17, torch.device("cpu")) == 4
    assert chunk_length(2**30, torch.device("cpu")) == 1
    assert chunk_length(0, torch.device("cpu")) == 2**19
    assert chunk_length(2**17, torch.device("cuda")) == 2**8
