"""What a step refuses before it changes anything: parameters that were replaced, numbers that were set later."""

import math

import pytest
import torch
from tests.tasks import mlp, same, task, whole_state
from torch import nn

from drcl import DRCL

BACKENDS = ["native", "foreach", "reference"]


def protected(**arguments):
    model = mlp()
    arguments = {"lr": 0.1, "momentum": 0.9, "strength": 0.05} | arguments
    opt = DRCL(model.named_parameters(), **arguments)
    opt.consolidate(model, task(0))
    gradients(model)
    opt.step()
    gradients(model)
    return model, opt


def gradients(model):
    for p in model.parameters():
        p.grad = torch.full_like(p, 0.1)


def refused(model, opt, kind, pattern):
    before = whole_state(model, opt)
    with pytest.raises(kind, match=pattern):
        opt.step()
    after = whole_state(model, opt)
    assert all(same(before[key], after[key]) for key in before if key != "groups")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("splitting", ["forward-backward", "douglas-rachford"])
@pytest.mark.parametrize("rows", [6, 2, 4000])
def test_a_head_that_grew_or_shrank(backend, splitting, rows):
    """When only strides were compared, the fused step read and wrote past the end of the anchor."""
    model, opt = protected(backend=backend, splitting=splitting)
    head = model[2]
    head.weight.data = torch.randn(rows, head.weight.shape[1])
    refused(model, opt, ValueError, r"gradient of '2.weight' is float32 of shape .* call zero_grad")
    head.weight.grad = torch.ones_like(head.weight)
    refused(
        model, opt, ValueError, r"'2.weight' is float32 of shape .* now, but its anchor is .*the parameter was changed"
    )


def test_a_parameter_of_another_type():
    model, opt = protected()
    model[0].bias.data = model[0].bias.data.double()
    model[0].bias.grad = torch.ones_like(model[0].bias)
    refused(model, opt, ValueError, r"'0.bias' is float64 .*its anchor is float32")


@pytest.mark.parametrize("whose", ["parameter's gradient", "anchor"])
def test_memory_that_was_given_back(whose):
    model, opt = protected()
    p = model[0].weight
    t = p.grad if whose == "parameter's gradient" else opt.state[p]["anchor"]
    kept = t.clone()
    t.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"'0.weight'.*without memory"):
        opt.step()
    t.untyped_storage().resize_(4 * kept.numel())
    t.copy_(kept)
    opt.step()


class Odd(torch.Tensor):
    """A subclass that manages its own memory."""


def test_subclasses_never_reach_c(monkeypatch):
    from drcl.splitting import native

    library = native.load()
    assert library is not None
    plain = torch.ones(4)
    assert native.usable(plain, (plain.clone(),))
    assert not native.usable(plain, (plain.clone().as_subclass(Odd),))
    assert not native.usable(plain.as_subclass(Odd), (plain,))


WRONG = [
    *[(key, value) for key in ("lr", "momentum", "weight_decay", "damping") for value in (math.nan, math.inf, -0.1)],
    *[("dampening", value) for value in (math.nan, math.inf)],
    *[("strength", value) for value in (math.nan, -1.0, -math.inf)],
    *[("stable", value) for value in (math.nan, 0.0, 1.0, -1.0, "half")],
    *[(key, "a lot") for key in ("lr", "strength")],
    ("lr", None),
    ("lr", torch.tensor(math.nan)),
    ("nesterov", True),  # beside dampening
]


@pytest.mark.parametrize(("key", "value"), WRONG, ids=str)
@pytest.mark.parametrize("steps", [1, 3], ids=["a step", "a proposal"])
def test_numbers_set_later(key, value, steps):
    model, opt = protected(plasticity_steps=steps, dampening=0.1)
    opt.param_groups[0][key] = value
    refused(model, opt, (ValueError, TypeError), rf"group 0: .*{'stable' if key == 'stable' else key}")


@pytest.mark.parametrize(
    ("key", "value"),
    [("lr", math.nan), ("lr", -1.0), ("betas", (0.9, math.nan)), ("eps", math.nan), ("strength", -1.0)],
)
def test_numbers_of_a_wrapped_optimizer_set_later(key, value):
    model = mlp()
    opt = DRCL.around(torch.optim.AdamW(model.named_parameters(), lr=0.01), strength=0.1)
    opt.consolidate(model, task(0))
    gradients(model)
    opt.step()
    opt.param_groups[0][key] = value
    refused(model, opt, ValueError, f"group 0: {key}=.*no weight was changed")


def test_a_wrapped_optimizer_that_refuses_leaves_its_state_as_it_was():
    """Adam sets up the state of earlier parameters before it refuses a sparse gradient."""
    model = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Embedding(5, 2, sparse=True)})
    opt = DRCL.around(torch.optim.Adam(model.named_parameters(), lr=0.01), strength=0.1)
    model["a"](torch.ones(1, 3)).sum().backward()
    model["b"](torch.tensor([1])).sum().backward()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match="sparse"):
        opt.step()
    assert not opt.inner.state
    assert same(before, [p.detach() for p in model.parameters()])


@pytest.mark.parametrize(("make", "key"), [(torch.optim.RMSprop, "momentum"), (torch.optim.Adam, "amsgrad")])
def test_an_option_of_the_wrapped_optimizer_that_comes_too_late_changes_no_group(make, key):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    groups = [{"params": list(layer.named_parameters())} for layer in model]
    opt = DRCL.around(make(groups, lr=0.01))
    for _ in range(2):
        opt.zero_grad()
        model(torch.randn(8, 4)).square().sum().backward()
        opt.step()
    opt.param_groups[1][key] = 0.9 if key == "momentum" else True
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ValueError, match=f"{key}=.* after {make.__name__} had begun"):
        opt.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
