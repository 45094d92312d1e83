"""Directions of attention, recurrent layers and GPT-2's Conv1D, against every label of every sample, written out."""

import pytest
import torch
from tests.directions.problems import everything
from tests.importance.brute import gradients
from tests.importance.imitation import Conv1D, TinyLMHeadModel
from tests.per_sample.fused import MODELS, X
from torch import nn
from torch.nn import functional as F

from drcl import DRCL, Kronecker
from drcl.directions.basis import as_matrix, bias_of


def with_bias(found, name, basis):
    """A gradient as the basis has it: [groups, 1, outputs, inputs (and the bias)]."""
    groups = basis.eigenvalues.shape[0]
    matrix = as_matrix(found[name], groups, 1)
    return torch.cat([matrix, found[bias_of(name)].reshape(groups, 1, -1, 1)], -1) if basis.bias else matrix


class Turned(nn.Module):
    """GPT-2's layer, once at four positions and once at one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.out = Conv1D(5, 4), Conv1D(3, 5)
        self.double()

    def forward(self, x):
        return self.out(torch.tanh(self.inner(x)).mean(1))


ALL = {**MODELS, "conv1d": Turned}


@pytest.mark.parametrize("name", ALL)
def test_eigenvalues_are_mean_squared_gradients_along_directions(name):
    model = ALL[name]()
    whole = Kronecker(labels="exact").measure(model, [(X, None)], everything(model))
    assert whole.bases
    totals = {n: torch.zeros_like(b.eigenvalues) for n, b in whole.bases.items()}
    for p, found in gradients(model, lambda m, i: m(X[i : i + 1]), 3, "softmax"):
        for n, basis in whole.bases.items():
            totals[n] += p * basis.rotate(with_bias(found, n, basis)).square() / 3
    for n, basis in whole.bases.items():
        assert basis.complete
        torch.testing.assert_close(basis.eigenvalues, totals[n], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", ["self attention", "lstm", "gru", "conv1d"])
def test_every_weight_that_is_a_linear_map_has_directions(name):
    model = ALL[name]()
    bases = Kronecker().measure(model, [(X, None)], everything(model)).bases
    assert set(bases) == {n for n, p in everything(model).items() if "weight" in n}
    assert all(basis.bias == (name != "conv1d") for basis in bases.values())


def test_factors_of_one_position_are_the_second_moments():
    """Of a weight [inputs, outputs] the rows are inputs: there the sides are exchanged."""
    model = Turned()
    basis = Kronecker(labels="exact").measure(model, [(X, None)], everything(model)).bases["out.weight"]
    h = torch.tanh(model.inner(X)).mean(1).detach()
    p = model(X).detach().softmax(1)
    torch.testing.assert_close(basis.output_factor[0], h.T @ h / 3)
    torch.testing.assert_close(basis.input_factor[0], torch.diag(p.mean(0)) - p.T @ p / 3)


def test_factors_of_self_attention_are_the_same_inputs_three_times():
    model = MODELS["self attention"]()
    basis = Kronecker().measure(model, [(X, None)], everything(model)).bases["attention.in_proj_weight"]
    rows = torch.cat([X, torch.ones(3, 4, 1).double()], -1).flatten(0, 1)
    for group in basis.input_factor:
        torch.testing.assert_close(group, rows.T @ rows / 3)


@pytest.mark.parametrize("name", ALL)
def test_a_strong_pull_holds_them_and_an_anchor_stores_them(name, tmp_path):
    model = ALL[name]()
    data = [(X, torch.tensor([0, 1, 2]))]
    opt = DRCL(model.named_parameters(), lr=0.05, preset="directions", strength=float("inf"), plasticity_steps=1)
    opt.consolidate(model, data)
    anchor = opt.anchor
    anchor.save(tmp_path / "anchor.safetensors")
    again = type(anchor).load(tmp_path / "anchor.safetensors", model)
    assert set(again.bases) == set(anchor.bases) == {n for n in anchor.provenance["directions"] if "weight" in n}
    F.cross_entropy(model(X), data[0][1]).backward()
    opt.step()
    for n, p in model.named_parameters():
        assert torch.equal(p, anchor.weights[n])
    opt.consolidate(model, data)  # a second task adds to the first
    assert all(basis.count == 2 for basis in opt.anchor.bases.values())


def test_a_language_model_says_what_has_directions():
    model = TinyLMHeadModel()
    opt = DRCL(model.named_parameters(), lr=0.1, preset="directions")
    opt.consolidate(model, [{"input_ids": torch.tensor([[0, 1, 2], [3, 2, 1]])}])
    told = opt.anchor.provenance
    assert set(told["directions"]) == {f"block.{n}.weight" for n in ("c_attn", "c_proj", "c_fc", "c_out")}
    biases = {f"block.{n}.bias" for n in ("c_attn", "c_proj", "c_fc", "c_out", "ln")}
    # Embeddings, the one that is the head's weight too, and norms are held weight by weight.
    assert set(told["diagonal"]) == biases | {"wte.weight", "wpe.weight", "block.ln.weight"}
