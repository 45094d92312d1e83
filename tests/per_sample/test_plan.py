"""The batched routes against the definition, one sample at a time, on nets that try to trip them."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from tests.nets import ResNet18, Transformer, alexnet, mlp, settle_statistics
from torch import nn

from drcl.per_sample.hooks import OnePass
from drcl.per_sample.plan import per_sample_moments
from drcl.preserve import undisturbed


def brute_force(model, batch, cotangents, power=2):
    """The sum over samples of |gradient|^power by plain autograd, with none of the library's code."""
    model = copy.deepcopy(model).eval()
    names = [name for name, _ in model.named_parameters()]
    totals = {name: torch.zeros_like(p, requires_grad=False) for name, p in model.named_parameters()}
    for i in range(len(batch)):
        for v in cotangents:
            loss = (model(batch[i : i + 1]) * v[i : i + 1]).sum()
            gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
            for name, g in zip(names, gradients):
                if g is not None:
                    totals[name] += g.abs() ** power
    return totals


def moments(model, batches, cotangents, power=2, names=None):
    """The library's sums; `cotangents` are those of all samples, in order."""
    parameters = {n: p for n, p in model.named_parameters() if names is None or n in names}
    taken = 0

    def directions(output, target, length):
        nonlocal taken
        taken += length
        return [[v[taken - length : taken]] for v in cotangents]

    with undisturbed(model):
        model.eval()
        totals, count = per_sample_moments(
            model, [(b,) for b in batches], parameters, lambda m, b: (m(b[0]), None), directions, power
        )
    assert count == sum(len(b) for b in batches)
    return totals


def check(model, x, power=2, directions=1, batch=None, rtol=1e-9):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        shape = copy.deepcopy(model).eval()(x).shape
    like = next(model.parameters())
    cotangents = [torch.randn(shape, generator=generator).to(like) for _ in range(directions)]
    expected = brute_force(model, x, cotangents, power)
    found = moments(model, x.split(batch or len(x)), cotangents, power)
    assert set(found) == set(expected)
    for name, truth in expected.items():
        error = (found[name] - truth).norm()
        assert error <= rtol * truth.norm(), (name, float(error / truth.norm()))
        assert (found[name] >= 0).all()


def covered(model):
    model.eval()
    return set(OnePass(model, dict(model.named_parameters())).names)


def doubles(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(n, length=7, vocabulary=23):
    return torch.randint(vocabulary, (n, length), generator=torch.Generator().manual_seed(1))


NETS = {
    "mlp": (lambda: mlp(20, 30, 5), (20,)),
    "alexnet": (lambda: alexnet(4, 32, 5), (3, 32, 32)),
    "resnet18": (lambda: settle_statistics(ResNet18(4, 5)), (3, 32, 32)),
}


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("name", NETS)
def test_networks_equal_the_definition(name, power):
    torch.manual_seed(0)
    build, shape = NETS[name]
    model = build().double()
    assert covered(model) == {n for n, _ in model.named_parameters()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(model, doubles(5, *shape), power, batch=3)


@pytest.mark.parametrize(
    ("build", "shape", "size"), [(mlp, (784,), 6), (alexnet, (3, 32, 32), 3), (ResNet18, (3, 32, 32), 2)]
)
def test_networks_of_real_width(build, shape, size):
    """In float64: in float32 any two ways to compute a deep net's output flip some ReLU by rounding."""
    torch.manual_seed(0)
    check(settle_statistics(build()).double(), doubles(size, *shape))


def test_single_precision_to_five_digits():
    """On a smooth net, where rounding cannot flip anything; the reference is computed in float64."""
    torch.manual_seed(0)
    model = settle_statistics(
        nn.Sequential(
            *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Softplus(), nn.AvgPool2d(2)),
            *(nn.Conv2d(16, 32, 3, stride=2), nn.GroupNorm(4, 32), nn.Softplus(), nn.Flatten()),
            *(nn.Linear(32 * 49, 100), nn.Tanh(), nn.Linear(100, 10)),
        )
    )
    x = torch.randn(40, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    v = torch.randn(40, 10, generator=torch.Generator().manual_seed(1))
    expected = brute_force(copy.deepcopy(model).double(), x.double(), [v.double()])
    for parameter, found in moments(model, x.split(16), [v]).items():
        assert found.dtype == torch.float32
        assert (found - expected[parameter]).norm() <= 1e-5 * expected[parameter].norm(), parameter


@pytest.mark.parametrize("batch_first", [True, False])
def test_transformer_equals_the_definition(batch_first):
    """Attention's packed projection and the shared position table have no rule; 7 tokens beside 7 samples."""
    torch.manual_seed(0)
    model = settle_statistics(Transformer(batch_first=batch_first)).double()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(model, tokens(7), rtol=1e-9)


def test_several_directions_on_one_graph():
    torch.manual_seed(0)
    check(alexnet(3, 16, 4).double(), doubles(4, 3, 32, 32), directions=3)


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


def test_convolution_rule_of_accelerators():
    """Where samples are not taken one by one, the same gradients come out of a vectorised convolution."""
    from drcl.per_sample.layers import conv_weight_gradient

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


class Tied(nn.Module):
    """A language model whose output layer shares the embedding's table, through a layer or by hand."""

    def __init__(self, by_hand):
        super().__init__()
        self.embedding = nn.Embedding(11, 6, padding_idx=0)
        self.body = nn.Linear(6, 6)
        self.out = nn.Linear(6, 11)
        self.by_hand = by_hand
        if by_hand:
            del self.out
        else:
            self.out.weight = self.embedding.weight

    def forward(self, ids):
        h = torch.tanh(self.body(self.embedding(ids)))
        return F.linear(h, self.embedding.weight) if self.by_hand else self.out(h)


@pytest.mark.parametrize("by_hand", [False, True])
def test_tied_weights_are_summed_before_the_power(by_hand):
    torch.manual_seed(0)
    model = Tied(by_hand).double()
    check(model, tokens(5, 6, 11))


class Repeated(nn.Module):
    """One layer used three times, at positions, and normalised by one norm in two places."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.cell = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        h = self.first(x)
        for _ in range(3):
            h = torch.tanh(self.cell(self.norm(h))) + h
        return self.head(h.mean(1))


@pytest.mark.parametrize("power", [1, 2])
def test_layer_called_several_times(power):
    torch.manual_seed(0)
    model = Repeated().double()
    assert covered(model) == {n for n, _ in model.named_parameters()}
    check(model, doubles(5, 7, 4), power)


def test_repeated_convolution_and_batch_norm():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)
            self.bn = nn.BatchNorm2d(3)
            self.bn.running_mean.uniform_(-1, 1)

        def forward(self, x):
            for _ in range(2):
                x = torch.tanh(self.bn(self.conv(x)))
            return x.mean((2, 3))

    check(Net().double(), doubles(4, 3, 5, 5))


class Folded(nn.Module):
    """Another dimension folded into the batch's, samples outermost or innermost, or samples second."""

    def __init__(self, how):
        super().__init__()
        self.conv = nn.Conv1d(2, 5, 3)
        self.inner = nn.Linear(15, 6)
        self.head = nn.Linear(6, 3)
        self.how = how

    def forward(self, x):  # [samples, frames, 2, 5]
        n, t = x.shape[:2]
        if self.how == "samples first":
            h = self.conv(x.reshape(n * t, 2, 5)).flatten(1)
            return self.head(torch.tanh(self.inner(h)).view(n, t, -1).sum(1))
        h = self.conv(x.transpose(0, 1).reshape(t * n, 2, 5)).flatten(1)
        if self.how == "samples last":
            return self.head(torch.tanh(self.inner(h)).view(t, n, -1).sum(0))
        return self.head(torch.tanh(self.inner(h.view(t, n, -1))).sum(0))


@pytest.mark.parametrize("how", ["samples first", "samples last", "samples second"])
def test_samples_are_found_wherever_they_lie(how):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(Folded(how).double(), doubles(4, 4, 2, 5))


def test_parameters_without_a_rule_beside_those_with():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(4))
            self.lstm_like = nn.Bilinear(4, 4, 5)
            self.head = nn.Linear(5, 3)
            self.unused = nn.Linear(2, 2)
            self.unused_scale = nn.Parameter(torch.randn(3))

        def forward(self, x):
            return self.head(torch.tanh(self.lstm_like(x * self.scale, x)))

    torch.manual_seed(0)
    model = Net().double()
    found = moments(model, [doubles(5, 4)], [doubles(5, 3, seed=1)])
    assert found["unused.weight"].eq(0).all()
    assert found["unused_scale"].eq(0).all()
    check(model, doubles(5, 4))


def test_parametrised_and_subclassed_layers():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x) * self.bias

    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)), nn.Tanh(), Doubled(5, 3)).double()
    check(model, doubles(5, 4))


def test_layers_without_a_rule_in_several_chunks_and_directions(monkeypatch):
    class Own(nn.Linear):
        pass

    torch.manual_seed(0)
    model = nn.Sequential(Own(4, 5), nn.Tanh(), Own(5, 3)).double()
    # 43 numbers a sample, of which a sixteenth is counted: two samples at a time, so three chunks of five samples
    monkeypatch.setattr("drcl.per_sample.layers.CPU_CHUNK", 4)
    check(model, doubles(5, 4), directions=2)


def test_hooks_of_others_that_change_outputs():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    model[0].register_forward_hook(lambda module, args, output: 3 * output)
    check(model, doubles(5, 4))


def test_layer_called_around_its_hooks():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x):
            return self.b(torch.tanh(self.a.forward(x)))

    check(Net().double(), doubles(5, 4))


def test_mixing_models_are_noticed_and_taken_one_by_one():
    class Centre(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x):
            h = self.a(x)
            return self.b(torch.tanh(h - 0.5 * h.mean(0, keepdim=True)))

    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="one sample at a time"):
        check(Centre().double(), doubles(5, 4))


def test_control_flow_that_depends_on_the_data():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(2))

        def forward(self, x):
            out = x.new_zeros(len(x), 3)
            for k, expert in enumerate(self.experts):
                rows = (x[:, 0] > 0) == bool(k)
                if rows.any():
                    out[rows] = expert(x[rows])
            return out

    torch.manual_seed(0)
    x = doubles(8, 4)
    x[:, 0] = torch.tensor([1, 1, -1, 1, -1, -1, 1, 1])
    with pytest.warns(UserWarning, match="one sample at a time"):
        check(Experts().double(), x, batch=4)


def test_model_that_refuses_a_single_sample_is_explained():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 3))
    with pytest.raises(ValueError, match="mixes the samples of a batch"):
        moments(model, [torch.randn(4, 4)], [torch.randn(4, 3)])


def test_half_precision_weights_give_float_sums():
    torch.manual_seed(0)
    model = mlp(20, 30, 5).bfloat16()
    x, v = torch.randn(6, 20).bfloat16(), torch.randn(6, 5).bfloat16()
    expected = brute_force(copy.deepcopy(model).double(), x.double(), [v.double()])
    for name, found in moments(model, [x], [v]).items():
        assert found.dtype == torch.float32
        assert (found - expected[name]).norm() <= 0.03 * expected[name].norm()


def test_compiled_models_are_looked_into():
    torch.manual_seed(0)
    model = mlp(20, 30, 5).double()
    compiled = torch.compile(model, backend="eager")
    x, v = doubles(4, 20), doubles(4, 5, seed=1)
    compiled(x)
    expected = brute_force(model, x, [v])
    for name, found in moments(compiled, [x], [v]).items():
        torch.testing.assert_close(found, expected[name.removeprefix("_orig_mod.")])
