"""Dropout, pooling and ReLU in one pass give what the three layers give: values, gradients, random state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from drcl.lab.networks import pooling
from drcl.lab.networks.alexnet import AlexNet
from drcl.lab.networks.dropout import Dropout

SHAPES = [(3, 1, 2, 2), (2, 3, 5, 4), (5, 20, 9, 9), (4, 32, 29, 29), (2, 64, 12, 12), (1, 7, 2, 3), (0, 4, 6, 6)]


def row(p: float) -> list[nn.Module]:
    return [Dropout(p), nn.MaxPool2d(2), nn.ReLU()]


def last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def one_by_one(layers: list[nn.Module], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def both(layers: list[nn.Module], x: Tensor, seed: int = 0) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Output, gradient and random state afterwards: of the one pass, and of the layers."""
    found = []
    for way in (pooling.through, one_by_one):
        torch.manual_seed(seed)
        given = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        out = way(layers, given)
        (grad,) = torch.autograd.grad(out, given, torch.linspace(-1, 2, out.numel()).view(out.shape))
        found.append((out, grad, torch.get_rng_state()))
    return found


def same(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("p", [0.0, 0.2, 0.5, 0.99])
@pytest.mark.parametrize("training", [True, False])
def test_the_same_values(shape: tuple[int, ...], p: float, training: bool) -> None:
    layers = row(p)
    for layer in layers:
        layer.train(training)
    x = last(torch.randn(shape, generator=torch.Generator().manual_seed(1)))
    assert pooling._fits(layers, x)
    ours, theirs = both(layers, x)
    assert all(same(a, b) for a, b in zip(ours, theirs))


def test_not_a_number_and_infinity() -> None:
    x = last(torch.randn(4, 16, 8, 8, generator=torch.Generator().manual_seed(2)))
    x[0, 3, 1, 1] = x[1, :, 2, 5] = float("nan")
    x[2, 4, 0, 0] = float("inf")
    x[3, :, 4, 4] = float("-inf")
    for p in (0.0, 0.5):
        ours, theirs = both(row(p), x)
        assert same(ours[0], theirs[0])
        assert p > 0 or same(
            ours[1], theirs[1]
        )  # a NaN that was dropped still wins; whether it gets a gradient is open


def test_the_gradient_has_a_gradient() -> None:
    x = last(torch.randn(2, 5, 7, 6, generator=torch.Generator().manual_seed(3)))
    second = []
    for way in (pooling.through, one_by_one):
        torch.manual_seed(0)
        given, weight = x.clone(memory_format=torch.preserve_format).requires_grad_(), torch.tensor(2.0)
        weight.requires_grad_()
        out = way(row(0.3), given * weight)
        (grad,) = torch.autograd.grad((out**2).sum(), given, create_graph=True)
        second.append(torch.autograd.grad((grad**2).sum(), weight)[0])
    assert float(second[0]) == pytest.approx(float(second[1]), rel=1e-5)


CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "double": lambda x: x.double(),
    "rows first": lambda x: x.contiguous(),
    "a subclass": lambda x: x.as_subclass(nn.Parameter),
    "three dimensions": lambda x: x[0],
}


@pytest.mark.parametrize("case", CASES)
def test_other_tensors_go_through_the_layers(case: str) -> None:
    x = CASES[case](last(torch.randn(2, 8, 6, 6)))
    assert not pooling._fits(row(0.5), x)
    assert pooling.through(row(0.0), x).shape[-2:] == (3, 3)


def test_other_layers_go_through_themselves() -> None:
    x = last(torch.randn(2, 8, 6, 6))
    for other in (nn.MaxPool2d(3), nn.MaxPool2d(2, ceil_mode=True), nn.MaxPool2d(2, 1), nn.AvgPool2d(2)):
        assert not pooling._fits([Dropout(0.5), other, nn.ReLU()], x)
    assert not pooling._fits([nn.Dropout(0.5), nn.MaxPool2d(2), nn.ReLU()], x)
    assert not pooling._fits([Dropout(0.5), nn.MaxPool2d(2), nn.LeakyReLU()], x)
    assert not pooling._fits([Dropout(1.0), nn.MaxPool2d(2), nn.ReLU()], x)


@pytest.mark.parametrize("which", range(3))
def test_hooks_are_called(which: int) -> None:
    layers, seen = row(0.5), []
    layers[which].register_forward_hook(lambda *_: seen.append(1))
    pooling.through(layers, last(torch.randn(2, 8, 6, 6)))
    assert seen == [1]


def test_one_gradient_per_sample_by_torch_func() -> None:
    network = nn.Sequential(AlexNet((3, 32, 32), width=0.1), nn.Linear(205, 3)).eval()
    weights = dict(network.named_parameters())
    x = torch.randn(4, 3, 32, 32)

    def total(given: dict[str, Tensor], one: Tensor) -> Tensor:
        return torch.func.functional_call(network, given, (one[None],)).sum()

    found = torch.func.vmap(torch.func.grad(total), (None, 0))(weights, x)
    network(last(x)).sum().backward()
    for name, p in network.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(found[name].sum(0), p.grad, rtol=1e-3, atol=1e-4)


def test_without_a_compiler_the_network_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = AlexNet((3, 32, 32), width=0.25), last(torch.randn(8, 3, 32, 32))
    found = []
    for available in (True, False):
        if not available:
            monkeypatch.setattr(pooling, "_load", lambda: None)
        torch.manual_seed(4)
        network.zero_grad()
        network(x).square().sum().backward()
        found.append([p.grad.clone() for p in network.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*found))
