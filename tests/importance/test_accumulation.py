"""Units of importance and sums over tasks, by hand and against operators written out in full."""

import pytest
import torch

from drcl.directions.basis import Eigenbasis
from drcl.importance import History, Measured
from drcl.importance.accumulation import (
    accumulated,
    add_diagonal,
    add_diagonal_to_factors,
    add_eigenvalues,
    add_factors,
    in_estimators_unit,
    in_unit,
    keep_of,
    task_sum,
    unit_of,
)


def told(weight, bias):
    return {"weight": torch.tensor([weight]).double(), "bias": torch.tensor([bias]).double()}


def numbers(importance):
    return [*importance["weight"].flatten().tolist(), *importance["bias"].tolist()]


@pytest.mark.parametrize(("memory", "keep"), [("sum", 1.0), ("latest", 0.0), (0, 0.0), (0.25, 0.25), (1, 1.0)])
def test_what_memory_keeps(memory, keep):
    assert keep_of(memory) == keep


@pytest.mark.parametrize(("normalise", "wanted"), [("task", 12.0), ("share", 1e6), ("global", None)])
def test_what_a_task_sums_up_to(normalise, wanted):
    assert task_sum(normalise, 12) == wanted
    unit = unit_of(History(normalise=normalise), 4.0, 12)
    assert unit == (1.0 if wanted is None else wanted / 4)
    for nothing in (0.0, float("inf"), float("nan")):
        assert unit_of(History(normalise=normalise), nothing, 12) == 1.0


@pytest.mark.parametrize(
    ("normalise", "expected"),
    [("task", [0.5, 1.0, 1.5]), ("share", [1e6 / 6, 1e6 / 3, 1e6 / 2]), ("global", [1.0, 2.0, 3.0])],
)
def test_a_task_in_its_unit(normalise, expected):
    history, measured = History(normalise=normalise), Measured(told([1.0, 2.0], 3.0))
    found = in_unit(history, measured)
    assert numbers(found.importance) == pytest.approx(expected)
    assert numbers(measured.importance) == [1.0, 2.0, 3.0]  # what was given is left alone
    assert numbers(in_unit(history, found).importance) == numbers(found.importance)  # once is enough


@pytest.mark.parametrize("bad", [[0.0, 0.0, 0.0], [float("nan"), 1.0, 1.0], [-3.0, 1.0, 1.0], [float("inf"), 1.0, 1.0]])
def test_what_has_no_unit_is_left_as_it_came(bad):
    found = in_unit(History(normalise="task"), Measured(told(bad[:2], bad[2])))
    assert str(numbers(found.importance)) == str(bad)


@pytest.mark.parametrize("keep", [1.0, 0.0, 0.5])
def test_single_weights_add_up_in_units_of_the_mean_of_the_sum(keep):
    """Raw (1, 2, 3), of mean 2, then (4, 0, 2)."""
    history = History(importance=told([0.5, 1.0], 1.5), mean=2.0, keep=keep)
    found = accumulated(history, Measured(told([4.0, 0.0], 2.0)))
    raw = [4 + keep * 1, keep * 2, 2 + keep * 3]
    assert found.mean == pytest.approx(sum(raw) / 3)
    assert numbers(found.importance) == pytest.approx([v / found.mean for v in raw])


@pytest.mark.parametrize("normalise", ["task", "share"])
def test_tasks_in_their_own_units_are_not_divided_again(normalise):
    history = History(importance=told([0.5, 1.0], 1.5), mean=1.0, keep=0.5, normalise=normalise)
    found = accumulated(history, Measured(told([4.0, 0.0], 2.0), in_unit=True))
    assert (found.mean, numbers(found.importance)) == (1.0, [4.25, 0.5, 2.75])


def test_what_is_already_summed_is_not_summed_again_and_newcomers_start_at_nothing():
    history = History(importance={"weight": torch.ones(1, 2).double()}, mean=1.0, keep=1.0, normalise="task")
    found = accumulated(history, Measured(told([4.0, 0.0], 2.0), with_earlier=frozenset({"weight"})))
    assert numbers(found.importance) == [4.0, 0.0, 2.0]
    assert numbers(accumulated(history, Measured(told([4.0, 0.0], 2.0))).importance) == [5.0, 1.0, 2.0]


@pytest.mark.parametrize(("normalise", "mean"), [("global", 0.0), ("task", 1.0), ("share", 1.0)])
def test_a_sum_of_nothing_is_told(normalise, mean):
    with pytest.warns(UserWarning, match="zero for every weight"):
        found = accumulated(History(normalise=normalise), Measured(told([0.0, 0.0], 0.0)))
    assert (found.mean, numbers(found.importance)) == (mean, [0.0, 0.0, 0.0])


# -- layers with directions ------------------------------------------------------------------------------------------


def random_factors(generator, groups=2, outputs=3, inputs=4):
    roots = [torch.randn(groups, n, n, generator=generator).double() for n in (inputs, outputs)]
    return [r @ r.mT for r in roots]


def layer(seed=0, count=1.0, positions=1):
    """A complete basis of two groups with random everything."""
    generator = torch.Generator().manual_seed(seed)
    a, g = random_factors(generator)
    u, v = (torch.linalg.eigh(f).eigenvectors for f in (a, g))
    values = torch.rand(2, positions, 3, 4, generator=generator).double()
    return Eigenbasis(u, v, values, a, g, bias=False, count=count)


def test_bases_are_held_in_the_unit_of_everything_else():
    basis = layer()
    measured = Measured(told([1.0, 2.0], 3.0), {"layer": basis})
    found = accumulated(History(), measured)
    torch.testing.assert_close(found.bases["layer"].eigenvalues * 2.0, basis.eigenvalues)
    assert torch.equal(found.bases["layer"].output_factor, basis.output_factor)
    own = accumulated(History(normalise="task"), measured)
    assert torch.equal(own.bases["layer"].eigenvalues, basis.eigenvalues)


@pytest.mark.parametrize("keep", [1.0, 0.3])
def test_factors_are_summed_each_for_itself(keep):
    old, (a, g) = layer(count=1.5), random_factors(torch.Generator().manual_seed(9))
    before = a.clone(), g.clone()
    assert add_factors(History(keep=keep), a, g, old) == pytest.approx(1 + keep * 1.5)
    torch.testing.assert_close(a, before[0] + keep * old.input_factor)
    torch.testing.assert_close(g, before[1] + keep * old.output_factor)


@pytest.mark.parametrize("positions", [1, 5])
@pytest.mark.parametrize("rotated", [True, False])
def test_single_weights_become_factors_with_their_sums(positions, rotated):
    """The product of what is added has, in each group, the row sums and column sums of the weights' importance.

    Factors have one product for all kernel positions, so sums over positions are what can be kept.
    """
    generator = torch.Generator().manual_seed(1)
    a, g = random_factors(generator)
    a, g = (a, g) if rotated else (a.diagonal(dim1=1, dim2=2).clone(), g.diagonal(dim1=1, dim2=2).clone())
    before = a.clone(), g.clone()
    earlier = torch.rand(2, positions, 3, 4, generator=generator).double()
    earlier[1, :, 2] = 0  # an output that no task needed
    assert add_diagonal_to_factors(History(keep=0.5), a, g, earlier) == 1.5
    added = [(now - then) / 0.5 for now, then in zip((a, g), before)]
    if rotated:
        for more in added:
            torch.testing.assert_close(more, torch.diag_embed(more.diagonal(dim1=1, dim2=2)))
        added = [more.diagonal(dim1=1, dim2=2) for more in added]
    product = added[1][:, :, None] * added[0][:, None, :] * positions
    torch.testing.assert_close(product.sum(1), earlier.sum((1, 2)))
    torch.testing.assert_close(product.sum(2), earlier.sum((1, 3)))


def test_a_group_without_importance_or_inputs_adds_nothing():
    a, g = torch.eye(4).double().repeat(2, 1, 1), torch.eye(3).double().repeat(2, 1, 1)
    a[1] = 0
    before = a.clone(), g.clone()
    earlier = torch.ones(2, 1, 3, 4).double()
    earlier[0] = 0
    add_diagonal_to_factors(History(keep=1.0), a, g, earlier)
    assert torch.equal(a, before[0])
    assert torch.equal(g, before[1])


def test_eigenvalues_come_in_the_unit_that_is_held_and_weights_in_the_estimators():
    history = History(mean=4.0, keep=0.5)
    earlier, values = torch.rand(1, 1, 2, 3).double(), torch.rand(1, 1, 2, 3).double()
    along, single = values.clone(), values.clone()
    add_eigenvalues(history, along, earlier)
    add_diagonal(history, single, in_estimators_unit(history, earlier))
    torch.testing.assert_close(along, values + 2.0 * earlier)
    torch.testing.assert_close(single, along)
