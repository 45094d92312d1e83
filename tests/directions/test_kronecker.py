"""Kronecker factors and eigenvalues against brute force: full Fisher matrices, loops over patches and over samples."""

import pytest
import torch
from tests.nets import Transformer
from torch import nn
from torch.nn import functional as F

from drcl import Fisher, Kronecker
from drcl.importance.base import History


def everything(model):
    return dict(model.named_parameters())


def measured(model, data, history=None, **options):
    return Kronecker(**options).measure(model, data, everything(model), history=history)


def operator(basis):
    """The importance as a full matrix over the entries of [weight bias], row by row; one group, one position."""
    u = torch.eye(basis.input_factor.shape[1]).double() if basis.inputs is None else basis.inputs[0].double()
    v = torch.eye(basis.output_factor.shape[1]).double() if basis.outputs is None else basis.outputs[0].double()
    directions = torch.kron(v, u)
    return directions @ torch.diag(basis.eigenvalues[0, 0].double().flatten()) @ directions.T


def gradients(model, x, weight, bias, classes):
    """For every sample and label: its probability and the gradient of -log p as a row over [weight bias]."""
    for i in range(len(x)):
        for k in range(classes):
            logits = model(x[i : i + 1])
            p = logits.detach().softmax(1)[0, k]
            wanted = [weight] if bias is None else [weight, bias]
            g = torch.autograd.grad(F.cross_entropy(logits, torch.tensor([k])), wanted)
            rows = g[0].flatten(1)
            yield p, rows if bias is None else torch.cat([rows, g[1][:, None]], 1)


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


def test_labels_left_out_are_signs_which_are_exact_with_two_classes():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    data = [(torch.randn(20, 6).double(), None)]
    usual, exact = measured(model, data).bases, measured(model, data, labels="exact").bases
    assert Kronecker().describe()["labels"] == "signs"
    assert Fisher().describe()["labels"] == "sampled"
    for name in ("0.weight", "2.weight"):
        torch.testing.assert_close(usual[name].output_factor, exact[name].output_factor)
        torch.testing.assert_close(usual[name].eigenvalues, exact[name].eigenvalues)


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


@pytest.mark.parametrize("n", [7, 60])
def test_directions_are_orthonormal(n):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(n, 2 * n), nn.ReLU(), nn.Linear(2 * n, 3))
    for options in ({}, {"rank": 3}):
        for basis in measured(model, [(torch.randn(32, n), None)], **options).bases.values():
            for u in (basis.inputs, basis.outputs):
                assert float((u.mT @ u - torch.eye(u.shape[-1])).abs().max()) < 1e-5


def test_rank_keeps_the_largest():
    torch.manual_seed(5)
    model = nn.Linear(6, 3, bias=False).double()
    # Orthogonal inputs of squared lengths 60, 25, 10, 5: eigenvalues of A known without any decomposition.
    x = torch.zeros(4, 6).double()
    x[range(4), range(4)] = torch.tensor([60.0, 25.0, 10.0, 5.0]).double().sqrt()
    for rank, kept in ((1, 1), (2, 2), (3, 3), (4, 6), (None, 6)):
        basis = measured(model, [(x, None)], rank=rank).bases["weight"]
        assert basis.inputs.shape[-1] == kept
        few = min(kept, 4)
        torch.testing.assert_close(basis.inputs[0, :few, :few].abs(), torch.eye(few).double())
        assert basis.complete == (kept == 6 and basis.outputs.shape[-1] == 3)


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


def test_the_model_is_left_as_it_was_and_repeats_itself():
    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 2)).train()
    data = [(torch.randn(8, 4), torch.randint(2, (8,)))]
    before, rng = {n: t.clone() for n, t in model.state_dict().items()}, torch.get_rng_state()
    one, two = measured(model, data), measured(model, data)
    assert torch.equal(rng, torch.get_rng_state())
    assert model.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    for name in one.bases:
        assert torch.equal(one.bases[name].eigenvalues, two.bases[name].eigenvalues)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eigenvalues": "some"}, "eigenvalues='some'"),
        ({"convolutions": "pixels"}, "convolutions='pixels'"),
        ({"rank": 0}, "rank=0"),
        ({"largest": None}, "largest=None"),
        ({"samples": 0}, "samples=0"),
        ({"labels": "drawn"}, "labels='drawn'"),
    ],
)
def test_options_are_refused_by_name(options, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        Kronecker(**options)


def test_no_samples_and_bad_values_are_refused():
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="holds no samples"):
        measured(model, [])
    with pytest.raises(FloatingPointError, match="weight"):
        measured(model, [(torch.full((2, 3), 1e30), torch.tensor([0, 1]))])


# -- over tasks --------------------------------------------------------------------------------------------------------


def tasks(seed=10):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    return model, *([(torch.randn(30, 5).double(), torch.randint(3, (30,)))] for _ in range(2))


@pytest.mark.parametrize("keep", [1.0, 0.0, 0.3])
@pytest.mark.parametrize("eigenvalues", ["exact", "product"])
def test_factors_and_importance_add_up_over_tasks(keep, eigenvalues):
    model, one, two = tasks()
    options = dict(labels="empirical", eigenvalues=eigenvalues)
    first, second = measured(model, one, **options), measured(model, two, **options)
    history = History(bases=first.bases, importance=first.importance, mean=1.0, keep=keep)
    both = measured(model, two, history=history, **options)
    for name, basis in both.bases.items():
        old, new = first.bases[name], second.bases[name]
        torch.testing.assert_close(basis.input_factor, keep * old.input_factor + new.input_factor)
        torch.testing.assert_close(basis.output_factor, keep * old.output_factor + new.output_factor)
        assert basis.count == pytest.approx(1 + keep)
        if eigenvalues == "exact":
            total = keep * old.eigenvalues.sum() + new.eigenvalues.sum()
            torch.testing.assert_close(basis.eigenvalues.sum(), total)
            # Carried over as the diagonal of the rotated operator, written out.
            v = torch.kron(basis.outputs[0], basis.inputs[0])
            carried = (v.T @ operator(old) @ v).diagonal()
            x, y = two[0]
            squares = torch.zeros_like(carried)
            layer = model[int(name[0])]
            for i in range(len(x)):
                loss = F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
                g = torch.autograd.grad(loss, [layer.weight, layer.bias])
                squares += (v.T @ torch.cat([g[0], g[1][:, None]], 1).flatten()).square() / len(x)
            torch.testing.assert_close(basis.eigenvalues.flatten(), keep * carried + squares)
        else:
            truth = torch.linalg.eigvalsh(torch.kron(basis.output_factor[0], basis.input_factor[0])) / (1 + keep)
            torch.testing.assert_close(basis.eigenvalues.flatten().sort().values, truth.clamp(min=0))


def test_a_history_of_single_weights_is_taken_along():
    model, one, two = tasks()
    earlier = Fisher(labels="empirical").estimate(model, one, everything(model))
    history = History(importance={n: t / 2 for n, t in earlier.items()}, mean=2.0, keep=1.0)
    found = measured(model, two, history=history, labels="empirical")
    alone = measured(model, two, labels="empirical")
    for name, basis in found.bases.items():
        bias = earlier[name.removesuffix("weight") + "bias"]
        diagonal = torch.diag(torch.cat([earlier[name], bias[:, None]], 1).flatten())
        total = torch.trace(diagonal) + alone.bases[name].eigenvalues.sum()
        torch.testing.assert_close(basis.eigenvalues.sum(), total)
        product = measured(model, two, history=history, labels="empirical", eigenvalues="product").bases[name]
        more_a = product.input_factor - alone.bases[name].input_factor
        more_g = product.output_factor - alone.bases[name].output_factor
        rank_one = torch.kron(more_g[0], more_a[0]).diagonal().reshape(bias.numel(), -1)
        truth = torch.cat([earlier[name], bias[:, None]], 1)
        torch.testing.assert_close(rank_one.sum(0), truth.sum(0))
        torch.testing.assert_close(rank_one.sum(1), truth.sum(1))


def test_long_sides_are_cut_to_256_directions_and_others_kept_whole():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(500, 256), nn.ReLU(), nn.Linear(256, 3))
    data = [(torch.randn(8, 500), torch.randint(3, (8,)))]
    bases = Kronecker().measure(model, data, dict(model.named_parameters())).bases
    assert [b.kept for b in bases.values()] == [(256, 256), (3, 257)]
    assert [b.size for b in bases.values()] == [(256, 501), (3, 257)]
    whole = Kronecker(rank=None).measure(model, data, dict(model.named_parameters())).bases
    assert all(b.complete for b in whole.values())
    assert [b.total for b in bases.values()] == pytest.approx([b.total for b in whole.values()], rel=1e-4)
