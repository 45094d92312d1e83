"""The input space of each layer: its columns are what the layer multiplies, bases grow no more than they must."""

from __future__ import annotations

import pytest
import torch
from tests.lab.methods.loop import outputs
from torch import nn

from drcl.lab.methods import _bases


def test_rank_is_the_smallest_that_reaches_the_threshold() -> None:
    """Energies 16, 4, 1 along three axes: 16/21 = .76, 20/21 = .952."""
    inputs = torch.diag(torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64))
    nothing = torch.empty(3, 0)
    for threshold, rank in [(0.5, 1), (0.76, 1), (0.77, 2), (0.95, 2), (0.96, 3)]:
        new, values = _bases.grow(nothing, inputs, threshold)
        assert new.shape == (3, rank)
        torch.testing.assert_close(values, torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64)[:rank])
    held = torch.tensor([[0.0], [1.0], [0.0]])  # the second axis is in memory already: 4/21
    assert _bases.grow(held, inputs, 0.19)[0].shape == (3, 0)
    assert _bases.grow(held, inputs, 0.95)[0].abs().round().tolist() == [[1], [0], [0]]
    assert _bases.grow(torch.eye(3), inputs, 0.999)[0].shape == (3, 0)
    assert _bases.grow(nothing, torch.zeros(3, 5, dtype=torch.float64), 0.9)[0].shape == (3, 0)


def test_squeezed_inputs_have_the_same_singular_values_and_directions() -> None:
    layer = nn.Conv2d(2, 3, 3, stride=2, padding=1)
    x = torch.randn(4, 2, 9, 9, generator=torch.Generator().manual_seed(0))
    columns = _bases.columns(layer, x)
    assert columns.shape == (2 * 9 + 1, 4 * 25)
    by_matrix = outputs(layer, columns).reshape(3, 4, 25).transpose(0, 1).reshape(4, 3, 5, 5)
    torch.testing.assert_close(by_matrix, layer(x), atol=1e-5, rtol=1e-5)
    small = _bases.squeeze(columns.double())
    assert small.shape == (19, 19)
    torch.testing.assert_close(small @ small.T, (columns.double() @ columns.double().T))
    torch.testing.assert_close(torch.linalg.svdvals(small), torch.linalg.svdvals(columns.double()))


def test_projection_is_idempotent_for_gpm_and_scaled_for_sgp() -> None:
    generator = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(torch.randn(7, 3, generator=generator))[0]
    matrix = torch.randn(5, 7, generator=generator)
    once = _bases.project(matrix, basis)
    torch.testing.assert_close(_bases.project(once, basis), once)
    torch.testing.assert_close(_bases.project(matrix, basis, torch.ones(3)), once)
    assert torch.equal(_bases.project(matrix, basis, torch.zeros(3)), matrix)
    half = _bases.project(matrix, basis, torch.full((3,), 0.5))
    torch.testing.assert_close(half, (matrix + once) / 2)
    assert not torch.allclose(_bases.project(half, basis, torch.full((3,), 0.5)), half)


@pytest.mark.parametrize("layer", [nn.Linear(4, 3), nn.Linear(4, 3, bias=False), nn.Conv2d(2, 3, 2)], ids=str)
def test_a_gradient_becomes_a_matrix_and_back(layer: nn.Linear | nn.Conv2d) -> None:
    assert _bases.gradient(layer) is None
    shape = (5, 4) if isinstance(layer, nn.Linear) else (5, 2, 4, 4)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    layer(x).square().sum().backward()
    matrix = _bases.gradient(layer)
    assert matrix is not None
    # each row is a sum of the layer's inputs, so it lies in their span
    columns = _bases.columns(layer, x)
    solution = torch.linalg.lstsq(columns.double(), matrix.T.double()).solution
    torch.testing.assert_close(columns.double() @ solution, matrix.T.double(), atol=1e-4, rtol=1e-4)
    kept = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
    _bases.write_gradient(layer, 2 * matrix)
    for p, grad in zip(layer.parameters(), kept, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, 2 * grad)


def test_layers_without_patches_are_refused_by_name() -> None:
    for wrong in (nn.Conv2d(2, 2, 3, groups=2), nn.Conv2d(2, 2, 3, padding="same")):
        model = nn.Sequential(nn.ReLU(), wrong)
        with pytest.raises(ValueError, match="1 is a convolution with groups="):
            _bases.matrix_layers(model, dict(model.named_parameters()))
        assert _bases.matrix_layers(model, {}) == {}
