"""Kronecker factors and eigenvalues against brute force: full Fisher matrices, loops over patches and over samples."""

import itertools

import numpy as np
import pytest
import torch
from tests.directions.problems import everything, gradients, measured, operator
from torch import nn
from torch.nn import functional as F

from drcl import Fisher, Kronecker
from drcl.directions.eigenvalues import Eigenvalues
from drcl.directions.factors import Factors, basis_of, patches_at
from drcl.directions.passes import PassVisitor
from drcl.per_sample.hooks import OnePass


@pytest.mark.parametrize("eigenvalues", ["exact", "product"])
def test_two_linear_layers_and_one_sample_give_the_fisher_matrix_itself(eigenvalues):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5)).double()
    x = torch.randn(1, 4).double()
    found = measured(model, [(x, None)], labels="exact", eigenvalues=eigenvalues).bases
    for layer, name in ((model[0], "0.weight"), (model[1], "1.weight")):
        truth = sum(p * torch.outer(g.flatten(), g.flatten()) for p, g in gradients(model, x, *layer.parameters(), 5))
        factors = torch.kron(found[name].output_factor[0], found[name].input_factor[0])
        torch.testing.assert_close(factors, truth, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(operator(found[name]), truth, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("labels", ["sampled", "signs", "empirical", "exact"])
def test_factors_of_many_samples(labels):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x, y = torch.randn(40, 6).double(), torch.randint(3, (40,))
    data = [(x[:25], y[:25]), (x[25:], y[25:])]
    found = measured(model, data, labels=labels).bases
    ones = torch.ones(40, 1).double()
    first, hidden = torch.cat([x, ones], 1), torch.cat([model[1](model[0](x)).detach(), ones], 1)
    torch.testing.assert_close(found["0.weight"].input_factor[0], first.T @ first / 40)
    torch.testing.assert_close(found["2.weight"].input_factor[0], hidden.T @ hidden / 40)
    p = model(x).detach().softmax(1)
    if labels == "exact":
        truth = (torch.diag_embed(p) - p[:, :, None] * p[:, None]).mean(0)
        torch.testing.assert_close(found["2.weight"].output_factor[0], truth)
    if labels == "empirical":
        d = p - F.one_hot(y, 3)
        torch.testing.assert_close(found["2.weight"].output_factor[0], d.T @ d / 40)
        # The diagonal of the exact eigenvalues' operator has the sum of the diagonal Fisher.
        diagonal = Fisher(labels="empirical").estimate(model, data, everything(model))
        for name in ("0", "2"):
            total = diagonal[f"{name}.weight"].sum() + diagonal[f"{name}.bias"].sum()
            torch.testing.assert_close(found[f"{name}.weight"].eigenvalues.sum(), total)


CONVOLUTIONS = {
    "plain": nn.Conv2d(4, 6, 3),
    "grouped": nn.Conv2d(4, 6, (3, 2), groups=2, bias=False),
    "strided, padded, dilated": nn.Conv2d(4, 6, 3, stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
    "depthwise": nn.Conv2d(4, 4, 3, padding=1, groups=4),
    "circular": nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"),
    "same": nn.Conv2d(4, 6, (3, 4), padding="same"),
    "one dimension": nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2),
}


class Pooled(nn.Module):
    """A convolution, a nonlinearity, and logits that keep some of the place."""

    def __init__(self, conv, x):
        super().__init__()
        self.conv = conv
        self.mix = torch.randn(conv(x[:1]).numel(), 3).to(x) / 5

    def forward(self, x):
        return torch.tanh(self.conv(x)).flatten(1) @ self.mix


def padded(conv, x):
    if isinstance(conv.padding, str) or conv.padding_mode != "zeros":
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        return F.pad(x, conv._reversed_padding_repeated_twice, mode=mode)
    return F.pad(x, [n for p in reversed(conv.padding) for n in (p, p)])


def patch_loop(conv, x, shape):
    """{(sample, group): patches by position}, sliced out one by one."""
    x = padded(conv, x)
    if x.ndim == 3:
        x = x[:, :, None]
    kernel, stride, dilation = (v if len(v) == 2 else (1, *v) for v in (conv.kernel_size, conv.stride, conv.dilation))
    height, width = (shape[2], shape[3]) if len(shape) == 4 else (1, shape[2])
    per = x.shape[1] // conv.groups
    found = {}
    for b in range(len(x)):
        for g in range(conv.groups):
            rows = []
            for i in range(height):
                for j in range(width):
                    top, left = i * stride[0], j * stride[1]
                    window = x[
                        b,
                        g * per : (g + 1) * per,
                        top : top + (kernel[0] - 1) * dilation[0] + 1 : dilation[0],
                        left : left + (kernel[1] - 1) * dilation[1] + 1 : dilation[1],
                    ]
                    rows.append(window.reshape(per, -1))
            found[b, g] = torch.stack(rows)  # [positions, channels, kernel]
    return found


@pytest.mark.parametrize("kind", CONVOLUTIONS)
@pytest.mark.parametrize("convolutions", ["patches", "channels"])
def test_convolution_factors_and_eigenvalues_are_those_of_a_loop_over_patches(kind, convolutions):
    torch.manual_seed(2)
    conv = CONVOLUTIONS[kind].double()
    x = torch.randn(3, 4, *([7, 6] if isinstance(conv, nn.Conv2d) else [9])).double()
    y = torch.tensor([0, 2, 1])
    model = Pooled(conv, x)
    basis = measured(model, [(x, y)], labels="empirical", convolutions=convolutions).bases["conv.weight"]

    out = conv(x)
    out.retain_grad()
    F.cross_entropy(torch.tanh(out).flatten(1) @ model.mix, y, reduction="sum").backward()
    d = out.grad.flatten(2).unflatten(1, (conv.groups, -1))  # [samples, groups, outputs, positions]
    patches = patch_loop(conv, x, out.shape)
    apart = convolutions == "channels"
    with_bias = conv.bias is not None and not apart
    assert basis.bias == with_bias
    eigenvalues = torch.zeros_like(basis.eigenvalues)
    for g in range(conv.groups):
        a_sum = g_sum = 0
        for b in range(3):
            rows = patches[b, g]
            at, _, kernel = rows.shape
            views = [rows[:, :, k] for k in range(kernel)] if apart else [rows.flatten(1)]
            views = [torch.cat([v, torch.ones(at, 1).double()], 1) if with_bias else v for v in views]
            a_sum = a_sum + sum(v.T @ v for v in views) / len(views)
            g_sum = g_sum + d[b, g] @ d[b, g].T / at
            for k, v in enumerate(views):
                gradient = d[b, g] @ v
                eigenvalues[g, k] += (basis.outputs[g].T @ gradient @ basis.inputs[g]).square()
        torch.testing.assert_close(basis.input_factor[g], a_sum / 3)
        torch.testing.assert_close(basis.output_factor[g], g_sum / 3)
    torch.testing.assert_close(basis.eigenvalues, eigenvalues / 3)


def test_tokens_are_positions_wherever_the_samples_lie():
    torch.manual_seed(3)

    class Tokens(nn.Module):
        def __init__(self, batch_first):
            super().__init__()
            self.inner, self.head, self.batch_first = nn.Linear(5, 4), nn.Linear(4, 3), batch_first

        def forward(self, x):
            h = torch.tanh(self.inner(x if self.batch_first else x.transpose(0, 1)))
            return self.head(h.mean(1 if self.batch_first else 0))

    first, second = Tokens(True), Tokens(False)
    second.load_state_dict(first.state_dict())
    data = [(torch.randn(6, 7, 5), torch.randint(3, (6,)))]
    a, b = (measured(m, data).bases["inner.weight"] for m in (first, second))
    torch.testing.assert_close(a.eigenvalues, b.eigenvalues)
    torch.testing.assert_close(a.output_factor, b.output_factor)
    x = torch.cat([data[0][0].flatten(0, 1), torch.ones(42, 1)], 1)
    torch.testing.assert_close(a.input_factor[0], x.T @ x / 6)


@pytest.mark.parametrize(("inputs", "outputs", "largest"), [(4, 3, 4), (2, 4, 3)])
def test_a_side_that_is_too_long_keeps_its_own_coordinates(inputs, outputs, largest):
    """With the bias there is one input more."""
    torch.manual_seed(6)
    model = nn.Linear(inputs, outputs).double()
    data = [(torch.randn(20, inputs).double(), torch.randint(outputs, (20,)))]
    both = measured(model, data, labels="empirical").bases["weight"]
    one = measured(model, data, labels="empirical", largest=largest).bases["weight"]
    assert (one.inputs is None, one.outputs is None) == (inputs + 1 > largest, outputs > largest)
    other, full = (
        (one.output_factor, both.output_factor) if one.outputs is None else (one.input_factor, both.input_factor)
    )
    torch.testing.assert_close(other[0], full[0].diagonal())


def block_means(full, j, k):
    """Eigenvalues of a complete basis with everything beyond j x k as means of rows, of columns and of the tail."""
    f = full[..., : j + 1, : k + 1].clone()
    f[..., :j, k] = full[..., :j, k:].mean(-1)
    f[..., j, :k] = full[..., j:, :k].mean(-2)
    f[..., j, k] = full[..., j:, k:].mean((-2, -1))
    return f


@pytest.mark.parametrize("kind", ["linear", "conv", "channels", "tokens"])
@pytest.mark.parametrize("eigenvalues", ["exact", "product"])
def test_what_is_left_out_has_the_mean_of_its_importance(kind, eigenvalues):
    torch.manual_seed(0)
    if kind in ("conv", "channels"):
        model = nn.Sequential(nn.Conv2d(4, 10, 2, groups=2), nn.Flatten(1), nn.Linear(40, 3)).double()
        x = torch.randn(15, 4, 3, 3).double()
    elif kind == "tokens":
        model = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Flatten(1), nn.Linear(20, 3)).double()
        x = torch.randn(15, 4, 7).double()
    else:
        model = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        x = torch.randn(15, 7).double()
    data = [(x, torch.randint(3, (15,)))]
    options = dict(
        labels="exact", eigenvalues=eigenvalues, convolutions="channels" if kind == "channels" else "patches"
    )
    named = dict(model.named_parameters())
    full = Kronecker(**options).measure(model, data, named).bases["0.weight"]
    rank = 1 if kind == "channels" else 3
    few = Kronecker(**options, rank=rank).measure(model, data, named).bases["0.weight"]
    assert few.left_out > 0
    torch.testing.assert_close(few.eigenvalues, block_means(full.eigenvalues, rank, rank))
    assert few.total == pytest.approx(full.total)


def doubles(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_inputs_count_once_a_batch_however_many_derivatives_come():
    layer = nn.Linear(4, 3).double()
    factors = Factors(layer, bias=True, apart=False, largest=100)
    batches = [doubles(5, 1, 4), doubles(2, 1, 4, seed=1)]
    derivatives = [[doubles(len(x), 1, 3, seed=10 + k) for k in range(3)] for x in batches]
    for x, several in zip(batches, derivatives):
        visitor = PassVisitor(OnePass(layer, {}), {layer: factors}, {}, {})
        for d in several:
            visitor(layer, x, d)
            visitor.end_of_pass()
    assert factors.samples == 7
    rows = torch.cat([torch.cat([x[:, 0], torch.ones(len(x), 1).double()], 1) for x in batches])
    torch.testing.assert_close(factors.a[0], rows.T @ rows)
    every = torch.cat([d[:, 0] for several in derivatives for d in several])
    torch.testing.assert_close(factors.g[0], every.T @ every)
    assert factors.trace() == pytest.approx(float(torch.trace(factors.a[0]) * torch.trace(factors.g[0])))


@pytest.mark.parametrize("largest", [100, 4])
@pytest.mark.parametrize("rank", [None, 2])
def test_product_eigenvalues_are_quadratic_forms_of_the_product(rank, largest):
    """Without a cut the eigenvalues of the Kronecker product itself, divided by the number of tasks."""
    roots = [doubles(2, n, n, seed=n) for n in (5, 4)]
    a, g = (r @ r.mT for r in roots)
    a = a if largest >= 5 else a.diagonal(dim1=1, dim2=2).clone()
    basis = basis_of(a, g, rank, positions=1, bias=False, count=2.5)
    for group in range(2):
        full = torch.kron(g[group], a[group] if a.ndim == 3 else torch.diag(a[group])) / 2.5
        if basis.complete:
            found = basis.eigenvalues[group, 0].flatten()
            if a.ndim == 3:
                torch.testing.assert_close(found.sort().values, torch.linalg.eigvalsh(full))
        total = (basis.eigenvalues[group, 0] * basis.counts()[0][:, None] * basis.counts()[1]).sum()
        torch.testing.assert_close(total, torch.trace(full))
        u = torch.eye(5).double() if basis.inputs is None else basis.inputs[group]
        v = basis.outputs[group]
        for i in range(basis.kept[0]):
            for l in range(basis.kept[1]):
                w = torch.kron(v[:, i], u[:, l])
                torch.testing.assert_close(basis.eigenvalues[group, 0, i, l], w @ full @ w)


def test_a_visitor_shows_every_layer_its_own_samples():
    layers = nn.Linear(4, 3, bias=False).double(), nn.Linear(3, 2, bias=False).double()
    one = [torch.eye(n).double()[None] for n in range(5)]
    bases = [basis_of(one[n], one[m], None, positions=1, bias=False, count=1.0) for m, n in ((3, 4), (2, 3))]
    found = [Eigenvalues(layer, basis, samples=6) for layer, basis in zip(layers, bases)]
    visitor = PassVisitor(OnePass(nn.Sequential(*layers), {}), dict(zip(layers, found)), {}, {})
    shown = [(doubles(6, 1, 4), doubles(6, 1, 3, seed=1)), (doubles(6, 1, 3, seed=2), doubles(6, 1, 2, seed=3))]
    for layer, (x, d) in zip(layers, shown):
        visitor(layer, x, d)
    for eigenvalues, basis, (x, d) in zip(found, bases, shown):
        g = d[:, 0, :, None] * x[:, 0, None, :]
        squares = (basis.outputs[0].T @ g @ basis.inputs[0]).square()
        torch.testing.assert_close(eigenvalues.means()[0, 0], squares.mean(0))
        assert eigenvalues.trace() == pytest.approx(float(squares.sum()) / 6)


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_drawn_patches_are_those_of_the_loop(kind):
    conv = CONVOLUTIONS[kind].double()
    x = doubles(2, 3, 4, *([7, 6] if isinstance(conv, nn.Conv2d) else [9]))  # three images to a sample
    shape = conv(x[:, 0]).shape
    each = shape[2:].numel()
    at = torch.tensor([[0, each - 1, each + 1, 2 * each, 3 * each - 1], [1, 2, 3, each, 2 * each - 1]])
    found = patches_at(conv, x, at).flatten(3)
    for sample, positions in enumerate(at.tolist()):
        for k, position in enumerate(positions):
            truth = patch_loop(conv, x[:, position // each], shape)
            rows = torch.cat([truth[sample, g][position % each] for g in range(conv.groups)])
            torch.testing.assert_close(found[sample, k], rows)


class Drawn:
    """In place of the generator: numbers that lead to the pair of positions whose turn it is, one of each half."""

    def __init__(self, pair):
        self.pair = pair

    def random(self, shape):
        assert shape == (4, 2)
        return np.broadcast_to((np.array(self.pair) + 0.5) / 3, shape)


@pytest.mark.parametrize("kind", ["tokens", "conv", "channels", "grouped"])
def test_factors_from_drawn_positions_are_unbiased(kind):
    """Their mean over all draws that there are is the sum over all positions."""
    if kind == "tokens":
        layer, x, d = nn.Linear(3, 2).double(), doubles(4, 1, 6, 3), doubles(4, 1, 6, 2, seed=1)
    else:
        layer = nn.Conv2d(2, 4, 2, groups=2 if kind == "grouped" else 1).double()
        x, d = doubles(4, 1, 2, 3, 4), doubles(4, 1, 4, 2, 3, seed=1)
    options = dict(bias=kind != "channels", apart=kind == "channels", largest=100)
    exact = Factors(layer, **options)
    exact.add(x, d, inputs=True)
    pairs = list(itertools.product(range(3), repeat=2))
    a, g = torch.zeros_like(exact.a), torch.zeros_like(exact.g)
    for pair in pairs:
        found = Factors(layer, **options, few=(2, 2))
        found._rng = Drawn(pair)
        found.add(x, d, inputs=True)
        a += found.a / len(pairs)
        g += found.g / len(pairs)
    torch.testing.assert_close(a, exact.a)
    torch.testing.assert_close(g, exact.g)
    whole = Factors(layer, **options, few=(4, 4))  # of six there is nothing to gain by that
    whole.add(x, d, inputs=True)
    assert torch.equal(whole.a, exact.a)
