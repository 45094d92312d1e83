"""What a caller hands to an estimator: wrappers, ways to call a model, parameters; and what is refused."""

import pytest
import torch
import torch.nn.functional as F
from tests.importance.problems import assert_same, labelled, named, softmax_regression, squared_gradients
from tests.nets import mlp
from torch import nn

from drcl.importance import MAS, Fisher
from drcl.importance.arguments import bare, default_forward, ready

X, Y = labelled(6)


def test_forward_hook_for_dict_batches_and_heads():
    torch.manual_seed(0)
    body, heads = nn.Linear(4, 6), nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 2)])
    model = nn.ModuleDict({"body": body, "heads": heads}).double()
    x, y = labelled(12)
    found = Fisher(labels="empirical").estimate(
        model,
        [{"image": x, "label": y}],
        named(model),
        forward=lambda m, batch: (m["heads"][0](torch.tanh(m["body"](batch["image"]))), batch["label"]),
    )
    whole = nn.Sequential(body, nn.Tanh(), heads[0])
    expected = squared_gradients(whole, x, lambda o, i: [(1, F.cross_entropy(o, y[i : i + 1]))])
    torch.testing.assert_close(found["body.weight"], expected["0.weight"])
    torch.testing.assert_close(found["heads.0.bias"], expected["2.bias"])
    assert found["heads.1.weight"].eq(0).all()
    assert found["heads.1.bias"].eq(0).all()


def test_target_may_be_missing_where_it_is_not_needed():
    model, (x, _) = softmax_regression(), labelled(6)
    for estimator in (Fisher(), Fisher(labels="exact"), MAS()):
        estimator.estimate(model, [{"x": x}], named(model), forward=lambda m, b: (m(b["x"]), None))
    with pytest.raises(ValueError, match="needs labels, but the batch has none"):
        Fisher(labels="empirical").estimate(model, [x], named(model))


def test_only_the_parameters_asked_for_come_back():
    model, batch = mlp(4, 5, 3).double(), labelled(8)
    every = Fisher().estimate(model, [batch], named(model))
    some = Fisher().estimate(model, [batch], {"3.weight": model[3].weight})
    assert_same(some, {"3.weight": every["3.weight"]})


def test_frozen_parameters_can_be_asked_for_and_stay_frozen():
    model, batch = mlp(4, 5, 3).double(), labelled(8)
    every = Fisher().estimate(model, [batch], named(model))
    model.requires_grad_(False)
    assert_same(Fisher().estimate(model, [batch], named(model)), every)
    assert not any(p.requires_grad for p in model.parameters())


def test_forward_of_the_wrong_kind_is_refused():
    model = softmax_regression()
    with pytest.raises(TypeError, match=r"must return a pair \(output, target\), got Tensor"):
        Fisher().estimate(model, [(X, Y)], named(model), forward=lambda m, b: m(b[0]))


def test_parameters_of_another_model_are_refused():
    with pytest.raises(ValueError, match=r"parameter '0.weight' does not belong to the model"):
        Fisher().estimate(softmax_regression(), [(X, Y)], named(softmax_regression()))
    with pytest.raises(ValueError, match="parameters is empty"):
        Fisher().estimate(softmax_regression(), [(X, Y)], {})


def test_wrappers_are_looked_through():
    model = mlp(4, 5, 3)
    assert bare(model) is model
    for wrapped in (torch.compile(model, backend="eager"), nn.DataParallel(model)):
        assert bare(wrapped) is model
    assert bare(nn.DataParallel(torch.compile(model, backend="eager"))) is model
    own = nn.Module()
    own.module = nn.Linear(2, 2)  # a layer that merely is called so
    assert bare(own) is own


def test_a_batch_is_inputs_and_labels_or_inputs_alone():
    model = softmax_regression()
    for batch, target in (((X, Y), Y), ([X, Y, "more"], Y), ((X,), None), (X, None)):
        output, found = default_forward(model, batch)
        assert torch.equal(output, model(X))
        assert found is target
    model = nn.Identity()
    model.register_parameter("p", nn.Parameter(torch.zeros(())))
    assert default_forward(model, ({"a": X}, Y))[0]["a"] is X
    for batch in ((), {"x": X}, 3):
        with pytest.raises(TypeError, match="pass forward=lambda model, batch"):
            default_forward(model, batch)


def test_the_model_is_ready_inside_and_as_it_was_outside():
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).double().train()
    with ready(torch.compile(model, backend="eager"), named(model), None, seed=3) as (inside, call):
        assert inside is model
        assert not any(m.training for m in model.modules())
        assert torch.equal(call(inside, (X, Y))[0], model[0](X))
        first = torch.rand(2)
    assert all(m.training for m in model.modules())
    with ready(model, named(model), lambda m, b: (m(b), "own"), seed=3) as (inside, call):
        assert torch.equal(torch.rand(2), first)
        assert call(inside, X)[1] == "own"
