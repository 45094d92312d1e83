"""Coordinates of rows against those of the whole layer; the processes are played one after the other."""

from dataclasses import replace

import pytest
import torch
from tests.directions.problems import random_basis
from torch.distributed.tensor import Replicate, Shard

from drcl import sharding
from drcl.directions.coordinates import Coordinates
from drcl.directions.rows import RowCoordinates, Rows, rows_of
from drcl.prox import ElasticNet, Penalty


class Mesh:
    def __init__(self, *sizes, rank=0):
        self.sizes, self.rank = sizes, rank

    def size(self, d):
        return self.sizes[d]

    def get_local_rank(self, d):
        return self.rank


class Spread:
    """What is asked of a sharded weight."""

    def __init__(self, rows, mesh, *placements):
        self.rows, self.device_mesh, self.placements = rows, mesh, placements

    def __len__(self):
        return self.rows


@pytest.mark.parametrize("inputs", [True, False])
@pytest.mark.parametrize("mix", [1.0, 0.0, 0.4])
def test_they_settle_as_the_whole_does(monkeypatch, inputs, mix):
    rng = torch.Generator().manual_seed(0)
    basis = random_basis(rng, 7, 5, (7, 5))
    basis = basis if inputs else replace(basis, inputs=None, input_factor=basis.input_factor.diagonal(dim1=1, dim2=2))
    d, penalty = torch.randn(1, 1, 7, 5, generator=rng).double(), Penalty(ElasticNet(mix), 0.5, 0.7, 0.01)
    whole = Coordinates(basis, d.clone())
    pieces = [Rows(None, slice(0, 4)), Rows(None, slice(4, 7))]
    parts = []
    monkeypatch.setattr(sharding, "added", lambda value, like: parts.append(value) or value)
    for mine in pieces:
        RowCoordinates(basis, d[:, :, mine.at], mine)
    monkeypatch.setattr(sharding, "added", lambda value, like: sum(parts))
    rows = [RowCoordinates(basis, d[:, :, mine.at], mine) for mine in pieces]
    assert torch.allclose(rows[0].sizes(), whole.sizes())
    assert rows[0].penalty(penalty) == pytest.approx(whole.penalty(penalty))
    expected = whole.settled(penalty)
    assert torch.allclose(torch.cat([r.settled(penalty) for r in rows], 2), expected)
    assert all(r.settled(replace(penalty, strength=1e9, prox=ElasticNet(1.0))) is None for r in rows)


def test_whose_rows_they_are():
    basis = random_basis(torch.Generator().manual_seed(0), 7, 3, (7, 3))
    found = [rows_of(basis, [Spread(7, Mesh(2, rank=r), Shard(0))]).at for r in range(2)]
    assert found == [slice(0, 4), slice(4, 7)]
    copies = Spread(7, Mesh(3, 2, rank=1), Replicate(), Shard(0))
    assert rows_of(basis, [copies]).at == slice(4, 7)


def test_what_has_to_be_gathered():
    rng, rows = torch.Generator().manual_seed(0), Spread(7, Mesh(2), Shard(0))
    basis = random_basis(rng, 7, 3, (7, 3))
    assert rows_of(basis, [rows]) is not None
    assert rows_of(basis, [None]) is None
    assert rows_of(basis, [rows, None]) is None  # a bias that is not sharded
    assert rows_of(basis, [Spread(7, Mesh(2), Shard(1))]) is None
    assert rows_of(basis, [Spread(7, Mesh(5), Shard(0))]) is None  # 2 rows each leave none for the last
    assert rows_of(basis, [Spread(7, Mesh(2, 2), Shard(0), Shard(0))]) is None
    assert rows_of(random_basis(rng, 7, 2, (7, 3)), [rows]) is None
    assert rows_of(replace(basis, outputs=None), [rows]) is None
    assert rows_of(replace(basis, eigenvalues=basis.eigenvalues.expand(2, 1, 7, 3)), [rows]) is None
