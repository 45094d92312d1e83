"""The taps: visitors are shown each layer's input and output derivative, sample by sample, wherever samples lie."""

import warnings

import pytest
import torch
from tests.per_sample.definition import check, doubles
from torch import nn

from drcl.per_sample.hooks import OnePass, Unsupported, Visitor, shapes_of_outputs


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


def test_hooks_of_others_that_change_outputs():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    model[0].register_forward_hook(lambda module, args, output: 3 * output)
    check(model, doubles(5, 4))


class BegunElsewhere(nn.Module):
    """The graph begins before the first layer, as tools that train adapters see to; another branch at a layer."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three, self.head = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        h = (2 * x).detach().requires_grad_()
        return self.head(torch.tanh(self.one(h)) * self.two(h) + self.three(x))


def test_a_graph_that_begins_before_the_first_layer():
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(BegunElsewhere().double(), doubles(5, 4))


def test_layer_called_around_its_hooks():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x):
            return self.b(torch.tanh(self.a.forward(x)))

    check(Net().double(), doubles(5, 4))


class Album(Visitor):
    """Keeps what it is shown, pass by pass."""

    def __init__(self):
        self.passes, self.seen = [], []

    def __call__(self, module, x, d):
        self.seen.append((module, x.clone(), d.clone()))

    def end_of_pass(self):
        self.passes.append(self.seen)
        self.seen = []


def tapped(model, one):
    """Taps on everything, and the shapes of all calls for one sample."""
    model.requires_grad_(False)
    onepass = OnePass(model, dict(model.named_parameters()))
    with shapes_of_outputs(onepass.rules) as shapes:
        model(one)
    return onepass, shapes


def shown(onepass, shapes, model, x, cotangents):
    album = Album()
    with onepass.tapped(), onepass.listening():
        output = model(x)
        onepass.layout(len(x), shapes)
        onepass.backward(output, [[v] for v in cotangents], len(x), album)
    return album


def truth(model, x, v, layers):
    """Input and output derivative of each layer by autograd, with outputs asked for their gradients."""
    kept = {}
    handles = [
        layer.register_forward_hook(lambda m, args, out: kept.setdefault(m, (args[0].detach(), out)) and None)
        for layer in layers
    ]
    model.requires_grad_(True)
    output = model(x)
    outs = [kept[layer][1] for layer in layers]
    derivatives = torch.autograd.grad((output * v).sum(), outs)
    for handle in handles:
        handle.remove()
    model.requires_grad_(False)
    return {layer: (kept[layer][0], d) for layer, d in zip(layers, derivatives)}


def test_a_visitor_is_shown_inputs_and_output_derivatives_once_a_cotangent():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(27, 4)).double()
    x, cotangents = doubles(5, 2, 4, 4), [doubles(5, 4, seed=k) for k in (1, 2)]
    onepass, shapes = tapped(model, x[:1])
    album = shown(onepass, shapes, model, x, cotangents)
    assert len(album.passes) == 2
    model[1].inplace = False  # or autograd would be asked for the derivative of what became of the output
    for seen, v in zip(album.passes, cotangents):
        expected = truth(model, x, v, [model[0], model[3]])
        assert [m for m, _, _ in seen] == [model[3], model[0]]  # on the way back
        for module, inputs, derivatives in seen:
            torch.testing.assert_close(inputs, expected[module][0][:, None])
            torch.testing.assert_close(derivatives, expected[module][1][:, None])


def test_rows_of_a_sample_are_kept_together():
    """Samples second: what a visitor sees has them first, one row for each of what lay before them."""

    class Second(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x):  # [samples, frames, 3]
            return self.inner(x.transpose(0, 1)).sum(0)

    model, x, v = Second().double(), doubles(4, 5, 3), doubles(4, 2, seed=1)
    onepass, shapes = tapped(model, x[:1])
    ((_, inputs, derivatives),) = shown(onepass, shapes, model, x, [v]).passes[0]
    assert inputs.shape == (4, 1, 5, 3)
    torch.testing.assert_close(inputs[:, 0], x)
    torch.testing.assert_close(derivatives[:, 0], v[:, None].expand(4, 5, 2))


def test_no_parameter_asks_for_a_gradient_and_taps_are_removed():
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), doubles(4, 3)
    onepass, shapes = tapped(model, x[:1])
    shown(onepass, shapes, model, x, [doubles(4, 2)])
    assert all(p.grad is None and not p.requires_grad for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())
    assert not model(x).requires_grad
    with onepass.tapped():
        assert not model(x).requires_grad  # nobody listens


def test_layers_are_left_to_other_routes():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    onepass = OnePass(model, dict(model.named_parameters()))
    assert onepass.names == ["0.weight", "0.bias", "2.weight", "2.bias"]
    onepass.forget(["0.weight"])
    assert onepass.names == ["0.bias", "2.weight", "2.bias"]
    onepass.forget(["0.bias"])
    assert list(onepass.rules) == list(onepass.owned) == [model[2]]
    whole = OnePass(model, dict(model.named_parameters()))
    whole.keep([model[0]])
    assert whole.names == ["0.weight", "0.bias"]
    assert OnePass(model, {"mine": model[2].bias}).names == ["mine"]


def test_parameters_that_serve_twice_are_noticed():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
            self.c.weight = self.b.weight

        def forward(self, x):
            return self.c(self.b(self.a(x)))

    model = Twice()
    onepass, _ = tapped(model, torch.zeros(1, 3))
    with onepass.tapped(), onepass.listening():
        model(torch.zeros(2, 3))
        assert onepass.used_more_than_once() == {model.b, model.c}


def test_another_use_than_in_the_trial_is_refused_before_anything_is_shown():
    class Fickle(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.times = nn.Linear(3, 3), 1

        def forward(self, x):
            for _ in range(self.times):
                x = self.a(x)
            return x

    model, x = Fickle().double(), doubles(4, 3)
    onepass, shapes = tapped(model, x[:1])
    shown(onepass, shapes, model, x, [doubles(4, 3)])
    model.times, album = 2, Album()
    with onepass.tapped(), onepass.listening():
        output = model(x)
        with pytest.raises(Unsupported, match="called in another way"):
            onepass.backward(output, [[doubles(4, 3)]], 4, album)
    assert album.passes == album.seen == []


def test_half_precision_is_widened_before_it_is_shown():
    model, x = nn.Sequential(nn.Linear(3, 2)).bfloat16(), doubles(4, 3).bfloat16()
    onepass, shapes = tapped(model, x[:1])
    ((_, inputs, derivatives),) = shown(onepass, shapes, model, x, [doubles(4, 2).bfloat16()]).passes[0]
    assert inputs.dtype == derivatives.dtype == torch.float32
