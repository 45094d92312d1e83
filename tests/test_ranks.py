"""Sums over processes where there is one; what several add up to is in `test_sharding`."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from drcl import ranks


@pytest.fixture(params=[None, (1,), (1, 1)])
def mesh(request):
    """Without other processes, or with a mesh of one."""
    if request.param is None:
        yield None
        return
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        yield init_device_mesh("cpu", request.param)
    finally:
        dist.destroy_process_group()


def test_one_process_keeps_what_it_has(mesh):
    t = torch.arange(3.0)
    with ranks.of(mesh):
        ranks.add_([t])
        ranks.mean_([t])
        ranks.same_([t])
        assert ranks.added(7) == 7
        assert ranks.common(["a", "b"]) == {"a", "b"}
        assert ranks.seed(3) == 3
        with ranks.together():
            pass
    assert torch.equal(t, torch.arange(3.0))
    assert ranks.largest(5, mesh, torch.device("cpu")) == 5


def test_a_failure_is_the_callers_own(mesh):
    with ranks.of(mesh), pytest.raises(KeyError, match="lost"), ranks.together():
        raise KeyError("lost")


def test_the_mesh_is_forgotten_afterwards(mesh):
    with pytest.raises(KeyError), ranks.of(mesh):
        raise KeyError
    assert ranks._mesh is None
