"""What becomes of running statistics when tasks change: averaged, frozen, per task or shared."""

import copy
import io
import warnings

import pytest
import torch
from tests.tasks import fit, same, task, whole_state
from torch import nn
from torch.nn.functional import cross_entropy

from drcl import DRCL, Anchor, AnchorError, norms


def network(norm=nn.BatchNorm1d, seed=0, **options):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), norm(8, **options), nn.ReLU(), nn.Linear(8, 3))


def shifted(seed):
    """A task with shifted inputs, so that statistics must change."""
    return [(3 * x + 2, y) for x, y in task(seed)]


def after_tasks(policy, count=1, model=None, **options):
    model = network() if model is None else model
    opt = DRCL(model.named_parameters(), lr=0.05, momentum=0.9, norms=policy, **options)
    for k in range(count):
        fit(model, opt, shifted(k) if k else task(0), epochs=3)
        opt.consolidate(model, task(k))
    return model, opt


def kept(model):
    return {name: b.clone() for name, b in model.named_buffers()}


# ---- one layer


@pytest.mark.parametrize("shape", [(7, 4), (7, 4, 5), (7, 4, 3, 2)])
@pytest.mark.parametrize("affine", [True, False])
def test_the_whole_share_is_ordinary_batch_norm(shape, affine):
    """Values, gradients and running statistics, against torch's own layer."""
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)]
    torch.manual_seed(0)
    ours, theirs = kind(4, affine=affine).double(), kind(4, affine=affine).double()
    if affine:
        for p, q in zip(ours.parameters(), theirs.parameters()):
            q.data.copy_(p.data.normal_())
    x = torch.randn(shape, dtype=torch.float64)
    weights = torch.randn(shape, dtype=torch.float64)
    outputs = []
    for layer, forward in (
        (ours, lambda v: norms.between(ours, v, torch.ones(4), torch.ones(4), 1.0)),
        (theirs, theirs),
    ):
        v = x.clone().requires_grad_()
        y = forward(v)
        (y * weights).sum().backward()
        outputs.append([y.detach(), v.grad, *(p.grad for p in layer.parameters())])
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(*outputs))
    assert all(torch.allclose(a, b) for a, b in zip(ours.buffers(), theirs.buffers()))


@pytest.mark.parametrize("shape", [(5, 4, 6), (4, 6)])
def test_the_whole_share_is_ordinary_instance_norm(shape):
    torch.manual_seed(0)
    ours, theirs = (nn.InstanceNorm1d(4, affine=True, track_running_stats=True).double() for _ in range(2))
    x = torch.randn(shape, dtype=torch.float64)
    y = norms.between(ours, x, torch.ones(4), torch.ones(4), 1.0)
    assert torch.allclose(y, theirs(x), atol=1e-12)
    assert torch.allclose(ours.running_mean, theirs.running_mean)
    assert torch.allclose(ours.running_var, theirs.running_var)


def test_no_share_is_the_layer_in_evaluation():
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(4)
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2)
    x = torch.randn(6, 4, 3, 3)
    y = norms.between(layer, x, layer.running_mean.clone(), layer.running_var.clone(), 0.0)
    assert torch.allclose(y, layer.eval()(x), atol=1e-6)


def test_it_is_the_proximal_step_between_kept_and_batch():
    """Against the minimiser that torch finds by descent, and the bound on every channel's deviation."""
    torch.manual_seed(0)
    layer, share = nn.BatchNorm1d(3, affine=False, eps=0.0).double(), 0.1
    x = 100 * torch.randn(50, 3, dtype=torch.float64) + 7
    mean, var = torch.randn(3).double(), torch.rand(3).double()
    y = norms.between(layer, x, mean, var, share)
    found = []
    for of_batch, of_kept in ((x.mean(0), mean), (x.var(0, correction=0), var)):
        m = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        (share * (m - of_batch).square() + (1 - share) * (m - of_kept).square()).sum().backward()
        found.append(-m.grad / 2)  # one Newton step: the function is a parabola of curvature two
    assert torch.allclose(y, (x - found[0]) / found[1].sqrt())
    assert float(y.std(0, correction=0).max()) <= share**-0.5


def test_half_precision_keeps_its_type_and_uses_wide_statistics():
    torch.manual_seed(0)
    layer, x = nn.BatchNorm1d(4), 300 + torch.randn(64, 4)
    exact = norms.between(copy.deepcopy(layer), x.bfloat16().float(), torch.zeros(4), torch.ones(4), 1.0)
    y = norms.between(layer, x.bfloat16(), torch.zeros(4), torch.ones(4), 1.0)
    assert y.dtype == torch.bfloat16
    assert torch.allclose(y.float(), exact, atol=0.05)
    assert layer.running_mean.dtype == torch.float32


def test_a_cumulative_average_goes_on():
    """momentum=None: the running mean is that of all batches."""
    torch.manual_seed(0)
    ours, theirs = nn.BatchNorm1d(4, momentum=None), nn.BatchNorm1d(4, momentum=None)
    for _ in range(3):
        x = torch.randn(16, 4)
        norms.between(ours, x, torch.zeros(4), torch.ones(4), 1.0)
        theirs(x)
    assert torch.allclose(ours.running_mean, theirs.running_mean, atol=1e-6)
    assert int(ours.num_batches_tracked) == 3


@pytest.mark.parametrize("policy", ["averaged", "frozen"])
def test_a_copy_and_a_pickle_of_the_model_have_policies_of_their_own(policy):
    model, _ = after_tasks(policy)
    x, copied, file = task(1)[0][0], copy.deepcopy(model), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    model.train()
    expected, before = model(x), kept(copied)
    for other in (copied, loaded):
        other.train()
        assert same(kept(other), before)  # the first model's call has not written into this one
        assert torch.equal(other(x), expected)


def test_release_gives_the_layer_back():
    model, _ = after_tasks("frozen", 2)  # measured in evaluation mode in between, which must leave no trace
    norms.release(model[1])
    assert model[1].training
    x = task(1)[0][0]
    hidden = model[0](x)
    before = model[1].running_mean.clone()
    fresh = nn.BatchNorm1d(8)
    fresh.load_state_dict(model[1].state_dict())
    assert torch.equal(model[1](hidden), fresh(hidden))
    assert not torch.equal(model[1].running_mean, before)


# ---- policies


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.SyncBatchNorm])
def test_frozen_statistics_are_those_of_the_first_task_in_training_too(norm):
    model, opt = after_tasks("frozen", model=network(norm, momentum=0.1) if norm is nn.BatchNorm1d else None)
    if norm is nn.SyncBatchNorm:
        model = network(norm)
        opt = DRCL(model.named_parameters(), lr=0.05, norms="frozen")
        model.eval()  # its training needs an accelerator
        opt.consolidate(model, task(0))
    first = kept(model)
    model.train()
    x = shifted(1)[0][0]
    assert torch.equal(model(x), model.eval()(x))
    model.train()
    fit(model, opt, shifted(1), epochs=3)
    opt.consolidate(model, task(1))
    assert same(kept(model), first)


def test_averaged_statistics_are_the_weighted_mean_over_tasks():
    """With momentum 1 the running statistics are the last batch's; by hand (9 first + 1 second + 1 third) / 11."""
    model = network(momentum=1.0)
    opt = DRCL(model.named_parameters(), lr=0.0, norms="averaged")
    means = []
    for k in range(3):
        x, y = shifted(k)[0]
        means.append(model[0](x).detach().mean(0))
        cross_entropy(model.train()(x), y).backward()
        opt.consolidate(model, [(x, y)])
    expected = (norms.FIRST * means[0] + means[1] + means[2]) / (norms.FIRST + 2)
    assert torch.allclose(model[1].running_mean, expected, atol=1e-5)


def test_averaged_layers_train_and_judge_alike():
    model = network(momentum=1.0)
    opt = DRCL(model.named_parameters(), lr=0.0, norms="averaged")
    fit(model, opt, task(0))
    opt.consolidate(model, task(0))
    x = 5 * torch.randn(4000, 6)
    trained = model.train()(x)
    judged = model.eval()(x)  # the running statistics have become those that were used
    assert torch.allclose(trained, judged, atol=1e-2)
    assert not torch.allclose(judged, network()(x), atol=1e-2)


def test_shared_is_what_torch_does():
    model, opt = after_tasks("shared")
    plain = copy.deepcopy(model)
    x = shifted(1)[0][0]
    assert torch.equal(model.train()(x), plain.train()(x))
    assert not {"train", "forward"} & model[1].__dict__.keys()
    assert opt.progress.statistics == {}


def test_per_task_statistics_come_back():
    model, opt = after_tasks("per-task")
    first = kept(model)
    fit(model.train(), opt, shifted(1), epochs=3)
    opt.consolidate(model, task(1))
    second = kept(model)
    assert not same(first, second)
    fit(model, opt, task(2))
    now = kept(model)
    with opt.deployed(task=0):
        assert same(kept(model), first)
    with opt.deployed(task=1):
        assert same(kept(model), second)
    with pytest.raises(KeyError), opt.deployed(task=0):
        raise KeyError
    with opt.deployed(), opt.deployed(task=2):
        assert same(kept(model), now)
    assert same(kept(model), now)
    for wrong in (3, -1, 0.5, True, "a"):
        with pytest.raises(ValueError, match=r"task=.* must be the number of a task, from 0 .* to 2"):
            opt.deployed(task=wrong).__enter__()


def test_the_task_is_no_matter_to_other_policies():
    model, opt = after_tasks("averaged", 2)
    before = kept(model)
    with opt.deployed(task=0):
        assert same(kept(model), before)


def test_importance_is_that_of_the_model_as_it_is_judged():
    """In evaluation a held layer is torch's own: the anchor's importance equals that of a model without a policy."""
    found = []
    for policy in ("averaged", "frozen", "shared"):
        model, opt = after_tasks("shared")
        again = DRCL(model.named_parameters(), lr=0.05, norms=policy)
        again.protect(model, opt.anchor)
        again.consolidate(model, task(1))
        found.append(again.anchor.importance)
    assert same(found[0], found[1])
    assert same(found[0], found[2])


@pytest.mark.parametrize("policy", norms.POLICIES)
def test_a_refused_consolidation_changes_nothing(policy):
    model, opt = after_tasks(policy, 2)
    fit(model.train(), opt, task(2))
    before = whole_state(model, opt)
    with pytest.raises(ValueError, match="needs data"):
        opt.consolidate(model, None)
    with pytest.raises(FloatingPointError):
        opt.consolidate(model, [(torch.full((8, 6), torch.nan), torch.zeros(8, dtype=torch.long))])
    assert same(whole_state(model, opt), before)


def test_a_policy_may_follow_another():
    model, opt = after_tasks("frozen")
    again = DRCL(model.named_parameters(), lr=0.05, norms="per-task")
    again.protect(model, opt.anchor)
    assert not norms.is_frozen(model[1])
    third = DRCL(model.named_parameters(), lr=0.05, norms="averaged")
    third.protect(model, opt.anchor)
    assert isinstance(model[1].__dict__["forward"], norms.Averaged)


def test_a_layer_of_another_kind_is_frozen():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("running_mean", torch.zeros(8))
            self.register_buffer("running_var", torch.ones(8))

        def forward(self, x):
            if self.training:
                self.running_mean.add_(1.0)
            return x - self.running_mean

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), Own(), nn.Linear(8, 3))
    opt = DRCL(model.named_parameters(), lr=0.05, norms="averaged")
    opt.consolidate(model, task(0))
    model.train()(task(0)[0][0])
    assert not model[1].running_mean.any()


# ---- what is said


def test_it_says_once_what_it_does():
    model = network()
    opt = DRCL(model.named_parameters(), lr=0.05)
    with pytest.warns(UserWarning, match=r"running statistics of 1 norm layers \('1', ...\) become a mean over tasks"):
        opt.consolidate(model, task(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.consolidate(model, task(1))
        after_tasks("averaged", 2)
        plain = nn.Sequential(nn.Linear(6, 3))
        DRCL(plain.named_parameters()).consolidate(plain, task(0))


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="norms='moving' is unknown; use one of 'averaged', 'frozen'"):
        DRCL(network().named_parameters(), norms="moving")
    with pytest.raises(ValueError, match="norms='frozen' contradicts preset='paper'"):
        DRCL(network().named_parameters(), preset="paper", norms="frozen")


# ---- resuming


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("policy", norms.POLICIES)
def test_a_resumed_run_goes_on_bit_for_bit(policy, whole):
    """Even if the layers are called one by one: then each is found by its own parameters."""
    model, opt = after_tasks(policy, 2)
    fit(model.train(), opt, shifted(2)[:2])
    saved = copy.deepcopy((model.state_dict(), opt.state_dict()))
    fresh = network(seed=9)
    again = DRCL(fresh.named_parameters(), lr=0.05, momentum=0.9, norms=policy)
    fresh.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    if not whole:
        fresh.forward = lambda x: fresh[3](fresh[2](fresh[1](fresh[0](x))))
    call = fresh if whole else fresh.forward
    for x, y in shifted(2)[2:]:
        for one, net, optimizer in ((model, model, opt), (fresh, call, again)):
            one.zero_grad()
            cross_entropy(net(x), y).backward()
            optimizer.step()
    assert same(kept(fresh), kept(model))
    assert same(again.state_dict(), opt.state_dict())
    for k in range(2):
        with opt.deployed(task=k), again.deployed(task=k):
            assert same(kept(fresh), kept(model))
    opt.consolidate(model, task(2))
    again.consolidate(fresh, task(2))
    assert same(again.state_dict(), opt.state_dict())


def test_a_resumed_optimizer_that_never_saw_its_model_says_so():
    _, opt = after_tasks("frozen")
    again = DRCL(network(seed=9).named_parameters(), lr=0.05, momentum=0.9, norms="frozen")
    again.load_state_dict(opt.state_dict())
    with pytest.raises(RuntimeError, match=r"holds the running statistics of '1', but.*call the whole model once"):
        again.step()


def test_an_earlier_state_lets_the_layers_go():
    model = network()
    opt = DRCL(model.named_parameters(), lr=0.05, norms="frozen")
    start = copy.deepcopy(opt.state_dict())
    opt.consolidate(model, task(0))
    assert norms.is_frozen(model[1])
    opt.load_state_dict(start)
    assert not norms.is_frozen(model[1])


def test_a_state_of_another_policy_is_refused():
    _, opt = after_tasks("frozen")
    other = DRCL(network().named_parameters(), norms="averaged")
    with pytest.raises(ValueError, match="saved with norms='frozen'; make this optimizer with the same"):
        other.load_state_dict(opt.state_dict())


def test_the_search_ends_with_the_optimizer():
    from torch.nn.modules import module as torch_module

    before = len(torch_module._global_forward_pre_hooks)
    _, opt = after_tasks("frozen")
    lonely = DRCL(network().named_parameters(), lr=0.05, momentum=0.9, norms="frozen")
    lonely.load_state_dict(opt.state_dict())
    assert len(torch_module._global_forward_pre_hooks) == before + 1
    del lonely
    network()(torch.randn(4, 6))
    assert len(torch_module._global_forward_pre_hooks) == before


# ---- anchors


@pytest.mark.parametrize("policy", norms.POLICIES)
def test_an_anchor_carries_the_policy_on(policy, tmp_path):
    model, opt = after_tasks(policy, 2)
    opt.anchor.save(tmp_path / "anchor")
    fresh = network(seed=9)
    again = DRCL(fresh.named_parameters(), lr=0.05, momentum=0.9, norms=policy)
    again.protect(fresh, Anchor.load(tmp_path / "anchor"))
    for one, optimizer in ((model, opt), (fresh, again)):
        fit(one.train(), optimizer, shifted(2))
    assert same(kept(fresh), kept(model))
    with opt.deployed(task=0), again.deployed(task=0):
        assert same(kept(fresh), kept(model))
    assert same(again.anchor.statistics, opt.anchor.statistics)
    assert bool(opt.anchor.statistics) == (policy == "per-task")


def test_an_anchor_with_statistics_that_do_not_fit_is_refused():
    model, opt = after_tasks("per-task", 2)
    anchor = opt.anchor
    before = whole_state(model, opt)
    anchor.statistics["1.running_mean"] = torch.zeros(2, 5)
    with pytest.raises(AnchorError, match=r"statistics '1.running_mean' of the anchor do not fit"):
        opt.protect(model, anchor)
    anchor.statistics["1.running_mean"] = torch.zeros(3, 8)
    with pytest.raises(AnchorError, match=r"'1.running_mean' for 3 tasks of 2"):
        opt.protect(model, anchor)
    assert same(whole_state(model, opt), before)


# ---- wrappers


def test_compiled_code_follows_the_policy():
    torch.compiler.reset()
    model = network()
    compiled = torch.compile(model, backend="eager")
    x = shifted(1)[0][0]
    compiled(x)
    for policy in ("frozen", "averaged"):
        opt = DRCL(model.named_parameters(), lr=0.05, norms=policy)
        opt.consolidate(compiled, task(0))
        twin = copy.deepcopy(model)
        compiled.train()
        assert torch.allclose(compiled(x), twin.train()(x), atol=1e-6)
        assert same(kept(model), kept(twin))
    torch.compiler.reset()


def _one_of_two(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    x, weights = (t.chunk(2)[rank].clone().requires_grad_() for t in _batch())
    layer = nn.SyncBatchNorm(4).double()
    y = norms.between(layer, x, torch.zeros(4), torch.ones(4), 0.3)
    (y * weights.detach()).sum().backward()
    torch.save([y.detach(), x.grad, layer.running_mean, layer.running_var], f"{folder}/{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _batch():
    rng = torch.Generator().manual_seed(0)
    return torch.randn(2, 12, 4, 5, generator=rng, dtype=torch.float64).unbind()


def test_synchronised_layers_take_the_batch_of_all_processes(tmp_path):
    """Two processes with half a batch each against one layer with the whole: outputs, gradients, statistics."""
    torch.multiprocessing.spawn(_one_of_two, (str(tmp_path),), nprocs=2)
    x, weights = _batch()
    x.requires_grad_()
    layer = nn.BatchNorm1d(4).double()
    y = norms.between(layer, x, torch.zeros(4), torch.ones(4), 0.3)
    (y * weights).sum().backward()
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for k, whole in enumerate((y.detach(), x.grad)):
        assert torch.allclose(torch.cat([parts[0][k], parts[1][k]]), whole, atol=1e-10)
    for part in parts:
        assert torch.allclose(part[2], layer.running_mean)
        assert torch.allclose(part[3], layer.running_var)
