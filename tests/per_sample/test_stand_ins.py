"""Attention and recurrent layers in pieces: the same outputs, and importance against every label, written out."""

import copy

import pytest
import torch
from tests.importance.brute import expected_squares
from tests.importance.problems import assert_same, assert_untouched, named, snapshot
from tests.per_sample.fused import MODELS, Attends, Recurs, X
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from drcl import MAS, Fisher
from drcl.per_sample.hooks import OnePass
from drcl.per_sample.stand_ins import in_pieces, projections


@pytest.mark.parametrize("name", MODELS)
def test_in_pieces_they_compute_the_same(name):
    model = MODELS[name]().eval()
    before = snapshot(model)
    expected = model(X)
    calls = []
    handles = [p.register_forward_hook(lambda *_: calls.append(1)) for p in projections(model)]
    with in_pieces(model):
        torch.testing.assert_close(model(X), expected)
    for handle in handles:
        handle.remove()
    assert len(calls) == len(handles) > 0
    assert all("forward" not in vars(m) for m in model.modules())
    assert_untouched(before, snapshot(model))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", MODELS)
def test_exact_importance_is_the_expectation_over_labels(name):
    model = MODELS[name]()
    expected = expected_squares(model, lambda m, i: m(X[i : i + 1]), 3)
    found = Fisher(labels="exact").estimate(model, [(X, None)], named(model))
    assert_same(found, expected, rtol=1e-7)


@pytest.mark.parametrize("name", MODELS)
def test_the_taps_serve_every_weight_of_them(name):
    """None is left to a slower route, but for what is not a linear map."""
    model = MODELS[name]()
    served = set(OnePass(model, named(model)).names)
    others = {n for n in named(model) if n not in served}
    assert others <= {"attention.bias_k", "attention.bias_v", "attention.in_proj_bias"}
    assert ("attention.in_proj_bias" in others) == (name == "other widths")


def test_states_given_from_outside_and_other_inputs():
    lstm = nn.LSTM(4, 3).double()
    first = torch.randn(1, 2, 3).double(), torch.randn(1, 2, 3).double()
    x = torch.randn(5, 2, 4).double()
    packed = pack_padded_sequence(x, torch.tensor([5, 3]))
    expected = lstm(x, first), lstm(packed), lstm(x[:, 0])
    with in_pieces(lstm):
        found = lstm(x, first), lstm(packed), lstm(x[:, 0])
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1][0].data, expected[1][0].data, rtol=0, atol=0)
    torch.testing.assert_close(found[2], expected[2], rtol=0, atol=0)
    gru = nn.GRU(4, 3).double()
    whole = gru(x, first[0])
    with in_pieces(gru):
        torch.testing.assert_close(gru(x, first[0]), whole)


class Doubled(nn.MultiheadAttention):
    def forward(self, *args, **kwargs):
        out, weights = super().forward(*args, **kwargs)
        return 2 * out, weights


def test_what_may_compute_something_else_is_left_whole():
    model = Attends()
    assert len(projections(model)) == 2
    model.attention.forward = lambda q, k, v, **_: (q, None)
    assert not projections(model)
    del model.attention.forward
    own = copy.deepcopy(model)
    own.attention.__class__ = Doubled
    assert not projections(own)
    expected = expected_squares(own, lambda m, i: m(X[i : i + 1]), 3)
    assert_same(Fisher(labels="exact").estimate(own, [(X, None)], named(own)), expected, rtol=1e-7)
    with pytest.raises(KeyError), in_pieces(model):
        raise KeyError
    assert "forward" not in vars(model.attention)


def test_weights_that_were_replaced_are_seen():
    model = Attends()
    (first, _) = projections(model)
    assert projections(model)[0] is first
    model.attention.in_proj_weight = nn.Parameter(model.attention.in_proj_weight.detach() * 2)
    assert projections(model)[0].weight is model.attention.in_proj_weight


@pytest.mark.filterwarnings("ignore")
def test_pieces_that_do_not_add_up_are_left_whole(monkeypatch):
    """A wrong piece is noticed on two samples, and the layer keeps the slower route."""
    model = Recurs(nn.GRU)
    expected = MAS().estimate(model, [X], named(model))
    monkeypatch.setattr("drcl.per_sample.stand_ins._cell", lambda layer, i, h, state: ((i + h)[..., :3].tanh() * 3,))
    assert_same(MAS().estimate(model, [X], named(model)), expected, rtol=1e-7)
