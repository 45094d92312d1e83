"""A task as every trainer sees it: begun, looked at, ended. Without any trainer."""

import types

import pytest
import torch
from tests.integrations.small import WAYS, equal, weights
from tests.tasks import closure_on, mlp, task

from drcl import DRCL, Anchor, Fisher
from drcl.integrations.task import Continues, inside


def steps(model, opt, count):
    for batch in (task(1) * 3)[:count]:
        opt.step(closure_on(model, opt, batch))


def begun(way="directions", **options):
    model = mlp()
    kept = Continues(**{"old": task(0), "importance": Fisher(samples=40), **options}, **WAYS[way])
    opt = kept.task.around(torch.optim.AdamW(model.named_parameters(), lr=0.05))
    kept.task.begin(model, opt, resumed=False)
    return model, opt, kept


def test_the_optimizer_inside_wrappers():
    opt = DRCL(mlp().parameters())
    assert inside(opt) is opt
    assert inside(types.SimpleNamespace(optimizer=types.SimpleNamespace(optimizer=opt))) is opt
    assert inside(torch.optim.SGD(mlp().parameters(), lr=1)) is None


@pytest.mark.parametrize(("steps", "horizon"), [(40, 40), (40.0, 40), (None, 0), (float("inf"), 0), (0, 0)], ids=str)
def test_the_number_of_steps_is_passed_on(steps, horizon):
    model = mlp()
    kept = Continues(old=task(0))
    opt = kept.task.around(torch.optim.AdamW(model.named_parameters(), lr=0.05))
    kept.task.begin(model, opt, resumed=False, steps=steps)
    assert opt.progress.horizon == horizon
    kept.task.begin(model, opt, resumed=True, steps=1)  # what a checkpoint says stays
    assert opt.progress.horizon == horizon


@pytest.mark.parametrize("count", [3, 4])
def test_a_proposal_that_is_not_finished_is_deployed_at_the_end(count):
    model, opt, kept = begun()
    before = weights(model)
    steps(model, opt, count)
    kept.task.end(model, None)
    assert opt.progress.mode == "eval"
    assert not equal(before, weights(model))
    other, by_hand, twin = begun()
    steps(other, by_hand, count)
    by_hand.consolidate(other, task(0), Fisher(samples=40))  # which negotiates what there is
    assert equal(weights(model), weights(other))
    assert twin.task.running
    assert not kept.task.running


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_weights_that_a_trainer_put_back_stay(way, mode):
    model, opt, kept = begun(way)
    steps(model, opt, 6)
    getattr(opt, mode)()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.5)
    kept.task.end(model, None, loaded=True)
    for mode in ("train", "eval"):
        getattr(opt, mode)()
        assert all(bool((p == 0.5).all()) for p in model.parameters())


def test_an_anchor_is_written_with_the_measures(tmp_path, capsys):
    model, opt, kept = begun(probes={"old": task(0)}, save=tmp_path / "a")
    steps(model, opt, 5)
    kept.task.look(model, "middle")
    kept.task.end(model, task(1))
    assert list(kept.retention.moments) == ["before", "middle", "after"]
    saved = Anchor.load(tmp_path / "a", model)
    assert saved.provenance["made"][-1]["retention"] == kept.retention.facts()
    assert "what you kept" in capsys.readouterr().out
    again, other = Continues(anchor=tmp_path / "a"), mlp(seed=3)
    made = again.task.around(torch.optim.SGD(other.parameters(), lr=0.1))
    again.task.begin(other, made, resumed=False)
    assert made.tasks == 2
    assert equal(weights(other), weights(model))


def test_what_is_refused(tmp_path):
    with pytest.raises(ValueError, match="anchor= or old=, not both"):
        Continues(anchor=Anchor({"a": torch.ones(2)}, {"a": torch.ones(2)}), old=[])
    with pytest.raises(TypeError, match=r"anchor=3 must be a drcl\.Anchor or the name of its file"):
        Continues(anchor=3)
    with pytest.raises(FileNotFoundError, match="no such anchor file"):
        Continues(anchor=tmp_path / "none")
    with pytest.raises(TypeError, match="save=3 must be the name of a file"):
        Continues(save=3)
    with pytest.raises(RuntimeError, match="before training begins"):
        _ = Continues().optimizer
    with pytest.raises(TypeError, match="the trainer's optimizer has type NoneType"):
        Continues().task.around(None)
    model, _, kept = begun()
    with pytest.raises(RuntimeError, match="has finished its task; make a new one"):
        kept.task.begin(model, DRCL(model.parameters()), resumed=False)
    with pytest.raises(ValueError, match="has no state of DRCL"):
        Continues(old=task(0)).task.begin(model, DRCL(model.parameters()), resumed=True)
