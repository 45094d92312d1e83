"""DRCL along directions: the preset of the library as a method of its own."""

from __future__ import annotations

import math

import pytest
import torch
from tests.lab.methods.loop import Walk, assert_same_weights, toy_stream
from tests.lab.training.toys import learner, stream

from drcl import Kronecker
from drcl.lab import methods
from drcl.lab.methods.drcl import DouglasRachford
from drcl.lab.methods.drcl_kronecker import KroneckerDouglasRachford
from drcl.options import PRESETS


def test_it_is_drcl_with_the_settings_of_the_preset():
    # With all examples: which are drawn depends on the name of the method.
    spelt = DouglasRachford(importance="kronecker", labels=Kronecker().labels, samples=None, **PRESETS["directions"])
    a = Walk(KroneckerDouglasRachford(samples=None), toy_stream(tasks=2)).run()
    b = Walk(spelt, toy_stream(tasks=2)).run()
    assert_same_weights(a.model, b.model)
    assert a.accuracy == b.accuracy


def test_every_layer_of_the_trunk_is_held_along_directions():
    walk = Walk(KroneckerDouglasRachford(samples=12), toy_stream(tasks=2), "cnn", epochs=1).run()
    anchor = walk.method._optimizer.anchor
    trunk = {name for name in walk.model.groups()["trunk"] if name.endswith("weight")}
    assert set(anchor.bases) == trunk
    assert walk.method._optimizer.solver.plasticity_steps == 10


def test_it_has_every_option_of_drcl_and_no_importance_but_its_own():
    own, other = (methods.get(name).__dataclass_fields__ for name in ("drcl-kronecker", "drcl"))
    assert list(own) == list(other)
    with pytest.raises(ValueError, match="strength"):
        KroneckerDouglasRachford(strength=-1.0)
    made = KroneckerDouglasRachford(strength=float("inf"), damping=1.0, samples=12)
    before: list[torch.Tensor] = []

    def after_task(walk, task):
        before.append(walk.model.trunk.fc1.weight.detach().clone())

    Walk(made, toy_stream(tasks=2), epochs=1).run(after_task=after_task)
    assert torch.equal(before[0], before[1])


def test_the_share_of_directions_held_is_recorded_with_every_task_but_the_first():
    """All of them with an infinite strength; most with a share to hold, whatever single weights do; none known else."""
    shares = {}
    for name, options in {
        "all": {"strength": float("inf"), "damping": 1.0},
        "most": {"stable": 0.8, "prox": "l1"},
    }.items():
        made = learner(methods.get("drcl-kronecker")(samples=None, **options), on=stream(tasks=2))
        made.run()
        first, shares[name] = made.diary.values["directions_held"]
        assert math.isnan(first)
    assert shares["all"] == 1.0
    assert 0.7 < shares["most"] < 1.0
    other = learner(methods.get("drcl")(samples=None), on=stream(tasks=2))
    other.run()
    assert all(math.isnan(share) for share in other.diary.values["directions_held"])
