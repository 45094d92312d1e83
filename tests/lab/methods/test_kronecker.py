"""The Kronecker factors methods share: what lies where in a layer, and how the information of tasks is added."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.lab.methods.loop import KINDS, Walk, toy_stream
from torch import nn

from drcl.lab.methods import _kronecker
from drcl.lab.methods.sgd import SGD

LAYERS = {
    "linear": (nn.Linear(3, 5), 4, 1),
    "no bias": (nn.Linear(3, 5, bias=False), 3, 1),
    "patches": (nn.Conv2d(3, 4, 2), 13, 1),
    "channels": (nn.Conv2d(3, 4, 2), 3, 1),  # kernel positions apart, and the bias out of it
    "groups": (nn.Conv2d(4, 6, 3, groups=2), 19, 2),
}


def named(layer: nn.Module) -> dict[str, torch.Tensor]:
    return {f"layer.{name}": p.detach() for name, p in layer.named_parameters()}


@pytest.mark.parametrize("case", LAYERS)
def test_a_layer_goes_to_matrices_and_back(case: str) -> None:
    layer, inputs, groups = LAYERS[case]
    tensors, factor = named(layer), torch.eye(inputs).expand(groups, -1, -1)
    stack = _kronecker.matrix(tensors, "layer.weight", factor)
    assert stack.shape[0] == groups
    assert stack.shape[3] == inputs
    parts = _kronecker.split(stack, tensors, "layer.weight", factor)
    for name, t in parts.items():
        assert torch.equal(t, tensors[name])
    assert ("layer.bias" in parts) == (case not in ("no bias", "channels"))
    copies = {name: torch.zeros_like(t) for name, t in tensors.items()}
    _kronecker.write(stack, copies, "layer.weight", factor)
    assert all(torch.equal(copies[name], t) for name, t in parts.items())


@pytest.mark.parametrize("case", LAYERS)
@pytest.mark.parametrize("diagonal", [(), ("a",), ("g",), ("a", "g")])
def test_curved_is_the_kronecker_product(case: str, diagonal: tuple[str, ...]) -> None:
    """G D A of every group and kernel position, against kron(G, A) on the rows of D one after another."""
    layer, inputs, groups = LAYERS[case]
    generator = torch.Generator().manual_seed(0)
    outputs = layer.weight.shape[0] // groups
    a, g = (torch.randn(groups, n, n, generator=generator).double() for n in (inputs, outputs))
    a, g = a @ a.mT, g @ g.mT
    if "a" in diagonal:
        a = torch.diag_embed(a.diagonal(dim1=1, dim2=2))
    if "g" in diagonal:
        g = torch.diag_embed(g.diagonal(dim1=1, dim2=2))
    tensors = {name: t.double() for name, t in named(layer).items()}
    stack = _kronecker.matrix(tensors, "layer.weight", a)
    wanted = torch.empty_like(stack)
    for group in range(groups):
        for position in range(stack.shape[1]):
            flat = torch.kron(g[group], a[group]) @ stack[group, position].flatten()
            wanted[group, position] = flat.view(outputs, inputs)
    short = [t.diagonal(dim1=1, dim2=2) if side in diagonal else t for side, t in (("a", a), ("g", g))]
    torch.testing.assert_close(_kronecker.curved(*short, stack), wanted)
    basis = _kronecker.from_factors(tensors, "layer.weight", *short, count=2.0)
    for group in range(groups):
        both = torch.kron(g[group], a[group]).diagonal().view(outputs, inputs) / 2
        torch.testing.assert_close(basis.eigenvalues[group, 0], both)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eigenvalues", ["exact", "product"])
def test_information_is_kept_when_a_layer_changes_its_form(
    kind: str, eigenvalues: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer that had a basis has a diagonal in the next task, or the other way round: the sum is that of both."""
    tasks = toy_stream(per_class=6)
    walk = Walk(SGD(), tasks, kind)
    walk.task(tasks[0], 1)
    how: dict[str, Any] = {"eigenvalues": eigenvalues}

    def measure(before: _kronecker.Information | None = None, decay: float = 1.0) -> _kronecker.Information:
        return _kronecker.measure(walk.method, tasks[0], None, "empirical", before, decay, **how)

    own = walk.method.protected()
    one = measure()
    layer = ("trunk.fc1.weight", "trunk.fc1.bias")
    diagonal = one.of_weights(own)
    others = {name: basis for name, basis in one.bases.items() if name not in layer}
    without = _kronecker.Information(others, {name: diagonal[name] for name in layer})
    for before in (one, without):
        again = measure(before, 0.5)
        assert set(again.bases) == set(one.bases)
        found = again.of_weights(own)
        for name in one.bases:
            names = (name, name.removesuffix("weight") + "bias")
            wanted = 1.5 * sum(float(diagonal[n].sum()) for n in names)
            assert sum(float(found[n].sum()) for n in names) == pytest.approx(wanted, rel=1e-3)
    monkeypatch.setattr(_kronecker.FromTheFirst, "measure", hidden(layer[0]))
    later = measure(one, 0.5)
    assert set(later.diagonal) == set(layer)
    for name in layer:
        torch.testing.assert_close(later.diagonal[name], 1.5 * diagonal[name])


def hidden(name: str) -> Any:
    """The library's own estimate, in which one layer has no basis."""
    original = _kronecker.FromTheFirst.measure

    def measure(*given: Any) -> Any:
        found = original(*given[:-1])  # of this task alone, as everything without a basis is
        return replace(found, bases={n: b for n, b in found.bases.items() if n != name})

    return measure


def test_it_goes_through_a_state_and_back() -> None:
    tasks = toy_stream(per_class=4)
    walk = Walk(SGD(), tasks, "cnn")
    one = _kronecker.measure(walk.method, tasks[0], None, "empirical")
    again = _kronecker.Information.unpack(one.pack())
    for name, basis in one.bases.items():
        for word, t in basis.tensors().items():
            assert torch.equal(again.bases[name].tensors()[word], t)
        assert again.bases[name].facts() == basis.facts()
    assert _kronecker.Information.unpack({}) == _kronecker.Information()
