"""DRCL as a contestant: its options reach the library, by the library's own names and checks."""

from __future__ import annotations

import pytest

from drcl import Kronecker
from drcl.lab.methods.drcl import DouglasRachford

from .loop import Walk, assert_resumes, toy_stream


def kronecker(**options) -> DouglasRachford:
    return DouglasRachford(importance="kronecker", samples=12, prox="l2", **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"convolutions": "channels"}, {"rank": 2}, {"rank": 2, "rest": "free"}, {"energy": 0.6}],
    ids=str,
)
def test_the_options_of_kronecker_are_reachable(options):
    walk = Walk(kronecker(**options), toy_stream(tasks=2), "cnn", epochs=1).run()
    anchor = walk.method._optimizer.anchor
    told, wanted = anchor.provenance["made"][1], Kronecker(samples=12, **options).describe()
    assert told == wanted | {"seed": told["seed"]}
    conv = next(iter(anchor.bases.values()))
    assert (conv.eigenvalues.shape[1] > 1) == (options.get("convolutions") == "channels")
    assert all((b.rest is None) == (b.complete or options.get("rest") == "free") for b in anchor.bases.values())
    if "rank" in options:
        assert all(max(b.eigenvalues.shape[2:]) <= 2 for b in anchor.bases.values())
    if "energy" in options:
        assert not all(b.complete for b in anchor.bases.values())


@pytest.mark.parametrize("normalise", ["global", "tensor"])
@pytest.mark.parametrize("importance", ["fisher", "kronecker"])
def test_normalise_gives_every_layer_mean_one(importance, normalise):
    method = DouglasRachford(importance=importance, samples=12, normalise=normalise)
    anchor = Walk(method, toy_stream(tasks=2), epochs=1).run().method._optimizer.anchor
    if importance == "fisher":
        means = [float(t.mean()) for t in anchor.importance.values()]
    else:
        means = [b.total / b.directions for b in anchor.bases.values()]
    assert (means == pytest.approx([1.0] * len(means), rel=1e-3)) == (normalise == "tensor")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"rank": 0}, "rank=0"), ({"energy": 0.0}, "energy=0.0"), ({"normalise": "layer"}, "normalise='layer'")],
)
def test_bad_values_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        DouglasRachford(**options)


@pytest.mark.parametrize("options", [{"normalise": "tensor"}, {"normalise": "tensor", "rank": 3}], ids=str)
def test_it_resumes(options):
    assert_resumes(lambda: kronecker(**options), "cnn")
