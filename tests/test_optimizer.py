"""DRCL as a torch optimizer: plain SGD at first, then everything a training loop does to an optimizer."""

import copy
import itertools

import pytest
import torch
from tests.tasks import after_one_task, closure_on, fit, mlp, same, task, weights
from torch import nn
from torch.nn.functional import cross_entropy

import drcl
from drcl import DRCL, Fisher

MOMENTA = (
    {},
    {"momentum": 0.9},
    {"momentum": 0.8, "dampening": 0.3},
    {"momentum": 0.9, "nesterov": True},
)
SGD_OPTIONS = [
    {**momentum, "weight_decay": decay, "maximize": maximize}
    for momentum, decay, maximize in itertools.product(MOMENTA, (0.0, 0.01), (False, True))
]


# -- before the first consolidate ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", SGD_OPTIONS, ids=str)
@pytest.mark.parametrize(
    "ours",
    [
        *({"splitting": s} for s in ("douglas-rachford", "forward-backward")),
        *({"splitting": "douglas-rachford", **more} for more in ({"plasticity_steps": 3}, {"stable": 0.5})),
    ],
    ids=str,
)
def test_it_is_sgd_bit_for_bit(options, ours):
    one, two = mlp(), mlp()
    opt, sgd = (
        DRCL(one.named_parameters(), lr=0.05, **options, **ours),
        torch.optim.SGD(two.parameters(), lr=0.05, **options),
    )
    fit(one, opt, task(0)), fit(two, sgd, task(0))
    assert same(weights(one), weights(two))
    for p, q in zip(one.parameters(), two.parameters()):
        assert same(opt.state[p].get("momentum_buffer"), sgd.state[q].get("momentum_buffer"))


@pytest.mark.parametrize("options", SGD_OPTIONS, ids=str)
@pytest.mark.parametrize("shape", [(64,), (65,), (63,), (128, 33), (100, 100), (250, 256), (16, 8, 3, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_it_is_sgd_bit_for_bit_in_every_size(options, shape, dtype):
    """Large tensors take torch's fused step, all others its plain one."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator, dtype=dtype)
    start = start.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else start
    one, two = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    opt, sgd = DRCL([one], lr=0.05, **options), torch.optim.SGD([two], lr=0.05, foreach=False, **options)
    for _ in range(4):
        one.grad = torch.randn(shape, generator=generator, dtype=dtype).contiguous(
            memory_format=torch.channels_last if len(shape) == 4 else torch.contiguous_format
        )
        two.grad = one.grad.clone()
        opt.step(), sgd.step()
    assert same(one, two)
    assert same(opt.state[one].get("momentum_buffer"), sgd.state[two].get("momentum_buffer"))


def test_it_is_sgd_through_groups():
    one, two = mlp(), mlp()

    def groups(model):
        return [
            {"params": model[0].parameters(), "lr": 0.2, "momentum": 0.9, "nesterov": True},
            {"params": [model[2].weight], "weight_decay": 0.1},
            {"params": [model[2].bias], "maximize": True},
        ]

    opt, sgd = DRCL(groups(one), lr=0.05), torch.optim.SGD(groups(two), lr=0.05)
    fit(one, opt, task(0)), fit(two, sgd, task(0))
    assert same(weights(one), weights(two))


@pytest.mark.parametrize("form", ["parameters", "named", "list", "groups", "named groups"])
def test_forms_of_parameters(form):
    model = mlp()
    named = list(model.named_parameters())
    given = {
        "parameters": model.parameters(),
        "named": model.named_parameters(),
        "list": [p for _, p in named],
        "groups": [{"params": [p]} for _, p in named],
        "named groups": [{"params": named[:2]}, {"params": named[2:], "free": True}],
    }[form]
    opt = DRCL(given, lr=0.1)
    fit(model, opt, task(0))
    opt.consolidate(model, task(0))
    names = [n for n, _ in named]
    assert list(opt.anchor.weights) == (names[:2] if form == "named groups" else names)


def test_learning_rate_may_be_a_tensor():
    one, two = mlp(), mlp()
    opt, sgd = (
        DRCL(one.named_parameters(), lr=torch.tensor(0.05), strength=10.0, splitting="douglas-rachford"),
        torch.optim.SGD(two.parameters(), lr=torch.tensor(0.05)),
    )
    fit(one, opt, task(0)), fit(two, sgd, task(0))
    assert same(weights(one), weights(two))
    opt.consolidate(one, task(0))
    fit(one, opt, task(1))


# -- what a training loop does -----------------------------------------------------------------------------------------


def schedules():
    step = torch.optim.lr_scheduler
    return {
        "step": lambda o: step.StepLR(o, 2, gamma=0.5),
        "cosine": lambda o: step.CosineAnnealingLR(o, T_max=12),
        "one cycle": lambda o: step.OneCycleLR(o, max_lr=0.3, total_steps=20),
        "warm up from zero": lambda o: step.LambdaLR(o, lambda k: k / 10),
        "plateau": lambda o: step.ReduceLROnPlateau(o, patience=1, factor=0.3),
    }


@pytest.mark.parametrize("splitting", ["douglas-rachford", "forward-backward"])
@pytest.mark.parametrize("name", schedules())
def test_schedulers(name, splitting):
    """As if the numbers the scheduler gives to a plain SGD were set by hand, over two tasks."""
    (one, two), arguments = (mlp(), mlp()), dict(lr=0.1, momentum=0.9, strength=0.05, splitting=splitting)
    opt, hand = DRCL(one.named_parameters(), **arguments), DRCL(two.named_parameters(), **arguments)
    plain = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    scheduler, guide = schedules()[name](opt), schedules()[name](plain)
    seen, k = set(), 0
    for number in range(2):
        for batch in task(number):
            hand.param_groups[0]["lr"] = plain.param_groups[0]["lr"]
            hand.param_groups[0]["momentum"] = plain.param_groups[0]["momentum"]
            fit(one, opt, [batch]), fit(two, hand, [batch])
            plain.step()
            for s in (scheduler, guide):
                s.step(*([1.0 + k // 100] if name == "plateau" else []))
            k += 1
            seen.add(plain.param_groups[0]["lr"])
        opt.consolidate(one, task(number)), hand.consolidate(two, task(number))
    assert len(seen) >= 3
    assert same(weights(one), weights(two))


def test_grad_scaler():
    """A scale that is a power of two cancels exactly; an overflow skips the step and changes nothing."""
    (one, opt), (two, plain) = (after_one_task(momentum=0.9, then=2) for _ in range(2))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for x, y in task(1):
        opt.zero_grad()
        scaler.scale(cross_entropy(one(x), y)).backward()
        scaler.step(opt)
        scaler.update()
        fit(two, plain, [(x, y)])
    assert same(weights(one), weights(two))
    before, state = weights(one), copy.deepcopy(opt.state_dict())
    opt.zero_grad()
    scaler.scale(cross_entropy(one(task(1)[0][0]), task(1)[0][1]) * float("inf")).backward()
    scaler.step(opt)
    scaler.update()
    assert same(before, weights(one))
    assert same(state, opt.state_dict())
    assert scaler.get_scale() == 512.0


def test_gradient_accumulation_and_clipping():
    (one, opt), (two, hand) = (after_one_task(then=2) for _ in range(2))
    (x, y), (v, w) = task(1)[:2]
    opt.zero_grad()
    for points, labels in ((x, y), (v, w)):
        (cross_entropy(one(points), labels) / 2).backward()
    norm = nn.utils.clip_grad_norm_(one.parameters(), 0.05)
    assert norm > 0.05
    opt.step()
    loss = cross_entropy(two(x), y) / 2 + cross_entropy(two(v), w) / 2
    gradients = torch.autograd.grad(loss, list(two.parameters()))
    size = torch.cat([g.flatten() for g in gradients]).norm()
    for p, g in zip(two.parameters(), gradients):
        p.grad = g * (0.05 / size)
    hand.step()
    for p, q in zip(weights(one), weights(two)):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-6)


def test_zero_grad_both_ways():
    (one, opt), (two, twin) = (after_one_task(momentum=0.9) for _ in range(2))
    for x, y in task(1):
        for model, o, to_none in ((one, opt, True), (two, twin, False)):
            o.zero_grad(set_to_none=to_none)
            cross_entropy(model(x), y).backward()
            o.step()
    assert same(weights(one), weights(two))


def test_compiled_model():
    plain, model = mlp(), mlp()
    compiled = torch.compile(model, backend="eager")
    opts = []
    for m in (plain, compiled):
        opts.append(DRCL(m.named_parameters(), lr=0.1, strength=0.05, splitting="douglas-rachford"))
        for number in range(2):
            fit(m, opts[-1], task(number))
            opts[-1].consolidate(m, task(number))
    assert same(weights(plain), weights(model))
    assert list(opts[1].anchor.weights) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert same(opts[0].anchor.importance, opts[1].anchor.importance)
    assert drcl.drift(compiled, opts[0].anchor).total.unmoved == 1.0


@pytest.mark.parametrize("splitting", ["douglas-rachford", "forward-backward", "implicit"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_other_dtypes(dtype, splitting):
    torch.manual_seed(0)
    model = mlp().to(dtype)
    batches = [(x.to(dtype), y) for x, y in task(0)]
    opt = DRCL(model.named_parameters(), lr=0.1, strength=0.5, splitting=splitting)
    opt.consolidate(model, batches)
    anchor = opt.anchor
    for batch in batches:
        opt.step(closure_on(model, opt, batch))
    for p in model.parameters():
        assert p.dtype == opt.state[p]["anchor"].dtype == dtype
        assert opt.state[p]["importance"].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    with opt.deployed():
        assert 0 < drcl.drift(model, anchor).total.unmoved < 1
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_step_hooks_run_once_a_step():
    model, opt = after_one_task()
    seen = []
    opt.register_step_pre_hook(lambda o, a, k: seen.append("before"))
    opt.register_step_post_hook(lambda o, a, k: seen.append("after"))
    fit(model, opt, task(1)[:2])
    assert seen == ["before", "after"] * 2


def test_step_gives_back_the_loss():
    model, opt = after_one_task()
    batch = task(1)[0]
    expected = cross_entropy(model(batch[0]), batch[1]).item()
    assert opt.step(closure_on(model, opt, batch)).item() == expected
    assert opt.step() is None


# -- which parameters ----------------------------------------------------------------------------------------------


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.body, self.head, self.unused = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


@pytest.mark.parametrize("around", [False, True])
def test_parameters_without_gradient_stay(around):
    model = TwoHeads()
    named = model.named_parameters()
    opt = (
        DRCL.around(torch.optim.AdamW(named, lr=0.01), strength=10.0, splitting="douglas-rachford")
        if around
        else DRCL(named, lr=0.1, momentum=0.9, weight_decay=0.1, strength=10.0, splitting="douglas-rachford")
    )
    before = weights(model.unused)
    for number in range(2):
        fit(model, opt, task(number))
        opt.consolidate(model, task(number))
    assert same(before, weights(model.unused))
    assert not opt.anchor.importance["unused.weight"].any()


@pytest.mark.parametrize("around", [False, True])
def test_a_gradient_that_comes_and_goes(around):
    """A parameter left out of a step keeps its y and z through it."""
    model = TwoHeads()
    named = model.named_parameters()
    ours = dict(strength=0.1, splitting="douglas-rachford")
    opt = DRCL.around(torch.optim.SGD(named, lr=0.1), **ours) if around else DRCL(named, lr=0.1, **ours)
    opt.consolidate(model, task(0))
    fit(model, opt, task(1))
    y, z = weights(model.body), [opt.state[p]["z"].clone() for p in model.body.parameters()]
    assert not same(y, z)
    closure_on(model, opt, task(1)[0])()
    model.body.zero_grad()
    opt.step()
    assert same(y, weights(model.body))
    assert same(z, [opt.state[p]["z"] for p in model.body.parameters()])


def test_frozen_parameters():
    """Frozen from the start: not protected. Frozen later: still in the account, and never moved."""
    model = mlp()
    model[0].requires_grad_(False)
    opt = DRCL(model.named_parameters(), lr=0.1, strength=0.05, splitting="douglas-rachford")
    fit(model, opt, task(0))
    opt.consolidate(model, task(0))
    assert list(opt.anchor.weights) == ["2.weight", "2.bias"]
    model[0].requires_grad_(True)
    model[2].requires_grad_(False)
    before = weights(model[2])
    fit(model, opt, task(1))
    opt.consolidate(model, task(1), Fisher(labels="exact"))
    assert same(before, weights(model[2]))
    assert set(opt.anchor.weights) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    both = torch.cat([i.flatten() for i in opt.anchor.importance.values()])
    first = sum(p.numel() for p in model[2].parameters())  # of mean one over those that were there
    assert both.double().sum().item() == pytest.approx(first + both.numel(), rel=1e-6)


def test_shared_parameters():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(2)
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
            self.second.weight = self.first.weight
            self.out = nn.Linear(6, 3)

        def forward(self, x):
            return self.out(torch.relu(self.second(torch.relu(self.first(x)))))

    model = Tied()
    opt = DRCL(model.named_parameters(), lr=0.1, strength=0.05, splitting="douglas-rachford")
    for number in range(2):
        fit(model, opt, task(number))
        opt.consolidate(model, task(number))
    assert model.second.weight is model.first.weight
    assert list(opt.anchor.weights) == ["first.weight", "first.bias", "second.bias", "out.weight", "out.bias"]
    assert drcl.drift(model, opt.anchor).total.unmoved == 1.0


def test_a_group_added_between_tasks_is_free_until_it_is_consolidated():
    model, opt = after_one_task()
    head = nn.Linear(6, 3)
    twin = copy.deepcopy(head)
    opt.add_param_group({"params": list(head.named_parameters("head")), "lr": 0.3, "momentum": 0.9})
    sgd = torch.optim.SGD(twin.parameters(), lr=0.3, momentum=0.9)
    whole = nn.ModuleDict({"body": model, "head": head})
    for x, y in task(1):
        for h, o in ((head, opt), (twin, sgd)):
            o.zero_grad()
            cross_entropy(h(x), y).backward()
            o.step()
    assert same(weights(head), weights(twin))
    opt.consolidate(whole, task(1), forward=lambda m, b: (m["body"](b[0]) + m["head"](b[0]), b[1]))
    assert {"head.weight", "body.0.weight"} <= set(opt.anchor.weights)
    assert len(opt.param_groups) == 2


def test_group_options():
    """strength, stable, damping and free per group; a group's own strength overrides a share asked of all others."""
    model = mlp()
    groups = [
        {"params": [("a", model[0].weight)], "strength": float("inf")},
        {"params": [("b", model[0].bias)], "free": True},
        {"params": [("c", model[2].weight)]},
        {"params": [("d", model[2].bias)], "strength": 0.0},
    ]
    opt = DRCL(groups, lr=0.1, stable=0.5, splitting="douglas-rachford")
    opt.consolidate(model, task(0))
    start = weights(model)
    fit(model, opt, task(1), epochs=4)
    assert opt.strengths[0] == float("inf")
    assert 0 < opt.strengths[2] < float("inf")
    assert opt.strengths[3] == 0
    opt.eval()
    shares = [(p == q).float().mean().item() for p, q in zip(weights(model), start)]
    assert shares[0] == 1.0
    assert shares[1] == shares[3] == 0.0
    assert 0 < shares[2] < 1
    assert "0.bias" not in opt.anchor.weights


def test_a_group_set_free_between_tasks_trains_as_with_sgd():
    model, opt = after_one_task(strength=float("inf"))
    opt.param_groups[0]["free"] = True
    twin = copy.deepcopy(model)
    fit(model, opt, task(1)), fit(twin, torch.optim.SGD(twin.parameters(), lr=0.1), task(1))
    assert same(weights(model), weights(twin))


# -- what the model holds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("then", [{}, {"plasticity_steps": 3}])
@pytest.mark.parametrize("splitting", ["douglas-rachford", "forward-backward"])
def test_swaps_are_exact_and_idempotent(splitting, then):
    model, opt = after_one_task(splitting=splitting, then=4, momentum=0.5, **then)
    y = weights(model)
    opt.train()
    assert same(y, weights(model))
    opt.eval()
    z = weights(model)
    opt.eval()
    assert same(z, weights(model))
    assert same(y, z) == (splitting == "forward-backward" and not then)
    with opt.deployed():
        assert same(z, weights(model))
    assert same(z, weights(model))
    opt.train()
    assert same(y, weights(model))
    with opt.deployed():
        assert same(z, weights(model))
        with opt.deployed():
            assert same(z, weights(model))
        assert same(z, weights(model))
    assert same(y, weights(model))
    with pytest.raises(KeyError), opt.deployed():
        raise KeyError
    assert same(y, weights(model))


def test_training_goes_on_as_if_never_evaluated():
    (one, opt), (two, twin) = (after_one_task(momentum=0.9, then=2) for _ in range(2))
    for batch in task(2):
        with opt.deployed():
            one(batch[0])
        fit(one, opt, [batch]), fit(two, twin, [batch])
    assert same(weights(one), weights(two))


def test_consolidate_while_evaluating_or_training_is_the_same():
    (one, opt), (two, twin) = (after_one_task(then=4) for _ in range(2))
    twin.eval()
    opt.consolidate(one, task(1)), twin.consolidate(two, task(1))
    assert same(weights(one), weights(two))
    assert same(opt.state_dict(), twin.state_dict())
    assert same(weights(one), list(opt.anchor.weights.values()))
    fit(one, opt, task(2)), fit(two, twin, task(2))
    assert same(weights(one), weights(two))


def test_deepcopy_of_model_and_optimizer_go_apart():
    model, opt = after_one_task(momentum=0.9, then=3)
    twin_model, twin = copy.deepcopy((model, opt))
    fit(model, opt, task(2))
    kept = weights(model), copy.deepcopy(opt.state_dict())
    fit(twin_model, twin, task(2))
    assert same(weights(model), weights(twin_model))
    assert same(kept[1], twin.state_dict())
    fit(twin_model, twin, task(3))
    assert same(kept, (weights(model), opt.state_dict()))
    twin.consolidate(twin_model, task(2))
    assert (opt.tasks, twin.tasks) == (1, 2)
