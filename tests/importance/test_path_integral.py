"""The path integral of synaptic intelligence against paths written down by hand."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.importance.problems import assert_same, labelled, named, softmax_regression
from torch import nn

from drcl.importance import PathIntegral


def train(model, optimizer, steps, seed=0, closure=False):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(16, 4, generator=generator, dtype=torch.float64)
        y = (x[:, 0] > 0).long()

        def loss(x=x, y=y):
            optimizer.zero_grad()
            value = F.cross_entropy(model(x), y)
            value.backward()
            return value

        if closure:
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()


def test_path_integral_of_plain_sgd_is_lr_times_squared_gradients():
    model = softmax_regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    importance = PathIntegral(damping=0.2).watch(optimizer)
    start = {n: p.detach().clone() for n, p in named(model).items()}
    squares = {n: torch.zeros_like(p) for n, p in start.items()}
    hook = optimizer.register_step_pre_hook(
        lambda *_: [squares[n].addcmul_(p.grad, p.grad, value=0.1) for n, p in named(model).items()] and None
    )
    train(model, optimizer, 20)
    hook.remove()
    expected = {n: squares[n] / ((p.detach() - start[n]) ** 2 + 0.2) for n, p in named(model).items()}
    assert_same(importance.estimate(model, None, named(model)), expected)


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, foreach=True),
}


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_path_integral_follows_the_real_motion_of_any_optimizer(name, closure):
    """By hand: gradients and weights written down around every step."""
    model = softmax_regression()
    twin = copy.deepcopy(model)
    optimizer = OPTIMIZERS[name](model.parameters())
    importance = PathIntegral().watch(optimizer)
    train(model, optimizer, 15, closure=closure)

    by_hand = OPTIMIZERS[name](twin.parameters())
    start = [p.detach().clone() for p in twin.parameters()]
    omega = [torch.zeros_like(p) for p in start]
    generator = torch.Generator().manual_seed(0)
    for _ in range(15):
        x = torch.randn(16, 4, generator=generator, dtype=torch.float64)
        by_hand.zero_grad()
        F.cross_entropy(twin(x), (x[:, 0] > 0).long()).backward()
        before = [(p.detach().clone(), p.grad.clone()) for p in twin.parameters()]
        by_hand.step()
        for o, (w, g), p in zip(omega, before, twin.parameters()):
            o -= g * (p.detach() - w)
    expected = {
        n: (o / ((p.detach() - s) ** 2 + 0.1)).clamp(min=0) for (n, p), o, s in zip(named(twin).items(), omega, start)
    }
    assert_same(importance.estimate(model, None, named(model)), expected)


@pytest.mark.parametrize("closure", [False, True])
def test_path_integral_adds_up_to_the_loss_saved(closure):
    """Full-batch descent with small steps: the sum of omega is L(start) - L(end)."""
    model = softmax_regression()
    x, y = labelled(40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    importance = PathIntegral().watch(optimizer)

    def loss():
        optimizer.zero_grad()
        value = F.cross_entropy(model(x), y)
        value.backward()
        return value

    first = loss().item()
    for _ in range(200):
        if closure:
            optimizer.step(closure=loss)
        else:
            loss()
            optimizer.step()
    saved = sum(float(o.sum()) for o in importance.state_dict()["omega"])
    assert saved == pytest.approx(first - loss().item(), rel=0.02)


def test_path_integral_follows_every_evaluation_of_a_closure():
    """L-BFGS evaluates several times a step; its own path still adds up roughly to the loss saved."""
    torch.manual_seed(0)
    w = nn.Parameter(torch.tensor([3.0, -2.0], dtype=torch.float64))
    scale = torch.tensor([1.0, 1.5], dtype=torch.float64)
    optimizer = torch.optim.LBFGS([w], lr=0.05, max_iter=100, history_size=1)
    importance = PathIntegral().watch(optimizer)

    def loss():
        optimizer.zero_grad()
        value = (scale * w**2).sum() / 2
        value.backward()
        return value

    first = loss().item()
    optimizer.step(loss)
    saved = sum(float(o.sum()) for o in importance.state_dict()["omega"])
    assert saved == pytest.approx(first - loss().item(), rel=0.1)


def test_a_new_path_begins_after_the_estimate():
    model = softmax_regression()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    importance = PathIntegral().watch(optimizer)
    train(model, optimizer, 5)
    importance.estimate(model, None, named(model))
    with pytest.raises(RuntimeError, match="has seen no step"):
        importance.estimate(model, None, named(model))
    fresh_model = copy.deepcopy(model)
    fresh = torch.optim.Adam(fresh_model.parameters(), lr=0.01)
    fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    other = PathIntegral().watch(fresh)
    train(model, optimizer, 5, seed=1)
    train(fresh_model, fresh, 5, seed=1)
    assert_same(importance.estimate(model, None, named(model)), other.estimate(fresh_model, None, named(fresh_model)))


def test_path_integral_is_zero_where_motion_did_not_lower_the_loss():
    """Going uphill makes omega negative; standing still and frozen weights make it zero."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()
    model[1].bias.requires_grad_(False)
    groups = [
        {"params": [model[0].weight], "maximize": True},
        {"params": [model[0].bias], "lr": 0.0},
        {"params": [model[1].weight, model[1].bias]},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    importance = PathIntegral().watch(optimizer)
    train(model, optimizer, 10)
    assert (importance.state_dict()["omega"][0] < 0).all()
    found = importance.estimate(model, None, named(model))
    assert all(found[name].eq(0).all() for name in ("0.weight", "0.bias", "1.bias"))
    assert (found["1.weight"] > 0).all()


def test_path_integral_goes_on_from_a_saved_state(tmp_path):
    model = softmax_regression()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    importance = PathIntegral(damping=0.3).watch(optimizer)
    train(model, optimizer, 4)
    torch.save([importance.state_dict(), optimizer.state_dict(), model.state_dict()], tmp_path / "saved.pt")
    train(model, optimizer, 4, seed=1)
    expected = importance.estimate(model, None, named(model))

    again = softmax_regression(seed=9)
    path, steps, weights = torch.load(tmp_path / "saved.pt", weights_only=True)
    again.load_state_dict(weights)
    optimizer = torch.optim.Adam(again.parameters(), lr=0.01)
    optimizer.load_state_dict(steps)
    resumed = PathIntegral().watch(optimizer)
    resumed.load_state_dict(path)
    train(again, optimizer, 4, seed=1)
    found = resumed.estimate(again, None, named(again))
    assert all(torch.equal(found[n], expected[n]) for n in expected)


def test_groups_added_later_and_optimizers_made_anew_are_followed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    importance = PathIntegral().watch(optimizer)
    train(model, optimizer, 3)
    optimizer.add_param_group({"params": list(model[1].parameters())})
    train(model, optimizer, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    importance.watch(optimizer)
    train(model, optimizer, 3)
    assert importance.steps == 9
    found = importance.estimate(model, None, named(model))
    assert all((v > 0).any() for v in found.values())
    importance.unwatch()
    train(model, optimizer, 3)
    assert importance.steps == 0


def test_path_integral_refuses_what_it_cannot_do():
    model = softmax_regression()
    with pytest.raises(ValueError, match=r"PathIntegral\(damping=0\)"):
        PathIntegral(damping=0)
    with pytest.raises(TypeError, match="needs a torch optimizer, got Sequential"):
        PathIntegral().watch(model)
    with pytest.raises(RuntimeError, match=r"watch\(optimizer\) before training"):
        PathIntegral().estimate(model, None, named(model))
    optimizer = torch.optim.SGD([model[0].weight], lr=0.1)
    importance = PathIntegral().watch(optimizer)
    train(model, optimizer, 1)
    with pytest.raises(ValueError, match=r"parameter '0.bias' is not in the optimizer"):
        importance.estimate(model, None, named(model))
    with pytest.raises(RuntimeError, match=r"watch\(optimizer\) first"):
        PathIntegral().load_state_dict(importance.state_dict())
    other = PathIntegral().watch(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="over the same model"):
        other.load_state_dict(importance.state_dict())
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match=r"the path of parameter '0.weight' is not finite"):
        importance.estimate(model, None, {"0.weight": model[0].weight})
