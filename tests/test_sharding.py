"""FSDP2 on two processes against one process that sees all their batches.

One pair of processes runs all of `CHECKS`, functions of the rank; each test looks at the result of one.
"""

import copy
import dataclasses
import datetime
import importlib.util
import json
import traceback

import pytest
import torch
import torch.distributed as dist
from tests.directions.adapted import Adapted, adapted
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.functional import cross_entropy

import drcl
from drcl import DRCL, MAS, Anchor, Fisher, Kronecker, PathIntegral, checkpoint, sharding
from drcl.directions import passes
from drcl.importance import Importance

RANKS = 2
CHECKS = []


def check(function):
    CHECKS.append(function.__name__)
    return function


# -- a network, its data, and training on one process or on all --------------------------------------------------------


def network():
    """Numbers of rows that two processes cannot share evenly, and one of a single row."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5))
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), body, nn.Tanh(), nn.Linear(5, 1), nn.Linear(1, 3, bias=False))


class Odd(nn.Module):
    """Layers whose directions lie in groups, and a weight of its own without any."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv1d(2, 6, 3, groups=2, padding=1)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.scale = nn.Parameter(torch.ones(3))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = self.convolution(x.unflatten(1, (2, 3))).mT
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(x.mean(1)) * self.scale


def batches(task, count=3):
    rng = torch.Generator().manual_seed(task)
    return [(torch.randn(8, 6, generator=rng), torch.randint(3, (8,), generator=rng)) for _ in range(count)]


def mine(data):
    return [(x.chunk(RANKS)[dist.get_rank()], y.chunk(RANKS)[dist.get_rank()]) for x, y in data]


def shard(model, **options):
    for module in model.children():
        if isinstance(module, nn.Sequential | nn.Conv1d | Adapted):
            fully_shard(module, **options)
    return fully_shard(model, **options)


def train(model, opt, data):
    for x, y in data:

        def closure(x=x, y=y):
            opt.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        opt.step(closure)


def weights(model):
    return {name: sharding.full(p.detach()).clone() for name, p in model.named_parameters()}


def learn(make, importance, spread, net=network, tasks=3, dtype=torch.float, **options):
    """Trains on all tasks and consolidates all but the last."""
    model = net().to(dtype)
    if spread:
        shard(model, **options)
    opt = make(model)
    for task in range(tasks):
        data = [(x.to(dtype), y) for x, y in (mine(batches(task)) if spread else batches(task))]
        train(model, opt, data)
        if task < tasks - 1:
            opt.consolidate(model, data, importance() if callable(importance) else importance)
    return model, opt


def close(one, other, within=2e-6):
    assert one.keys() == other.keys()
    for name, t in one.items():
        assert torch.allclose(t, other[name], rtol=20 * within, atol=within * max(1.0, float(t.abs().max()))), name


def alike(make, importance, **options):
    """Weights, anchor, directions, penalty and drift are those of one process."""
    (model, opt), (whole, alone) = (learn(make, importance, spread, **options) for spread in (True, False))
    for group in opt.param_groups:
        for p in group["params"]:
            kept = [t for t in opt.state[p].values() if isinstance(t, torch.Tensor)]
            assert kept
            assert all(isinstance(t, DTensor) and t.placements == p.placements for t in kept)
    ours, theirs = opt.anchor, alone.anchor
    close(ours.weights, theirs.weights)
    close(ours.importance, theirs.importance, 1e-5)
    assert ours.bases.keys() == theirs.bases.keys()
    for name, basis in ours.bases.items():
        close({"values": basis.eigenvalues}, {"values": theirs.bases[name].eigenvalues}, 1e-5)
    assert ours.adapters.keys() == theirs.adapters.keys()
    for name, adapter in ours.adapters.items():
        other = theirs.adapters[name]
        close({"a": adapter.a, "b": adapter.b}, {"a": other.a, "b": other.b})
        close({"values": adapter.basis.eigenvalues}, {"values": other.basis.eigenvalues}, 1e-5)
    assert opt.penalty() == pytest.approx(alone.penalty(), rel=1e-3)
    opt.eval()
    alone.eval()
    close(weights(model), weights(whole))
    one, other = drcl.drift(model, ours), drcl.drift(whole, theirs)
    assert one.total.mean_change == pytest.approx(other.total.mean_change, rel=1e-3)
    assert one.total.unmoved == pytest.approx(other.total.unmoved, abs=0.03)
    return opt, alone


def adamw(model, **options):
    return DRCL.around(torch.optim.AdamW(model.parameters(), lr=0.01), strength=0.1, **options)


# -- the checks --------------------------------------------------------------------------------------------------------


@check
def momentum_and_fisher():
    alike(lambda m: DRCL(m.named_parameters(), lr=0.1, momentum=0.9, strength=0.1), Fisher(labels="empirical"))


@check
def reflection_and_mas():
    alike(lambda m: DRCL(m.named_parameters(), lr=0.1, strength=0.1, splitting="douglas-rachford"), MAS())


@check
def around_adam():
    alike(adamw, Fisher(labels="exact"))


@check
def around_an_optimizer_whose_step_is_measured():
    def make(model):
        inner = torch.optim.RMSprop(model.parameters(), lr=0.01)
        return DRCL.around(inner, strength=0.1, plasticity_steps=2)

    alike(make, Fisher(labels="exact"))


@check
def a_share_to_hold():
    for importance in (Fisher(labels="exact"), Kronecker(labels="exact")):
        # Eigenvectors of nearly equal eigenvalues turn with every rounding, and L1 depends on them: in double.
        opt, alone = alike(lambda m: DRCL(m.named_parameters(), lr=0.1, stable=0.6), importance, dtype=torch.double)
        assert opt.strengths == pytest.approx(alone.strengths, rel=1e-6)


@check
def a_prox_of_whole_groups():
    alike(lambda m: DRCL(m.named_parameters(), lr=0.1, strength=0.1, prox="group"), Fisher(labels="exact"))


@check
def several_iterations_a_batch():
    options = {"lr": 0.1, "strength": 0.1, "iterations": 3}
    opt, alone = alike(lambda m: DRCL(m.named_parameters(), **options), Fisher(labels="exact"))
    assert opt.residual == pytest.approx(alone.residual, rel=1e-3)


@check
def a_proposal_that_is_solved_for():
    options = {"lr": 0.1, "strength": 0.1, "splitting": "implicit", "inner_steps": 3}
    alike(lambda m: DRCL(m.named_parameters(), **options), Fisher(labels="exact"))


@check
def a_strength_that_finds_itself():
    alike(lambda m: DRCL(m.named_parameters(), lr=0.1), MAS())
    alike(lambda m: DRCL.around(torch.optim.AdamW(m.parameters(), lr=0.01)), MAS())


@check
def directions():
    alike(
        lambda m: DRCL(m.named_parameters(), lr=0.1, preset="directions", plasticity_steps=2), Kronecker(labels="exact")
    )


@check
def directions_of_low_rank_with_reflection():
    options = {"prox": "l1", "strength": 0.05, "splitting": "douglas-rachford"}
    alike(lambda m: DRCL(m.named_parameters(), lr=0.05, **options), Kronecker(labels="exact", rank=2))


@check
def directions_around_adam():
    alike(lambda m: adamw(m, preset="directions", plasticity_steps=2), Kronecker(labels="exact"))


@check
def directions_in_groups():
    options = {"lr": 0.05, "preset": "directions", "plasticity_steps": 1}
    opt, _ = alike(lambda m: DRCL(m.named_parameters(), **options), Kronecker(labels="exact"), net=Odd)
    assert {"attention.in_proj_weight", "convolution.weight"} <= opt.anchor.bases.keys()


@check
def copies_of_shards():
    """Two meshes: every shard on both processes, and every process a shard of its own group."""
    for shape in ((2, 1), (1, 2)):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "shards"))
        opt, _ = alike(
            lambda m: DRCL(m.named_parameters(), lr=0.1, momentum=0.9, strength=0.1),
            Fisher(labels="exact"),
            tasks=2,
            mesh=mesh,
        )
        assert next(opt.protected())[0].placements == (Replicate(), Shard(0))


@check
def importance_of_the_path():
    runs = []
    for spread in (True, False):
        model = shard(network()) if spread else network()
        opt = DRCL(model.named_parameters(), lr=0.1, preset="weights")
        path = PathIntegral().watch(opt)
        train(model, opt, mine(batches(0)) if spread else batches(0))
        opt.consolidate(model, None, importance=path)
        runs.append(opt.anchor.importance)
    close(*runs, 1e-5)


@check
def an_estimator_of_ones_own_is_averaged():
    class Own(Importance):
        def estimate(self, model, batches, parameters, forward=None):
            return {n: torch.full_like(p, 1.0 + dist.get_rank()) for n, p in parameters.items()}

        def describe(self):
            return {}

    model = shard(network())
    opt = DRCL(model.named_parameters(), lr=0.1, normalise="global")
    opt.consolidate(model, batches(0), importance=Own())
    assert opt.importance_mean == pytest.approx(1.5)


@check
def processes_may_have_different_numbers_of_batches():
    data = batches(0, 3)
    model, whole = shard(network()), network()
    opt, alone = (DRCL(m.named_parameters(), lr=0.1, preset="weights") for m in (model, whole))
    opt.consolidate(model, data[:1] if dist.get_rank() else data[1:], Kronecker(labels="exact"))
    alone.consolidate(whole, data, Kronecker(labels="exact"))
    close(opt.anchor.importance, alone.anchor.importance, 1e-5)


@check
def directions_in_one_pass():
    """Labels of the data, so that nothing is drawn: rows are kept until their layer's directions are known."""
    options = {"lr": 0.05, "preset": "directions", "plasticity_steps": 1}
    for net in (network, Odd):
        estimator = Kronecker(labels="empirical", rank=2)
        alike(lambda m: DRCL(m.named_parameters(), **options), estimator, net=net, dtype=torch.double)


@check
def one_pass_over_different_numbers_of_batches():
    """Every sample comes twice in a row, so that both halves hold the same, on one process as on two."""
    tasks = [[(x.double(), y) for x, y in batches(task)] for task in range(2)]
    twice = DRCL((whole := network().double()).named_parameters(), lr=0.1, preset="weights")
    for data in tasks:
        twice.consolidate(whole, data, Kronecker(labels="empirical", passes=2))
    # All layers from halves; two of the four, with the other two kept; none, with nothing measured along directions.
    for enough, eigenvalues in ((0, "exact"), (4, "exact"), (0, "product")):
        estimator = Kronecker(labels="empirical", eigenvalues=eigenvalues)
        model, whole = shard(network().double()), network().double()
        opt, alone = (DRCL(m.named_parameters(), lr=0.1, preset="weights") for m in (model, whole))
        with pytest.MonkeyPatch.context() as changed:
            changed.setattr(passes, "_LEAST", 1)
            changed.setattr(passes, "_ENOUGH", enough)
            for data in tasks:
                pairs = [tuple(t.repeat_interleave(2, 0) for t in batch) for batch in data]
                opt.consolidate(model, pairs[:1] if dist.get_rank() else pairs[1:], estimator)
                alone.consolidate(whole, pairs, estimator)
        close(opt.anchor.importance, alone.anchor.importance, 1e-9)
        if eigenvalues == "exact" and not enough:
            close(opt.anchor.importance, twice.anchor.importance, 1e-9)


@check
def a_single_sample_of_each_process():
    """Too few samples for two halves, however many rows a layer needs."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(passes, "_LEAST", 1)
        changed.setattr(passes, "_ENOUGH", 0)
        model = shard(network())
        opt = DRCL(model.named_parameters(), lr=0.1, preset="weights")
        opt.consolidate(model, [tuple(t[:1] for t in mine(batches(0))[0])], Kronecker())
    assert all(bool(torch.isfinite(t).all()) for t in opt.anchor.importance.values())


@check
def what_fails_in_the_middle_of_a_pass_fails_on_all():
    model = shard(network())
    opt = DRCL(model.named_parameters(), lr=0.1, preset="weights")
    data = batches(0)
    if dist.get_rank():
        data[-1][1][0] = 7  # there are three classes
    with pytest.raises((ValueError, IndexError, RuntimeError), match="7"):
        opt.consolidate(model, data, Kronecker(labels="empirical"))
    assert opt.tasks == 0


@check
def what_fails_on_one_process_fails_on_all():
    model = shard(network())
    opt = DRCL(model.named_parameters(), lr=0.1, preset="weights")
    for estimator in (Fisher(), Kronecker()):
        with pytest.raises((ValueError, RuntimeError), match="batches holds no samples"):
            opt.consolidate(model, [] if dist.get_rank() else batches(0), estimator)
    assert opt.tasks == 0
    train(model, opt, mine(batches(0)))  # and the model is a sharded one as before


@check
def a_gradient_that_is_not_finite_on_one_process():
    model, opt = learn(lambda m: DRCL(m.named_parameters(), lr=0.1, preset="weights"), Fisher(), True)
    before = weights(model)
    if dist.get_rank():
        model[0].weight.grad.to_local()[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match=r"gradient of '0.weight' holds NaN"):
        opt.step()
    assert all(torch.equal(t, before[n]) for n, t in weights(model).items())


@check
def a_step_weight_by_weight_sends_nothing():
    for make in (
        lambda m: DRCL(m.named_parameters(), lr=0.1, momentum=0.9, check_finite=False, preset="weights"),
        lambda m: adamw(m, check_finite=False),
    ):
        _, opt = learn(make, Fisher(), True)
        with CommDebugMode() as sent:
            opt.step()
        assert sent.get_total_counts() == 0
    _, opt = learn(
        lambda m: DRCL(m.named_parameters(), lr=0.1, check_finite=False, preset="weights"), Kronecker(), True
    )
    with CommDebugMode() as sent:
        opt.step()
    names = {opt.name_of(p) for p in opt.progress.layers}
    assert names == {"0.weight", "2.0.weight", "4.weight", "5.weight"}
    assert sent.get_total_counts() == 1 + 1 + 2 + 1  # the layer of one row is gathered, with its bias


@check
def the_model_is_left_as_it_was():
    model = shard(network())
    opt = DRCL(model.named_parameters(), lr=0.1, preset="weights")
    kinds, own = [type(m) for m in model.modules()], list(model.parameters())
    model.eval()
    with torch.no_grad():
        model(mine(batches(0))[0][0])  # FSDP2 leaves the outermost parameters gathered
    opt.consolidate(model, mine(batches(0)), Kronecker())
    assert [type(m) for m in model.modules()] == kinds
    assert isinstance(model, FSDPModule)
    assert all(p is q and isinstance(p, DTensor) for p, q in zip(own, model.parameters()))
    assert not model.training


@check
def sixteen_bits():
    """16 bits in the computation only, or in the parameters too; importance has 32 bits in both cases."""
    for net, policy in (
        (network, MixedPrecisionPolicy(param_dtype=torch.bfloat16)),
        (lambda: network().bfloat16(), MixedPrecisionPolicy(cast_forward_inputs=True, param_dtype=torch.bfloat16)),
    ):
        for importance in (Fisher(), Kronecker()):
            model = shard(net(), mp_policy=policy)
            opt = DRCL(model.named_parameters(), lr=0.1, momentum=0.9, preset="weights")
            kind = next(model.parameters()).dtype
            data = [(x.to(kind), y) for x, y in mine(batches(0))]
            train(model, opt, data)
            opt.consolidate(model, data, importance)
            train(model, opt, data)
            assert all(state["importance"].dtype == torch.float32 for _, state in opt.protected())
            assert all(p.dtype == kind and bool(torch.isfinite(sharding.local(p)).all()) for p, _ in opt.protected())


@check
def shards_do_not_grow():
    model = shard(network())
    opt = DRCL(model.named_parameters(), lr=0.1, preset="weights")
    with pytest.raises(TypeError, match=r"grow\(old=...\) is sharded over processes"):
        opt.grow(model[4].weight, nn.Parameter(torch.zeros(2, 5)))


@check
def what_is_deployed_is_what_a_forward_pass_sees():
    """In the middle of a proposal the deployed weights are others: FSDP2 must gather them anew, there and back."""
    x = batches(9)[0][0]
    outputs = []
    for spread in (True, False):
        model, opt = learn(lambda m: adamw(m, plasticity_steps=5), Fisher(labels="exact"), spread, tasks=2)
        with torch.no_grad():
            with opt.deployed():
                inside = model(x)
            outputs.append((inside, model(x)))
    (inside, after), (expected, trained) = outputs
    assert not torch.allclose(expected, trained, atol=1e-3)
    assert torch.allclose(inside, expected, atol=1e-5)
    assert torch.allclose(after, trained, atol=1e-5)


@check
def an_anchor_is_one_file_for_any_number_of_processes(folder):
    file = f"{folder}/anchor.safetensors"
    make = {"lr": 0.1, "preset": "directions", "plasticity_steps": 1}
    _, opt = learn(lambda m: DRCL(m.named_parameters(), **make), Kronecker(labels="exact"), True, tasks=2)
    anchor = opt.anchor
    if dist.get_rank() == 0:
        anchor.save(file)
    dist.barrier()
    after = []
    for spread in (True, False):
        model = network()
        again = DRCL(model.named_parameters(), **make)
        if spread:  # as accelerate does: the optimizer is there first, and gets the shards in place of its tensors
            shard(model)
            again.param_groups[0]["params"] = list(model.parameters())
        loaded = Anchor.load(file, model)
        again.protect(model, loaded)
        assert drcl.drift(model, loaded).total.unmoved == 1
        train(model, again, mine(batches(7)) if spread else batches(7))
        after.append(weights(model))
        loaded.restore(model)
        assert drcl.drift(model, loaded).total.unmoved == 1
    close(*after)


WAYS = {
    "reflection": lambda m: DRCL(
        m.named_parameters(), lr=0.1, momentum=0.9, strength=0.1, splitting="douglas-rachford"
    ),
    "directions": lambda m: adamw(m, preset="directions", plasticity_steps=2),
    "free head": lambda m: DRCL(
        [{"params": m[:4].parameters()}, {"params": m[4:].parameters(), "free": True}], lr=0.1, preset="weights"
    ),
}


@check
def checkpoints_go_on_exactly(folder):
    """In the middle of a task, and of a proposal of two steps."""
    for name, make in WAYS.items():
        model, opt = learn(make, Kronecker(), True)
        checkpoint.save(f"{folder}/{name}", model, opt)
        train(model, opt, mine(batches(8)))
        other = shard(network())
        again = make(other)
        checkpoint.load(f"{folder}/{name}", other, again)
        train(other, again, mine(batches(8)))
        assert all(torch.equal(t, weights(other)[n]) for n, t in weights(model).items())
        one, two = opt.anchor, again.anchor
        assert one.provenance == two.provenance
        assert one.free.keys() == ({"4.weight", "4.bias", "5.weight"} if name == "free head" else set())
        assert all(torch.equal(t, two.free[n]) for n, t in one.free.items())
        alone = network()  # which is not sharded at all
        checkpoint.load(f"{folder}/{name}", alone, last := make(alone))
        train(alone, last, batches(8))
        close(weights(alone), weights(model))


@check
def torchs_own_state_functions_go_on_exactly():
    for make in WAYS.values():
        model, opt = learn(make, Kronecker(), True)
        now, saved = weights(model), copy.deepcopy(get_optimizer_state_dict(model, opt))
        train(model, opt, mine(batches(8)))
        other = shard(network())
        for name, p in other.named_parameters():
            sharding.local(p.detach()).copy_(sharding.part(now[name], p))
        again = make(other)
        set_optimizer_state_dict(other, again, saved)
        train(other, again, mine(batches(8)))
        close(weights(model), weights(other))
        assert "drcl" not in again.param_groups[0]
        del saved["param_groups"][0]["drcl"]["layers"]
        for entry in saved["state"].values():
            entry.clear()
        with pytest.raises(ValueError, match="tasks but has no anchor"):
            set_optimizer_state_dict(other, make(other), saved)


@check
def a_wrapped_optimizer_is_not_stepped_by_being_saved():
    """torch takes a step of rate zero to fill an optimizer that seems empty; Adam would count it."""
    model = shard(network())
    opt = adamw(model)
    train(model, opt, mine(batches(0)))
    opt.zero_grad()
    get_optimizer_state_dict(model, opt)
    assert {float(state["step"]) for state in opt.inner.state.values()} == {3.0}


# -- adapters, which are held by the product of two sharded factors ----------------------------------------------------


def trained(model):
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


LOW_RANK = {
    "momentum": lambda m: DRCL(trained(m), lr=0.1, momentum=0.9, strength=0.1, prox="l2"),
    "reflection": lambda m: DRCL(trained(m), lr=0.1, strength=0.1, prox="l1", splitting="douglas-rachford"),
    "adam": lambda m: DRCL.around(torch.optim.AdamW(trained(m), lr=0.01), strength=0.1, prox="l2", plasticity_steps=2),
    "measured": lambda m: DRCL.around(torch.optim.RMSprop(trained(m), lr=0.01), strength=0.1, prox="l2"),
    "auto": lambda m: DRCL.around(torch.optim.AdamW(trained(m), lr=0.01), plasticity_steps=2),
}


@check
def adapters_are_those_of_one_process():
    for name, make in LOW_RANK.items():
        # Labels are drawn by each process for itself, and "auto" draws them; MAS has none.
        for importance in (MAS(),) if name == "auto" else (Kronecker(labels="exact"), Fisher(labels="exact")):
            opt, alone = alike(make, importance, net=adapted, dtype=torch.double)
            assert len(opt.progress.adapters) == 2
            assert opt.strengths == pytest.approx(alone.strengths, rel=1e-6)


@check
def an_adapter_that_nobody_protects_goes_elsewhere():
    """So that the comparison above is not one of steps that hold nothing."""
    (held, opt), (loose, _) = (learn(make, Kronecker(), True, net=adapted) for make in (LOW_RANK["adam"], _loose))
    assert opt.penalty() > 0
    assert any(float((weights(held)[n] - w).abs().max()) > 1e-3 for n, w in weights(loose).items())


def _loose(model):
    return DRCL.around(torch.optim.AdamW(trained(model), lr=0.01), strength=0.0, prox="l2", plasticity_steps=2)


@check
def an_anchor_of_adapters_enters_any_number_of_processes(folder):
    make = LOW_RANK["adam"]
    model, opt = learn(make, Kronecker(), True, net=adapted, tasks=2)
    anchor = opt.anchor
    if dist.get_rank() == 0:
        anchor.save(f"{folder}/adapters.safetensors")
    dist.barrier()
    found = Anchor.load(f"{folder}/adapters.safetensors")
    ended = {n: (a.a.clone(), a.b.clone()) for n, a in found.adapters.items()}
    for rank in (2, 3):  # the second one is larger than the saved one
        spread, alone = shard(adapted(rank=rank)), adapted(rank=rank)
        one, other = make(spread), make(alone)
        one.protect(spread, found)
        other.protect(alone, found)
        close(weights(spread), weights(alone))
        for name, (a, b) in ended.items():
            close({name: one.anchor.adapters[name].product()}, {name: found.adapters[name].scale * b @ a})
        train(spread, one, mine(batches(5)))
        train(alone, other, batches(5))
        close(weights(spread), weights(alone), 1e-5)
    with pytest.raises(drcl.anchor.AnchorError, match="another adapter"):
        opt.protect(model, dataclasses.replace(anchor, adapters={"9.base_layer.weight": anchor.adapters.popitem()[1]}))


@check
def a_checkpoint_of_adapters_goes_on_exactly(folder):
    for name, make in (("adam", LOW_RANK["adam"]), ("momentum", LOW_RANK["momentum"])):
        model, opt = learn(make, Kronecker(), True, net=adapted)
        checkpoint.save(f"{folder}/adapters {name}", model, opt)
        train(model, opt, mine(batches(8)))
        other = shard(adapted())
        again = make(other)
        checkpoint.load(f"{folder}/adapters {name}", other, again)
        train(other, again, mine(batches(8)))
        assert all(torch.equal(t, weights(other)[n]) for n, t in weights(model).items())


@check
def adapters_of_peft():
    if importlib.util.find_spec("peft") is None:
        return
    from peft import LoraConfig, get_peft_model

    def net():
        torch.manual_seed(1)
        plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        return get_peft_model(plain, LoraConfig(r=3, target_modules=["0", "2"], init_lora_weights=False))

    alike(LOW_RANK["adam"], Kronecker(labels="exact"), net=net, dtype=torch.double)


# -- importance and directions in 16 bits ------------------------------------------------------------------------------


@check
def storage_in_16_bits(folder):
    def make(model):
        return DRCL(model.named_parameters(), lr=0.1, momentum=0.9, preset="directions", storage=torch.bfloat16)

    for importance in (Kronecker(labels="exact"), Fisher(labels="exact")):
        (model, opt), (whole, _) = (learn(make, importance, spread) for spread in (True, False))
        assert {opt.state[p]["importance"].dtype for p in model.parameters()} == {torch.bfloat16}
        close(weights(model), weights(whole), 1e-3)
        checkpoint.save(f"{folder}/16 bits {type(importance).__name__}", model, opt)
        train(model, opt, mine(batches(8)))
        other = shard(network())
        again = make(other)
        checkpoint.load(f"{folder}/16 bits {type(importance).__name__}", other, again)
        train(other, again, mine(batches(8)))
        assert all(torch.equal(t, weights(other)[n]) for n, t in weights(model).items())


# -- running them ------------------------------------------------------------------------------------------------------


def _rank(rank, folder):
    torch.set_num_threads(1)
    meet = f"file://{folder}/meet"
    wait = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=RANKS, timeout=wait)
    became = {}
    for name in CHECKS:
        function = globals()[name]
        try:
            function(*[folder] * function.__code__.co_argcount)
            became[name] = ""
        except BaseException:
            became[name] = traceback.format_exc()
    with open(f"{folder}/became-{rank}.json", "w", encoding="utf-8") as file:
        json.dump(became, file)
    dist.barrier()  # so that no process exits while gloo's threads still free the tensors of the last exchange
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def became(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    torch.multiprocessing.spawn(_rank, (str(folder),), nprocs=RANKS)
    return [json.loads((folder / f"became-{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("name", CHECKS)
def test_two_processes(name, became):
    for rank, found in enumerate(became):
        assert not found[name], f"process {rank}:\n{found[name]}"
