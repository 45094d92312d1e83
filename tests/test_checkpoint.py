"""Checkpoints in a folder; those of sharded models are in `test_sharding`."""

import warnings

import pytest
import torch
from tests.tasks import fit, mlp, same, task, weights

from drcl import DRCL, Kronecker, checkpoint

WAYS = {
    "reflection": lambda m: DRCL(m.named_parameters(), lr=0.1, momentum=0.9, splitting="douglas-rachford"),
    "directions": lambda m: DRCL.around(
        torch.optim.AdamW(m.parameters(), lr=0.01), preset="directions", plasticity_steps=2
    ),
}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch.distributed")  # there is one process, as it says
        yield


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
def test_it_goes_on_exactly(make, tmp_path):
    model = mlp()
    opt = make(model)
    opt.consolidate(model, task(0), Kronecker())
    fit(model, opt, task(1)[:3])
    checkpoint.save(tmp_path / "folder", model, opt)
    fit(model, opt, task(1)[3:])
    other = mlp(seed=1)
    again = make(other)
    checkpoint.load(tmp_path / "folder", other, again)
    fit(other, again, task(1)[3:])
    assert same(weights(model), weights(other))
    assert same(opt.state_dict(), again.state_dict())


def test_what_it_refuses(tmp_path):
    model = mlp()
    opt = DRCL(model.named_parameters(), lr=0.1)
    with pytest.raises(FileNotFoundError, match="there is no checkpoint in this folder"):
        checkpoint.load(tmp_path / "nowhere", model, opt)
    with pytest.raises(TypeError, match=r"optimizer must be a drcl.DRCL, not SGD"):
        checkpoint.save(tmp_path, model, torch.optim.SGD(model.parameters()))
    with pytest.raises(TypeError, match="folder=3 must be the name of a folder"):
        checkpoint.save(3, model, opt)
    torch.distributed.checkpoint.save({"model": model.state_dict()}, checkpoint_id=str(tmp_path / "model"))
    with pytest.raises(ValueError, match="the checkpoint holds no optimizer"):
        checkpoint.load(tmp_path / "model", model, opt)
    opt.consolidate(model, task(0))
    checkpoint.save(tmp_path / "whole", model, opt)
    before, larger = weights(model), mlp(sizes=(6, 16, 16, 3))
    with pytest.raises(ValueError, match="the saved groups hold"):
        checkpoint.load(tmp_path / "whole", model, DRCL(larger.named_parameters(), lr=0.1))
    assert same(before, weights(model))
