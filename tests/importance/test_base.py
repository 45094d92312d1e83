"""The protocol between an estimator and the optimizer; estimators from outside need `estimate` and `describe` only."""

import pytest
import torch
from tests.importance.problems import assert_same, labelled, named, softmax_regression
from tests.tasks import fit, mlp, task
from torch import nn

import drcl.importance
from drcl import DRCL, Kronecker
from drcl.importance import MAS, Fisher, History, Importance, Measured, PathIntegral
from drcl.importance.base import measure_of


def test_descriptions_are_plain_values():
    for estimator in (
        Fisher(samples=7, seed=3),
        Fisher(labels="empirical", loss=nn.MSELoss()),
        MAS(),
        PathIntegral(),
    ):
        assert isinstance(estimator, Importance)
        for value in estimator.describe().values():
            assert value is None or type(value) in (str, int, float, bool)
    assert Fisher(samples=7, seed=3).describe() == {
        "estimator": "Fisher",
        "samples": 7,
        "labels": "sampled",
        "loss": None,
        "seed": 3,
        "likelihood": "softmax",
    }
    assert Fisher().needs_data
    assert not PathIntegral().needs_data
    assert set(drcl.importance.__all__) == {
        *("Fisher", "History", "Importance", "Labels", "MAS", "Measured", "PathIntegral"),
    }


class Ones(Importance):
    """Derived from the base class, with the two methods it asks for."""

    def estimate(self, model, batches, parameters, forward=None):
        return {name: torch.ones_like(p) for name, p in parameters.items()}

    def describe(self):
        return {"estimator": "Ones"}


class Plain:
    """Not derived from anything."""

    needs_data = False

    def estimate(self, model, batches, parameters, forward=None):
        return {name: torch.ones_like(p) for name, p in parameters.items()}

    def describe(self):
        return {"estimator": "Plain"}


@pytest.mark.parametrize("estimator", [Fisher(labels="exact"), MAS(), Ones(), Plain()], ids=lambda e: type(e).__name__)
def test_measure_is_the_estimate_with_nothing_to_add(estimator):
    model, batch = softmax_regression(), labelled(9)
    found = measure_of(estimator)(model, [batch], named(model), None, History(keep=1.0))
    assert_same(found.importance, estimator.estimate(model, [batch], named(model)))
    assert found == Measured(found.importance)


def test_the_path_integral_measures_what_it_watched():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    paths = [PathIntegral().watch(optimizer)]
    fit(model, optimizer, task(0))
    saved = paths[0].state_dict()
    measured = paths[0].measure(model, None, named(model)).importance
    paths[0].load_state_dict(saved)
    assert_same(measured, paths[0].estimate(model, None, named(model)))


@pytest.mark.parametrize("estimator", [Ones(), Plain()], ids=lambda e: type(e).__name__)
def test_estimators_from_outside_are_taken_by_consolidate(estimator):
    model = mlp()
    opt = DRCL(model.named_parameters(), lr=0.1)
    for number in range(2):
        opt.consolidate(model, task(number), importance=estimator)
    assert all(bool((t == 2).all()) for t in opt.anchor.importance.values())  # mean one per task
    assert opt.anchor.provenance["made"] == [estimator.describe()] * 2


def test_an_estimator_from_outside_may_find_directions():
    """Only `measure` and `describe`: what is measured is what another estimator found, here with nothing added."""

    class Borrowed:
        def measure(self, model, batches, parameters, forward, history):
            return Kronecker().measure(model, batches, parameters, forward, history)

        def describe(self):
            return {"estimator": "Borrowed"}

    models = mlp(), mlp()
    opts = [DRCL(m.named_parameters(), lr=0.1, preset="weights") for m in models]
    for model, opt, importance in zip(models, opts, (Borrowed(), Kronecker())):
        for number in range(2):
            opt.consolidate(model, task(number), importance=importance)
    one, two = (opt.anchor for opt in opts)
    assert set(one.bases) == {"0.weight", "2.weight"}
    for name, basis in two.bases.items():
        assert all(torch.equal(t, one.bases[name].tensors()[k]) for k, t in basis.tensors().items())
    # It did not say that it finds directions, so the prox is looked at when they are there.
    model = mlp()
    opt = DRCL(model.named_parameters(), lr=0.1, prox="box")
    with pytest.raises(ValueError, match="use prox='l1'"):
        opt.consolidate(model, task(0), importance=Borrowed())
    assert opt.tasks == 0


def test_what_is_no_estimator_is_refused():
    model = mlp()
    with pytest.raises(TypeError, match="must be an estimator such as"):
        DRCL(model.named_parameters(), lr=0.1).consolidate(model, task(0), importance=object())
