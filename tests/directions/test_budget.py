"""A bound on the bytes of directions: what is counted is what is held, and the largest layers give way first."""

import pytest
import torch
from tests.directions.problems import everything
from torch import nn

from drcl import DRCL, Fisher, Kronecker
from drcl.directions.budget import Choice, Size, as_bytes, fit


@pytest.mark.parametrize(
    ("given", "expected"),
    [("2GB", 2_000_000_000), ("1.5 KiB", 1536), ("300 mb", 300_000_000), ("64", 64), (1024, 1024), (2e3, 2000)],
)
def test_bytes_are_read(given, expected):
    assert as_bytes(given) == expected
    assert Kronecker(memory=given).describe()["memory"] == expected


@pytest.mark.parametrize("given", ["2 apples", "", "-1GB", 0, -3, float("nan"), float("inf"), True, [], "GB"])
def test_what_is_no_number_of_bytes_is_refused(given):
    with pytest.raises(ValueError, match=r"Kronecker\(memory=.*bytes, a number or a text such as '2GB'"):
        Kronecker(memory=given)


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(6, 80, 3, padding=1), nn.ReLU(), nn.Conv2d(80, 40, 2, groups=2, stride=2, bias=False), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(160, 100), nn.ReLU(), nn.Linear(100, 3)),
    )


DATA = [(torch.randn(6, 6, 4, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0, 1, 2]))]


def held(bases):
    return sum(b.floats for b in bases.values()) * 4


@pytest.mark.parametrize("memory", [10**9, 400_000, 200_000, 100_000, 40_000, 10_000, 100])
def test_what_is_held_fits_and_is_what_was_counted(memory):
    model = network()
    measured = Kronecker(memory=memory).measure(model, DATA, everything(model))
    assert held(measured.bases) <= memory
    assert set(measured.notes["layers"]) == {"0.weight", "2.weight", "5.weight", "7.weight"}
    assert {n for n, words in measured.notes["layers"].items() if words != "diagonal"} == set(measured.bases)
    assert set(measured.importance) == set(everything(model))
    passes_count = {
        name: Size.of(model.get_submodule(name.removesuffix(".weight"))).bytes(
            Choice(
                rank=int(words.split()[1].rstrip(",")),
                apart="channels" in words,
                bias=basis.bias,
                inputs=basis.inputs is not None,
                outputs=basis.outputs is not None,
            )
        )
        for name, words in measured.notes["layers"].items()
        if (basis := measured.bases.get(name)) is not None
    }
    assert sum(passes_count.values()) == held(measured.bases)


def test_enough_memory_changes_nothing():
    model = network()
    free = Kronecker().measure(model, DATA, everything(model))
    bound = Kronecker(memory="1GB").measure(model, DATA, everything(model))
    for name, basis in free.bases.items():
        assert torch.equal(basis.eigenvalues, bound.bases[name].eigenvalues)


def test_nothing_at_all_leaves_the_diagonal_fisher():
    model = network()
    found = Kronecker(memory=1, labels="exact").measure(model, DATA, everything(model))
    assert not found.bases
    for name, value in Fisher(labels="exact").estimate(model, DATA, everything(model)).items():
        torch.testing.assert_close(found.importance[name], value)


def test_importance_is_shared_out_whatever_the_memory():
    """Directions of a coarser layer still have the sum of its mean squared gradients."""
    model = network().double()
    data = [(DATA[0][0].double(), None)]
    exact = Fisher(labels="exact").estimate(model, data, everything(model))
    for memory in (800_000, 200_000, 80_000):
        found = Kronecker(memory=memory, labels="exact").measure(model, data, everything(model))
        assert sum(float(t.sum()) for t in found.importance.values()) == pytest.approx(
            sum(float(t.sum()) for t in exact.values()), rel=1e-6
        )


def test_the_largest_gives_way_first():
    sizes = {"large": Size(100, 200, 1, 1, 4), "small": Size(10, 10, 1, 1, 4)}
    finest = dict.fromkeys(sizes, Choice(256, False, True, True, True))
    whole = sum(size.bytes(finest[name]) for name, size in sizes.items())
    assert fit(sizes, finest, whole) == finest
    found = fit(sizes, finest, whole - 1)
    assert found["small"] == finest["small"]
    assert found["large"].rank == 128
    assert fit(sizes, finest, 1) == {"large": None, "small": None}


def test_tasks_add_up_under_a_bound_and_the_anchor_says_what_was_chosen():
    model = network()
    opt = DRCL(model.named_parameters(), lr=0.01, preset="directions")
    for _ in range(2):
        opt.consolidate(model, DATA, importance=Kronecker(memory=100_000))
    assert all(basis.count == 2 for basis in opt.anchor.bases.values())
    told = opt.anchor.provenance["made"][1]
    assert told["memory"] == 100_000
    assert "diagonal" not in (told["layers"][name] for name in opt.anchor.bases)
