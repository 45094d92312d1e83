"""The batched routes against the definition, one sample at a time, on nets that try to trip them."""

import copy
import warnings

import pytest
import torch
from tests.nets import ResNet18, Transformer, alexnet, mlp, settle_statistics
from tests.per_sample.definition import brute_force, check, covered, doubles, moments, tokens
from torch import nn

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


def test_several_cotangents_on_one_graph():
    torch.manual_seed(0)
    check(alexnet(3, 16, 4).double(), doubles(4, 3, 32, 32), directions=3)


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
