"""Kronecker as an estimator: its options, what it refuses, and two tasks against sums written out."""

import pytest
import torch
from tests.directions.problems import everything, measured, operator
from torch import nn
from torch.nn import functional as F

from drcl import Fisher, Kronecker
from drcl.importance.base import History


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
        ({"output_rank": 0}, "output_rank=0"),
        ({"passes": 3}, "passes=3"),
        ({"passes": True}, "passes=True"),
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


def test_long_sides_are_cut_and_others_kept_whole():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(500, 256), nn.ReLU(), nn.Linear(256, 400), nn.ReLU(), nn.Linear(400, 3))
    data = [(torch.randn(8, 500), torch.randint(3, (8,)))]
    bases = Kronecker().measure(model, data, dict(model.named_parameters())).bases
    assert [b.kept for b in bases.values()] == [(256, 256), (64, 257), (3, 256)]
    assert [b.size for b in bases.values()] == [(256, 501), (400, 257), (3, 401)]
    alike = Kronecker(output_rank=None).measure(model, data, dict(model.named_parameters())).bases
    assert [b.kept for b in alike.values()] == [(256, 256), (256, 257), (3, 256)]
    whole = Kronecker(rank=None).measure(model, data, dict(model.named_parameters())).bases
    assert all(b.complete for b in whole.values())
    assert [b.total for b in bases.values()] == pytest.approx([b.total for b in whole.values()], rel=1e-4)
