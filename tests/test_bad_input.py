"""Bad input: a sentence that names the culprit and the remedy, and nothing changed, bit for bit."""

import contextlib
import math

import pytest
import torch
import torch.distributed as dist
import torch.distributed.device_mesh
import torch.distributed.tensor
import torch.testing._internal.distributed.fake_pg
from tests.tasks import after_one_task, closure_on, fit, mlp, same, task, whole_state
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from drcl import DRCL, MAS, Anchor, Fisher, Kronecker, PathIntegral
from drcl.prox import GroupL1


@contextlib.contextmanager
def refused(model, opt, kind, pattern):
    """The block raises, the message matches, and model, gradients, state and random numbers are as before."""
    before = whole_state(model, opt)
    inner = None if opt.inner is None else {k: dict(v) for k, v in opt.inner.state.items()}
    with pytest.raises(kind, match=pattern):
        yield
    after = whole_state(model, opt)
    for key in before:
        if key != "gradients":  # they are the bad input, or belong to the closure
            assert same(before[key], after[key]), key
    assert inner is None or same([*map(len, inner.values())], [len(v) for v in opt.inner.state.values()])


def fill_gradients(model, bad=None, where="2.weight"):
    for name, p in model.named_parameters():
        p.grad = torch.full_like(p, 0.1)
        if name == where and bad is not None:
            p.grad.view(-1)[-1] = bad


OPTIMIZERS = {
    "sgd": lambda p: DRCL(p, lr=0.1, momentum=0.9, strength=10.0, splitting="douglas-rachford"),
    "forward-backward": lambda p: DRCL(p, lr=0.1, momentum=0.9, strength=10.0, splitting="forward-backward"),
    "proposal": lambda p: DRCL(p, lr=0.1, strength=10.0, splitting="douglas-rachford", plasticity_steps=3),
    "stable": lambda p: DRCL(p, lr=0.1, stable=0.5, splitting="douglas-rachford"),
    "reference": lambda p: DRCL(p, lr=0.1, strength=10.0, splitting="douglas-rachford", backend="reference"),
    "foreach": lambda p: DRCL(p, lr=0.1, strength=10.0, splitting="douglas-rachford", backend="foreach"),
    "adamw": lambda p: DRCL.around(torch.optim.AdamW(p, lr=0.01), strength=10.0, splitting="douglas-rachford"),
}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradients_that_are_not_finite(name, bad):
    model = mlp()
    opt = OPTIMIZERS[name](model.named_parameters())
    pattern = (
        "gradient of '2.weight' holds NaN or infinite values; no weight was changed.*lower lr, clip gradients or skip"
    )
    for _ in range(2):  # before and after there is something to protect
        fit(model, opt, task(0)[:2])
        fill_gradients(model, bad)
        with refused(model, opt, FloatingPointError, pattern):
            opt.step()
        fit(model, opt, task(0)[:1])
        opt.consolidate(model, task(0))


EVALUATING = {
    "iterations": lambda p: DRCL(p, lr=0.1, momentum=0.9, strength=10.0, splitting="douglas-rachford", iterations=5),
    "iterations, stable": lambda p: DRCL(p, lr=0.1, stable=0.5, splitting="douglas-rachford", iterations=5),
    "iterations, adam": lambda p: DRCL.around(
        torch.optim.Adam(p, lr=0.01), strength=10.0, splitting="douglas-rachford", iterations=5
    ),
    "implicit": lambda p: DRCL(p, lr=0.1, strength=10.0, splitting="implicit", inner_steps=5),
    "lbfgs": lambda p: DRCL.around(
        torch.optim.LBFGS(p, lr=0.5, max_iter=6), strength=10.0, splitting="douglas-rachford"
    ),
}


@pytest.mark.parametrize("fails_at", [1, 3])
@pytest.mark.parametrize("name", EVALUATING)
def test_a_step_of_several_evaluations_is_undone_when_one_fails(name, fails_at):
    model = mlp()
    opt = EVALUATING[name](model.named_parameters())
    opt.consolidate(model, task(0))
    for batch in task(1)[:2]:
        opt.step(closure_on(model, opt, batch))
    calls = []

    def closure():
        loss = closure_on(model, opt, task(1)[2])()
        calls.append(loss)
        if len(calls) == fails_at:
            model[2].weight.grad[0, 0] = math.nan
        return loss

    with refused(model, opt, FloatingPointError, "gradient of '2.weight'"):
        opt.step(closure)
    calls.clear()

    def broken():
        if len(calls) == fails_at - 1:
            raise KeyError("the data ended")
        calls.append(1)
        return closure_on(model, opt, task(1)[2])()

    with refused(model, opt, KeyError, "the data ended"):
        opt.step(broken)
    opt.step(closure_on(model, opt, task(1)[2]))


def test_float16_overflow():
    model = mlp().half()
    opt = DRCL(model.named_parameters(), lr=0.1, splitting="douglas-rachford")
    batches = [(x.half(), y) for x, y in task(0)]
    opt.consolidate(model, batches)
    loss = nn.functional.cross_entropy(model(batches[0][0]), batches[0][1])
    (loss * 60000 * 60000).backward()
    with refused(
        model, opt, FloatingPointError, r"gradient of '\w.\w+' holds.*scale the loss with torch.amp.GradScaler"
    ):
        opt.step()
    huge = [(model[0].weight[:1].detach().sign().expand(8, 6) * 6e4, y) for _, y in batches]
    with refused(model, opt, FloatingPointError, "not finite"):
        opt.consolidate(model, huge)


def test_the_check_can_be_left_out():
    model, opt = after_one_task(check_finite=False)
    fill_gradients(model, math.nan)
    opt.step()


def test_numbers():
    p = list(mlp().named_parameters())
    for arguments, pattern in (
        ({"strength": -1.0}, r"strength=-1.0 must be a number >= 0"),
        ({"strength": math.nan}, "strength=nan must be"),
        ({"strength": "high"}, "strength='high' must be a number"),
        ({"lr": -0.1}, "lr=-0.1 must be a number >= 0"),
        ({"lr": math.inf}, "lr=inf must be"),
        ({"momentum": -0.1}, "momentum=-0.1"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1"),
        ({"damping": -0.1}, "damping=-0.1"),
        ({"nesterov": True}, "nesterov=True needs momentum > 0"),
        ({"stable": 0.0}, r"stable=0.0 must lie strictly between 0 and 1 \(a share of weights\), or be None"),
        ({"stable": 1.0}, "stable=1.0"),
        ({"stable": 80}, "stable=80"),
        ({"stable": "most"}, "stable='most'"),
        ({"stable": math.nan}, "stable=nan"),
        ({"stable": 0.5, "prox": "l2"}, "stable= needs a prox that leaves weights exactly in place"),
        ({"iterations": 0}, "iterations=0 must be a whole number of at least 1"),
        ({"iterations": 2.5}, "iterations=2.5"),
        ({"plasticity_steps": 0}, "plasticity_steps=0"),
        ({"inner_steps": True}, "inner_steps=True"),
        ({"tolerance": -1}, "tolerance=-1"),
        ({"memory": 1.5}, "memory=1.5 must be 'sum', 'latest' or a decay between 0 and 1"),
        ({"memory": "all"}, "memory='all'"),
        ({"plasticity_steps": 2, "iterations": 2}, "plasticity_steps above 1 cannot be combined"),
        ({"splitting": "implicit", "momentum": 0.9}, "takes no momentum.*use splitting='forward-backward'"),
    ):
        with pytest.raises((ValueError, TypeError), match=pattern):
            DRCL(p, **{"lr": 0.1, **arguments})
        if arguments.keys() <= {"strength", "lr", "stable", "damping", "momentum"} and len(arguments) == 1:
            opt = DRCL(p[:2], lr=0.1)
            with pytest.raises((ValueError, TypeError), match=pattern):
                opt.add_param_group({"params": p[2:], **arguments})
            assert len(opt.param_groups) == 1


def test_unknown_names():
    p = list(mlp().named_parameters())
    for arguments, pattern in (
        ({"prox": "l3"}, "prox='l3' is unknown; use one of 'l1', 'l2', 'elastic', 'group', 'box' or a callable"),
        ({"prox": 3}, "prox=3 is unknown"),
        ({"prox": []}, r"prox=\[\] is unknown"),
        (
            {"splitting": "peaceman"},
            "splitting='peaceman' is unknown; use one of 'douglas-rachford', 'forward-backward'",
        ),
        ({"preset": "papers"}, "preset='papers' is unknown; use one of 'paper'"),
        ({"normalise": "layer"}, "normalise='layer' is unknown; use one of 'task', 'share', 'global'"),
        ({"backend": "cuda"}, "backend='cuda' is unknown; use one of 'auto', 'native'"),
    ):
        with pytest.raises(ValueError, match=pattern):
            DRCL(p, lr=0.1, **arguments)
    with pytest.raises(ValueError, match="'strenght' is unknown; did you mean 'strength'"):
        DRCL([{"params": p, "strenght": 3.0}], lr=0.1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'strenght'"):
        DRCL(p, lr=0.1, strenght=3.0)


def test_around():
    model = mlp()
    with pytest.raises(TypeError, match="takes a torch optimizer, not Sequential"):
        DRCL.around(model)
    with pytest.raises(TypeError, match="takes a torch optimizer, not DRCL"):
        DRCL.around(DRCL(model.parameters(), lr=0.1))
    adam = torch.optim.Adam(model.parameters())
    with pytest.raises(TypeError, match="lr, momentum: set these on the wrapped Adam"):
        DRCL.around(adam, lr=0.1, momentum=0.9)
    with pytest.raises(TypeError, match=r"works only with plain SGD: give it to DRCL\(params\), not to around"):
        DRCL.around(adam, preset="paper")
    with pytest.raises(ValueError, match="no wrapped optimizer"):
        DRCL.around(adam, splitting="implicit")
    with pytest.raises(ValueError, match="strength=-1"):
        DRCL.around(adam, strength=-1.0)
    assert "strength" not in adam.param_groups[0]


def test_options_of_a_wrapped_optimizer_that_were_changed_later():
    """torch's RMSprop makes no buffer with momentum 0, but expects one when momentum is set by hand later."""
    model = mlp()
    opt = DRCL.around(torch.optim.RMSprop(model.named_parameters(), lr=0.01))
    opt.consolidate(model, task(0), Fisher(samples=8))
    fit(model, opt, task(1))
    closure_on(model, opt, task(1)[0])()
    before = whole_state(model, opt)
    for value, kind, pattern in (
        (0.9, ValueError, "group 0: momentum=0.9 was switched on after RMSprop had begun without it; switch it off"),
        (math.inf, ValueError, "group 0: momentum=inf"),
        ("x", (TypeError, ValueError), "group 0: momentum='x'"),
    ):
        opt.param_groups[0]["momentum"] = value
        with pytest.raises(kind, match=pattern):
            opt.step()
        opt.param_groups[0]["momentum"] = 0
        assert same(before, whole_state(model, opt))
    opt.step()


@pytest.mark.parametrize("name", ["iterations", "implicit", "lbfgs"])
def test_steps_that_need_a_closure(name):
    model = mlp()
    opt = EVALUATING[name](model.named_parameters())
    opt.consolidate(model, task(0))
    fill_gradients(model)
    with refused(
        model, opt, ValueError, r"evaluates the loss several times: call opt.step\(closure\), where closure\(\)"
    ):
        opt.step()


def test_a_step_while_the_model_holds_z():
    model, opt = after_one_task(then=2)
    fill_gradients(model)
    opt.eval()
    with refused(model, opt, RuntimeError, r"holds the weights for evaluation; call opt.train\(\) before opt.step\(\)"):
        opt.step()


def test_sparse_gradients_of_protected_weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Flatten(), nn.Linear(8, 3))
    opt = DRCL(
        [{"params": model[2].named_parameters()}, {"params": [("emb.weight", model[0].weight)]}],
        lr=0.1,
        splitting="douglas-rachford",
    )
    x, y = torch.randint(5, (6, 2)), torch.randint(3, (6,))
    nn.functional.cross_entropy(model(x), y).backward()
    opt.step()  # plain SGD takes them
    ones = {n: torch.ones_like(p) for n, p in model.named_parameters()}
    opt.protect(model, Anchor({n: p.detach().clone() for n, p in model.named_parameters()}, ones))
    with refused(
        model, opt, ValueError, "parameter '0.weight' is protected but has a sparse gradient; use sparse=False"
    ):
        opt.step()
    opt.param_groups[1]["free"] = True
    opt.step()


def empty():
    return DataLoader(TensorDataset(torch.zeros(0, 6), torch.zeros(0, dtype=torch.long)))


def used_up():
    generator = iter(task(0))
    list(generator)
    return generator


def consolidations():
    x, y = task(0)[0]
    return {
        "empty list": ([], {}, ValueError, "batches holds no samples"),
        "empty loader": (empty(), {}, ValueError, "batches holds no samples"),
        "exhausted": (used_up(), {}, ValueError, "no samples.*already used up"),
        "nothing": (None, {}, ValueError, r"Fisher needs data: pass consolidate\(model, batches\)"),
        "a single batch": (x, {}, TypeError, r"list that holds it"),
        "a data set": (TensorDataset(x, y), {}, TypeError, "wrap it in a torch.utils.data.DataLoader"),
        "wrong width": ([(x[:, :4], y)], {}, RuntimeError, "shapes"),
        "wrong rank": ([(x[0], y[:6])], {}, RuntimeError, r"cannot take a batch of the data.*shapes \[2\]"),
        "numbers for labels": (
            [(x, torch.rand(len(x), 3))],
            {},
            ValueError,
            r"targets are float32 of shape \[\d+, 3\].*use Fisher\(likelihood='bernoulli'\).*Fisher\(labels='emp",
        ),
        "numbers for labels, directions": (
            [(x, torch.rand(len(x), 3))],
            {"importance": Kronecker()},
            ValueError,
            r"use Kronecker\(likelihood='bernoulli'\).* Kronecker\(likelihood='gaussian'\).* Kronecker\(labels",
        ),
        "a mask between": (
            [(x, torch.ones(len(x)), y)],
            {},
            TypeError,
            r"a batch holds 3 parts \(\[\d, 6\], \[\d\], \[\d\]\).*forward=lambda model, batch: \(model",
        ),
        "a class for an estimator": ([(x, y)], {"importance": Fisher}, TypeError, r"must be an estimator such as"),
        "labels of other length": ([(x, y[:3])], {}, ValueError, "disagree on the number of samples"),
        "no labels where they are needed": (
            [x],
            {"importance": Fisher(labels="empirical")},
            ValueError,
            "needs labels, but the batch has none",
        ),
        "labels out of range": (
            [(x, y + 7)],
            {"importance": Fisher(labels="empirical")},
            (ValueError, IndexError),
            "class|label",
        ),
        "nan in the data": ([(x * math.nan, y)], {}, (ValueError, FloatingPointError), "parameter|finite|nan"),
        "not an estimator": (
            [(x, y)],
            {"importance": "fisher"},
            TypeError,
            r"must be an estimator such as drcl.Fisher\(\)",
        ),
        "forward of another form": ([(x, y)], {"forward": lambda m, b: m(b[0])}, TypeError, "must return a pair"),
        "unwatched": (None, {"importance": PathIntegral()}, RuntimeError, r"watch\(optimizer\)"),
    }


@pytest.mark.parametrize("steps", [1, 5])  # of five, three are made: the proposal is open, and stays so
@pytest.mark.parametrize("case", consolidations())
def test_consolidate(case, steps):
    batches, arguments, kind, pattern = consolidations()[case]
    model, opt = after_one_task(then=3, momentum=0.9, plasticity_steps=steps)
    with refused(model, opt, kind, pattern):
        opt.consolidate(model, batches, **arguments)
    opt.eval()
    if not hasattr(batches, "__next__"):
        with refused(model, opt, kind, pattern):
            opt.consolidate(model, batches, **arguments)


def test_logits_of_the_wrong_rank():
    class PerPixel(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            return self.layer(x).unsqueeze(-1).expand(-1, 3, 4)

    model = PerPixel()
    opt = DRCL(model.named_parameters(), lr=0.1, preset="weights")
    for labels in ("sampled", "exact", "empirical"):
        with refused(model, opt, ValueError, r"logits must have shape \[samples, classes\], got \[\d+, 3, 4\]"):
            opt.consolidate(model, task(0), Fisher(labels=labels))
    opt.consolidate(model, task(0), MAS())


def test_models_that_are_not_the_optimizers():
    model, opt = after_one_task()
    others = mlp(), nn.ModuleDict({"m": model, "extra": nn.Linear(2, 2)}), nn.Sequential(model[0])
    with refused(model, opt, ValueError, "'0.weight' of the model is not in this optimizer.*add_param_group"):
        opt.consolidate(others[0], task(0))
    with refused(model, opt, ValueError, "'extra.weight' of the model is not in this optimizer.*requires_grad=False"):
        opt.consolidate(others[1], task(0))
    with refused(model, opt, ValueError, "'2.weight' of this optimizer is not in the given model.*free=True"):
        opt.consolidate(others[2], task(0))
    with refused(model, opt, TypeError, "model must be a torch.nn.Module, not list"):
        opt.consolidate(task(0))
    free = DRCL([{"params": list(model.parameters()), "free": True}], lr=0.1)
    with refused(model, free, ValueError, "nothing to protect: every parameter is frozen or in a group with free=True"):
        free.consolidate(model, task(0))


class Wrong:
    def __init__(self, change):
        self.change = change

    def estimate(self, model, batches, parameters, forward=None):
        out = {n: torch.ones_like(p) for n, p in parameters.items()}
        self.change(out)
        return out

    def describe(self):
        return {}


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (lambda d: d.pop("2.bias"), "importance of '2.bias' is missing"),
        (lambda d: d.update({"2.bias": torch.ones(4)}), r"importance of '2.bias' is of shape \(4,\).*shape \(3,\)"),
        (lambda d: d["2.bias"].fill_(math.nan), "importance of '2.bias' must be finite and >= 0"),
        (lambda d: d["2.bias"].fill_(-1), "importance of '2.bias' must be finite and >= 0"),
    ],
)
@pytest.mark.parametrize("arguments", [{}, {"plasticity_steps": 5}, {"plasticity_steps": 5, "stable": 0.5}], ids=str)
def test_estimators_of_ones_own_that_are_wrong(change, pattern, arguments):
    (model, opt), (twin, other) = (after_one_task(then=2, **arguments) for _ in range(2))
    with refused(model, opt, ValueError, pattern):
        opt.consolidate(model, task(1), Wrong(change))
    for m, o in ((model, opt), (twin, other)):
        fit(m, o, task(1))
    assert same(whole_state(model, opt), whole_state(twin, other))


@pytest.mark.parametrize(
    ("prox", "pattern"),
    [
        (lambda r, a, t: r[:1], r"for parameter '0.weight' of shape \(16, 6\) it returned shape \(1, 6\)"),
        (lambda r, a, t: None, "it returned NoneType"),
        (lambda r, a, t: r / 0, "finite values"),
        (lambda r, a: r, "does not work on parameter '0.weight'.*positional argument"),
        (GroupL1(dim=2), r"does not work on parameter '0.weight'.*dim is 2.*\(16, 6\)"),
    ],
)
def test_a_prox_that_does_not_fit_is_noticed_before_training_relies_on_it(prox, pattern):
    model = mlp()
    opt = DRCL(model.named_parameters(), lr=0.1, prox=prox)
    with refused(model, opt, ValueError, pattern):
        opt.consolidate(model, task(0))
    ones = {n: torch.ones_like(p) for n, p in model.named_parameters()}
    with refused(model, opt, ValueError, pattern):
        opt.protect(model, Anchor({n: p.detach() + 1 for n, p in model.named_parameters()}, ones))


def test_protecting_what_is_frozen_or_free():
    anchor = after_one_task()[1].anchor
    other = mlp(seed=3)
    other[0].requires_grad_(False)
    again = DRCL(other.named_parameters(), lr=0.1)
    with refused(other, again, ValueError, "anchor protects '0.weight', which is frozen or in a group with free=True"):
        again.protect(other, anchor)


def test_consolidate_looks_at_parameters_as_a_step_does():
    """A head that was grown by hand: its anchor has another shape."""
    model, opt = after_one_task(then=2)
    with torch.no_grad():
        model[2].weight.data = torch.cat([model[2].weight.data, torch.zeros(1, model[2].weight.shape[1])])
        model[2].bias.data = torch.cat([model[2].bias.data, torch.zeros(1)])
    with refused(
        model, opt, ValueError, r"parameter '2.weight' is float32 of shape \(4, 16\).*the parameter was changed"
    ):
        opt.consolidate(model, task(0))


class Packed(torch.Tensor):
    """A tensor that keeps its values in another one, as quantised weights do."""

    @staticmethod
    def __new__(cls, values):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype, requires_grad=True)

    def __init__(self, values):
        self.values = values

    __torch_dispatch__ = classmethod(lambda cls, function, types, args=(), kwargs=None: cls(args[0].values))


def strangers():
    """A parameter and the message about it."""
    quantised = nn.Parameter(Packed(torch.zeros(16, 6)))
    yield quantised, "is a Packed, whose values are stored in other tensors"
    for mark, who in (("ds_id", "DeepSpeed"), ("_fsdp_flattened", "FullyShardedDataParallel")):
        flat = nn.Parameter(torch.zeros(16, 6))
        setattr(flat, mark, 7)
        yield flat, f"is held by {who} in flattened pieces"
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    partial = dist.tensor.DTensor.from_local(torch.zeros(16, 6), mesh, [dist.tensor.Partial()])
    yield nn.Parameter(partial), "is a DTensor placed as .*leave out tensor parallelism"


def test_tensors_that_lie_elsewhere_are_refused():
    """Quantised, flattened, parallel in other ways: the end of a task may not touch them as if they were ordinary."""
    dist.init_process_group("fake", rank=0, world_size=2, store=dist.HashStore())
    try:
        model = mlp()
        opt = DRCL(model.named_parameters(), lr=0.1)
        opt.consolidate(model, task(0))
        for parameter, words in strangers():
            other = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
            other[0].weight = parameter
            again = DRCL(other.named_parameters(), lr=0.1)
            with pytest.raises(TypeError, match=f"parameter '0.weight' {words}"):
                again.consolidate(other, task(0))
            with pytest.raises(TypeError, match=f"parameter '0.weight' {words}"):
                again.protect(other, opt.anchor)
        mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
        other[0].weight = nn.Parameter(dist.tensor.distribute_tensor(torch.zeros(16, 6), mesh, [dist.tensor.Shard(0)]))
        again = DRCL(other.named_parameters(), lr=0.1)
        with pytest.raises(TypeError, match="DTensors that fully_shard did not make"):
            again.consolidate(other, task(0))
        with pytest.raises(TypeError, match=r"'0.weight' is sharded over processes"):
            Fisher().estimate(other, task(0), dict(other.named_parameters()))
    finally:
        dist.destroy_process_group()


def test_a_subclass_that_holds_its_own_memory_is_fine():
    class Named(nn.Parameter):
        pass

    model = mlp()
    model[0].weight = Named(model[0].weight.detach().clone())
    opt = DRCL(model.named_parameters(), lr=0.1)
    opt.consolidate(model, task(0))
    fit(model, opt, task(1))
