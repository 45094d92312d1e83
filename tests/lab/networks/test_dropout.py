"""Dropout with cheap random numbers: the right share, the right scale, the same masks for the same random state."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from drcl.lab.networks.dropout import Dropout


@pytest.mark.parametrize("shape", [(7,), (64, 33), (8, 16, 15, 15)])
@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_share_and_scale(shape: tuple[int, ...], p: float) -> None:
    torch.manual_seed(0)
    layer = Dropout(p)
    drawn = torch.cat([layer(torch.ones(shape)).flatten() for _ in range(200)])
    assert drawn.unique().tolist() == [0.0, pytest.approx(1 / (1 - p))]
    share, error = float((drawn == 0).double().mean()), math.sqrt(p * (1 - p) / len(drawn))
    assert abs(share - p) < 5 * error + 1 / 65536


def test_neighbours_are_independent() -> None:
    torch.manual_seed(1)
    kept = (Dropout(0.5)(torch.ones(400_000)) > 0).double() - 0.5
    for distance in (1, 2, 3, 4, 8):
        assert abs(float((kept[distance:] * kept[:-distance]).mean()) * 4) < 5 / math.sqrt(len(kept))


def test_same_random_state_same_mask_and_another_one_next() -> None:
    layer, x = Dropout(0.3), torch.ones(1000)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first, second = layer(x), layer(x)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(layer(x), first)
    assert torch.equal(layer(x), second)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_layout_of_memory_is_kept(layout: torch.memory_format) -> None:
    x = torch.randn(4, 6, 5, 5).contiguous(memory_format=layout)
    assert Dropout(0.5)(x).is_contiguous(memory_format=layout)


def test_strided_input() -> None:
    x = torch.randn(6, 8).t()
    out = Dropout(0.5)(x)
    assert torch.equal(out[out != 0], (2 * x)[out != 0])


def test_gradient_passes_where_the_activation_did() -> None:
    x = torch.randn(50, 20, dtype=torch.float64, requires_grad=True)
    out = Dropout(0.25)(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    kept = torch.tensor(1 / 0.75, dtype=torch.float64)
    assert torch.equal(grad, torch.where(out == 0, torch.zeros_like(kept), kept))


@pytest.mark.parametrize(("p", "train", "wanted"), [(0.0, True, 1.0), (1.0, True, 0.0), (0.7, False, 1.0)])
def test_nothing_random_needs_no_random_numbers(p: float, train: bool, wanted: float) -> None:
    state = torch.get_rng_state()
    out = Dropout(p).train(train)(torch.ones(9))
    assert torch.equal(out, torch.full((9,), wanted))
    if p == 0.0 or not train:
        assert torch.equal(torch.get_rng_state(), state)
    assert isinstance(Dropout(p), nn.Dropout)
