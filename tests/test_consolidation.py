"""The end of a task: importance added up by hand, what is left undisturbed, taking up a saved anchor."""

import pytest
import torch
from tests.tasks import after_one_task, fit, mlp, same, task, weights, whole_state
from torch import nn

import drcl
from drcl import DRCL, MAS, Anchor, Fisher, Kronecker, PathIntegral
from drcl.importance.base import Importance


class Told(Importance):
    """Gives the importance it was told, so that sums can be checked by hand."""

    needs_data = False

    def __init__(self, **values):
        self.values = values

    def estimate(self, model, batches, parameters, forward=None):
        return {name: torch.tensor(self.values[name], dtype=torch.float32) for name in parameters}

    def describe(self):
        return {"estimator": "Told"}


def two_weights():
    return nn.Linear(2, 1)  # weight [1, 2] and bias [1]: three protected weights


@pytest.mark.parametrize(
    ("memory", "second", "third"),
    [
        # raw: (1, 2, 3), then (4, 0, 2), then (0, 0, 6)
        ("sum", (5, 2, 5), (5, 2, 11)),
        ("latest", (4, 0, 2), (0, 0, 6)),
        (0.5, (4.5, 1, 3.5), (2.25, 0.5, 7.75)),
        (0, (4, 0, 2), (0, 0, 6)),
        (1.0, (5, 2, 5), (5, 2, 11)),
    ],
)
def test_memory_by_hand(memory, second, third):
    model = two_weights()
    opt = DRCL(model.named_parameters(), lr=0.1, memory=memory, normalise="global")
    raw = [(1, 2, 3), (4, 0, 2), (0, 0, 6)]
    for number, (told, expected) in enumerate(zip(raw, [(1, 2, 3), second, third])):
        opt.consolidate(model, importance=Told(weight=[list(told[:2])], bias=[told[2]]))
        mean = sum(expected) / 3
        assert opt.importance_mean == pytest.approx(mean)
        held = opt.anchor.importance
        assert [*held["weight"][0].tolist(), held["bias"].item()] == pytest.approx([v / mean for v in expected])
        assert opt.tasks == number + 1
    assert opt.anchor.provenance["made"] == [{"estimator": "Told"}] * 3


def own_or_around(model, wrapped, **options):
    if wrapped:
        return DRCL.around(torch.optim.Adam(model.parameters()), **options)
    return DRCL(model.named_parameters(), lr=0.1, **options)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        # raw: weight (1, 3) and bias (5), then weight (60, 20) and bias (10): (1/3, 1, 5/3) and (2, 2/3, 1/3)
        ("sum", (7 / 3, 5 / 3, 2.0)),
        ("latest", (2.0, 2 / 3, 1 / 3)),
        (0.5, (13 / 6, 7 / 6, 7 / 6)),
    ],
)
@pytest.mark.parametrize(("normalise", "unit"), [("task", 1), ("share", 1e6 / 3)])
def test_every_task_in_its_own_unit_by_hand(memory, expected, wrapped, normalise, unit):
    """Every task counts alike whatever its units, and the second does not weaken the hold on the first."""
    model = two_weights()
    opt = own_or_around(model, wrapped, memory=memory, normalise=normalise)
    opt.consolidate(model, importance=Told(weight=[[1, 3]], bias=[5]))
    opt.consolidate(model, importance=Told(weight=[[60, 20]], bias=[10]))
    held = opt.anchor.importance
    assert [*held["weight"][0].tolist(), held["bias"].item()] == pytest.approx([unit * e for e in expected])
    assert opt.importance_mean == 1.0
    assert opt.anchor.provenance["normalise"] == normalise
    again = DRCL(model.named_parameters(), lr=0.1, memory=memory, normalise=normalise)
    again.protect(model, opt.anchor)
    for each in (opt, again):
        each.consolidate(model, importance=Told(weight=[[1, 1]], bias=[1]))
    assert opt.anchor.importance["weight"].equal(again.anchor.importance["weight"])


@pytest.mark.parametrize(
    "importance", [Fisher(labels="exact"), Kronecker(labels="exact")], ids=["weights", "directions"]
)
def test_shares_do_not_count_what_is_not_used(importance):
    """Forty more inputs that are always zero, and every weight is held as before; in units of the mean it is not."""

    def held(normalise: str, unused: int) -> torch.Tensor:
        model = nn.Linear(3 + unused, 2)
        x = torch.cat([torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), torch.zeros(8, unused)], 1)
        with torch.no_grad():
            model.weight.fill_(0.1)
            model.bias.zero_()
        opt = DRCL(model.named_parameters(), lr=0.1, normalise=normalise)
        opt.consolidate(model, [(x, torch.zeros(8, dtype=torch.long))], importance)
        return opt.anchor.importance["weight"][:, :3]

    torch.testing.assert_close(held("share", 40), held("share", 0))
    torch.testing.assert_close(held("task", 40), held("task", 0) * 88 / 8)


def test_a_task_of_no_importance_adds_nothing():
    model = two_weights()
    opt = DRCL(model.named_parameters(), lr=0.1, normalise="task")
    with pytest.warns(UserWarning, match="zero for every weight"):
        opt.consolidate(model, importance=Told(weight=[[0, 0]], bias=[0]))
    opt.consolidate(model, importance=Told(weight=[[1, 3]], bias=[5]))
    opt.consolidate(model, importance=Told(weight=[[0, 0]], bias=[0]))
    assert opt.anchor.importance["weight"][0].tolist() == pytest.approx([1 / 3, 1])


def test_an_anchor_in_another_unit_is_refused():
    model, opt = after_one_task()
    other = DRCL(model.named_parameters(), lr=0.1, normalise="share")
    with pytest.raises(ValueError, match="the anchor was made with normalise='task'; make this optimizer with the"):
        other.protect(model, opt.anchor)
    assert other.tasks == 0


@pytest.mark.parametrize("bad", [[[-3, 1]], [[-1, 3]], [[float("nan"), 1]], [[float("inf"), 1]]], ids=str)
@pytest.mark.parametrize("normalise", ["global", "task", "share"])
def test_bad_importance_is_refused_in_any_unit(normalise, bad):
    model = two_weights()
    opt = DRCL(model.named_parameters(), lr=0.1, normalise=normalise)
    with pytest.raises(ValueError, match="the importance of 'weight' must be finite and >= 0"):
        opt.consolidate(model, importance=Told(weight=bad, bias=[1]))
    assert opt.tasks == 0


@pytest.mark.parametrize("memory", ["sum", 0.3])
def test_memory_with_an_estimator(memory):
    """Fisher of each task at each task's own weights, estimated apart, adds up to what the optimizer holds."""
    model, total = mlp(), None
    options = dict(strength=0.02, splitting="douglas-rachford", memory=memory, normalise="global")
    opt = DRCL(model.named_parameters(), lr=0.1, **options)
    for number in range(3):
        fit(model, opt, task(number))
        opt.eval()
        new = Fisher(labels="exact").estimate(model, task(number), dict(model.named_parameters()))
        opt.consolidate(model, task(number), Fisher(labels="exact"))
        keep = 1.0 if memory == "sum" else memory
        total = new if total is None else {n: new[n] + keep * total[n] for n in new}
    mean = torch.cat([t.flatten() for t in total.values()]).double().mean().item()
    assert opt.importance_mean == pytest.approx(mean, rel=1e-5)
    for name, held in opt.anchor.importance.items():
        torch.testing.assert_close(held * mean, total[name], rtol=1e-4, atol=1e-9)
    whole = torch.cat([t.flatten() for t in opt.anchor.importance.values()])
    assert whole.double().mean().item() == pytest.approx(1.0, abs=1e-6)


def test_the_mean_is_over_protected_weights_only():
    model = mlp()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "free": True}]
    opt = DRCL(groups, lr=0.1, preset="weights")
    opt.consolidate(model, task(0))
    assert set(opt.anchor.weights) == {"0.weight", "0.bias"}
    whole = torch.cat([t.flatten() for t in opt.anchor.importance.values()])
    assert whole.double().mean().item() == pytest.approx(1.0, abs=1e-6)


def test_z_becomes_the_weights_and_the_anchor():
    model, opt = after_one_task(momentum=0.9, then=4)
    with opt.deployed():
        z = weights(model)
    opt.consolidate(model, task(1))
    assert same(z, weights(model))
    assert same(z, list(opt.anchor.weights.values()))
    assert not any("momentum_buffer" in s for s in opt.state.values())
    opt.eval()
    assert same(z, weights(model))


OPEN = {
    "douglas-rachford": lambda p, n: DRCL(p, lr=0.1, momentum=0.9, splitting="douglas-rachford", plasticity_steps=n),
    "forward-backward": lambda p, n: DRCL(p, lr=0.1, momentum=0.9, preset="weights", plasticity_steps=n),
    "stable": lambda p, n: DRCL(p, lr=0.1, stable=0.5, plasticity_steps=n),
    "adam": lambda p, n: DRCL.around(torch.optim.Adam(p, lr=0.01), preset="weights", plasticity_steps=n),
    "directions": lambda p, n: DRCL(p, lr=0.1, preset="directions", plasticity_steps=n),
}


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", OPEN)
def test_the_steps_of_an_open_proposal_count(name, mode):
    """Three steps of a proposal of ten come to the same as a whole one of three."""
    found = []
    for steps in (10, 3):
        model = mlp()
        opt = OPEN[name](model.named_parameters(), steps)
        opt.consolidate(model, task(0))
        before = weights(model)
        for k, batch in enumerate(task(1)[:3]):
            opt.param_groups[0]["lr"] = 0.1 / (k + 1)
            fit(model, opt, [batch])
        getattr(opt, mode)()
        assert steps == 3 or mode == "train" or same(before, weights(model))  # the last one that is settled
        opt.consolidate(model, task(1))
        assert not same(before, weights(model))
        assert same(weights(model), list(opt.anchor.weights.values()))
        fit(model, opt, task(2)[:2])
        found.append((weights(model), opt.state_dict()))
    assert same(*found)


def test_an_open_proposal_meets_the_learning_rates_so_far():
    """From zero, gradients 4 and 1 at rates 1/2 and 1/4: x = -3 and -3/4, the threshold 3/4 of the strength."""
    model = two_weights()
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    opt = DRCL(model.named_parameters(), lr=0.5, strength=2.0, plasticity_steps=5)
    told = Told(weight=[[1, 1]], bias=[1])
    opt.consolidate(model, importance=told)
    for lr in (0.5, 0.25):
        opt.param_groups[0]["lr"] = lr
        model.weight.grad, model.bias.grad = torch.tensor([[4.0, 1.0]]), torch.zeros(1)
        opt.step()
    assert model.weight.tolist() == [[-3.0, -0.75]]
    opt.consolidate(model, importance=told)
    assert model.weight.tolist() == [[-1.5, 0.0]]


@pytest.mark.parametrize("training", [True, False])
def test_consolidate_leaves_mode_gradients_buffers_and_random_numbers(training):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))
    opt = DRCL(model.named_parameters(), lr=0.1, norms="shared")
    fit(model, opt, task(0))
    model.train(training)
    before = whole_state(model, opt)
    opt.consolidate(model, task(0))
    after = whole_state(model, opt)
    for key in ("model", "gradients", "training", "random"):
        assert same(before[key], after[key]), key


def test_forward_lets_other_batches_in():
    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.body, self.heads = nn.Linear(6, 8), nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3)])

        def forward(self, points, head):
            return self.heads[head](torch.relu(self.body(points)))

    model = TwoHeads()
    opt = DRCL(model.named_parameters(), lr=0.1)
    batches = [{"points": x, "labels": y} for x, y in task(0)]
    opt.consolidate(model, batches, forward=lambda m, b: (m(b["points"], head=1), b["labels"]))
    assert not opt.anchor.importance["heads.0.weight"].any()
    assert opt.anchor.importance["heads.1.weight"].any()


@pytest.mark.parametrize("importance", [Fisher(labels="empirical"), Fisher(labels="exact"), MAS()], ids=repr)
def test_every_estimator(importance):
    model = mlp()
    opt = DRCL(model.named_parameters(), lr=0.1, preset="weights")
    fit(model, opt, task(0))
    opt.consolidate(model, task(0), importance)
    assert opt.anchor.provenance["made"][0]["estimator"] == type(importance).__name__


def test_the_path_integral_watches_without_data():
    model = mlp()
    opt = DRCL(model.named_parameters(), lr=0.1, strength=0.1, splitting="douglas-rachford")
    path = PathIntegral().watch(opt)
    for number in range(2):
        fit(model, opt, task(number))
        opt.consolidate(model, importance=path)
    assert opt.tasks == 2
    assert [m["steps"] for m in opt.anchor.provenance["made"]] == [5, 5]


def test_importance_of_zero_is_told():
    model = two_weights()
    opt = DRCL(model.named_parameters(), lr=0.1, preset="weights")
    with pytest.warns(UserWarning, match="importance is zero for every weight.*damping"):
        opt.consolidate(model, importance=Told(weight=[[0, 0]], bias=[0]))
    opt.consolidate(model, importance=Told(weight=[[1, 2]], bias=[3]))
    assert opt.anchor.importance["weight"].tolist() == [[0.5, 1.0]]


def test_damping_is_added_to_the_mean_one_importance():
    model = two_weights()
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    opt = DRCL(model.named_parameters(), lr=0.5, strength=2.0, splitting="douglas-rachford", damping=0.25)
    opt.consolidate(model, importance=Told(weight=[[0, 3]], bias=[0]))
    model.weight.grad, model.bias.grad = torch.tensor([[1.0, 4.0]]), torch.tensor([-0.25])
    opt.step()
    opt.eval()
    # thresholds 0.5 * 2 * (F + 0.25) = 0.25, 3.25 and 0.25; r = -g
    assert model.weight.tolist() == [[-0.75, -0.75]]
    assert model.bias.tolist() == [0.0]


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_protect_takes_up_where_a_saved_anchor_left_off(tmp_path, mode):
    """Another process, another start of the weights: the next task comes out bit for bit as if nothing had happened."""
    model, opt = after_one_task(momentum=0.9, then=3)
    opt.consolidate(model, task(1))
    opt.anchor.save(tmp_path / "a.safetensors")
    other, again = after_one_task(seed=4, momentum=0.9, then=2)
    getattr(again, mode)()
    again.protect(other, Anchor.load(tmp_path / "a.safetensors", other))
    assert same(weights(model), weights(other))
    for m, o in ((model, opt), (other, again)):
        fit(m, o, task(2))
        o.consolidate(m, task(2))
    assert same(weights(model), weights(other))
    assert same(opt.anchor.importance, again.anchor.importance)
    assert opt.anchor.provenance == again.anchor.provenance
    assert again.tasks == 3


def test_protect_with_an_anchor_of_a_part():
    """Only what the anchor names is protected from now on, also where more was before."""
    model, opt = after_one_task(strength=float("inf"))
    part = Anchor({"0.weight": opt.anchor.weights["0.weight"]}, {"0.weight": opt.anchor.importance["0.weight"]})
    opt.protect(model, part)
    assert list(opt.anchor.weights) == ["0.weight"]
    before = weights(model)
    fit(model, opt, task(1))
    opt.eval()
    assert [same(p, q) for p, q in zip(before, weights(model))] == [True, False, False, False]
    assert drcl.drift(model, part).total.unmoved == 1.0
