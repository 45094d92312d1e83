"""SB-MCL: statistics that no order disturbs, densities against scipy, and an encoder that stays where it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.lab.methods.loop import CNN, KINDS, Walk, assert_resumes, assert_same_weights, toy_stream

from drcl.lab import methods
from drcl.lab.methods.sb_mcl import SBMCL, merged, summary
from drcl.lab.streams import Task


def everything(walk: Walk) -> dict[str, torch.Tensor]:
    return {name: t.clone() for name, t in walk.model.state_dict().items()}


# ---- statistics


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10_000), st.integers(1, 12))
def test_sequential_statistics_are_batch_statistics_in_any_order(count, seed, parts):
    rng = np.random.default_rng(seed)
    z = rng.normal(50, 3, (count, 4))
    shuffled = z[rng.permutation(count)]
    known = None
    for piece in np.array_split(shuffled, parts):
        if len(piece):
            known = merged(known, summary(torch.from_numpy(piece)))
    assert known["count"] == count
    np.testing.assert_allclose(known["mean"], z.mean(0), rtol=1e-12)
    np.testing.assert_allclose(known["spread"], ((z - z.mean(0)) ** 2).sum(0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("score", ["student-t", "gaussian"])
@pytest.mark.parametrize("count", [1, 2, 30])
def test_densities_against_scipy(score, count):
    rng = np.random.default_rng(count)
    seen, new = rng.normal(2, 1.5, (count, 5)), rng.normal(0, 3, (7, 5))
    method = SBMCL(score=score, alpha0=3.0, beta0=4.0)
    found = method.density(torch.from_numpy(new), summary(torch.from_numpy(seen)))
    mean = seen.mean(0)
    alpha, beta = 3 + count / 2, 4 + 0.5 * ((seen - mean) ** 2).sum(0)
    if score == "student-t":
        wanted = stats.t.logpdf(new, 2 * alpha, mean, np.sqrt(beta * (count + 1) / (alpha * count)))
    else:
        wanted = stats.norm.logpdf(new, mean, np.sqrt(beta / (alpha - 0.5)))
    np.testing.assert_allclose(found, wanted.sum(1), rtol=1e-10)


def test_the_density_is_the_one_bayes_rule_gives():
    """Over means and precisions, by brute force: the likelihood of what was seen times that of a new example."""
    seen, alpha0, beta0 = np.array([0.3, 1.1, 0.7]), 2.5, 1.5
    precision = np.linspace(1e-4, 25, 6000)[:, None]
    mean = np.linspace(-25, 26, 6001)[None, :]
    prior = precision ** (alpha0 - 1) * np.exp(-beta0 * precision)

    def likelihood(values: np.ndarray) -> np.ndarray:
        total = np.ones_like(precision * mean)
        for value in values:
            total *= np.sqrt(precision) * np.exp(-0.5 * precision * (value - mean) ** 2)
        return total

    # Flat in the mean is the limit of N(0, 1 / (k precision)) for small k, which leaves the root of the precision.
    weight = prior * np.sqrt(precision) * likelihood(seen)
    method = SBMCL(alpha0=alpha0, beta0=beta0)
    known = summary(torch.from_numpy(seen[:, None]))
    for new in (-1.0, 0.7, 2.0):
        ratio = (weight * likelihood(np.array([new]))).sum() / weight.sum() / np.sqrt(2 * np.pi)
        found = method.density(torch.tensor([[new]], dtype=torch.float64), known).item()
        assert found == pytest.approx(np.log(ratio), abs=2e-3)


# ---- reading i: a frozen encoder


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_encoder_is_bit_identical_and_forgets_nothing(kind):
    after: list[dict[str, torch.Tensor]] = []
    logits: dict[int, torch.Tensor] = {}

    def look(walk: Walk, task: Task) -> None:
        after.append(everything(walk))
        assert after[0].keys() == after[-1].keys()
        assert all(torch.equal(after[0][n], t) for n, t in after[-1].items())
        for seen, old in logits.items():
            assert torch.equal(walk.logits(walk.stream[seen]), old)
        logits[task.index] = walk.logits(task)
        assert walk.method.gradients == 0

    stream = toy_stream()
    walk = Walk(SBMCL(), stream, kind, epochs=4).run(after_task=look)
    assert len(walk.losses) == 4 * 3  # 24 images in batches of 8: the first task alone has steps
    last = walk.accuracy[-1]
    assert [row[-1] for row in walk.accuracy] == last  # as right as on the day they were learned
    assert last[0] == 1.0
    # The statistics are those of all training images of a class together.
    walk.model.eval()
    for task in stream:
        x, y = task.train.take(slice(None))
        with torch.no_grad():
            z = walk.model.features(x, 0).double().numpy()
        for label in task.labels:
            known, own = walk.method.classes[f"head {task.head} class {label}"], z[y.numpy() == label]
            assert known["count"] == len(own)
            np.testing.assert_allclose(known["mean"], own.mean(0), rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(known["spread"], ((own - own.mean(0)) ** 2).sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("norm", ["shared", "per-task", "frozen", "group", "batch"])
def test_a_frozen_encoder_keeps_the_norm_statistics_it_was_trained_with(norm):
    walk = Walk(SBMCL(), toy_stream(), CNN | {"norm": norm}, epochs=3)
    first: dict[str, torch.Tensor] = {}

    def look(walk: Walk, task: Task) -> None:
        if not first:
            first.update(everything(walk))
        assert all(torch.equal(first[n], t) for n, t in everything(walk).items() if not n.endswith(".frozen"))
        if task.index and norm == "per-task":
            x, _ = task.test.take(slice(None))
            with torch.no_grad():
                wanted = walk.model.features(x, 0).double()
                assert torch.equal(walk.method.features(x, task), wanted)
                assert not torch.equal(walk.model.features(x, task.head).double(), wanted)

    walk.run(after_task=look)
    assert walk.accuracy[-1][0] >= 0.8


@pytest.mark.parametrize("kind", KINDS)
def test_classes_that_come_again_go_on_with_their_statistics(kind):
    """In a domain-incremental stream: as if all tasks had been one."""
    stream = toy_stream("domain")
    walk = Walk(SBMCL(), stream, kind).run()
    data = [task.train.take(slice(None)) for task in stream]
    x, y = torch.cat([d[0] for d in data]), torch.cat([d[1] for d in data]).numpy()
    walk.model.eval()
    with torch.no_grad():
        z = walk.model.features(x, 0).double().numpy()
    for label in stream[0].labels:
        known, own = walk.method.classes[f"head 0 class {label}"], z[y == label]
        assert known["count"] == len(own)
        np.testing.assert_allclose(known["mean"], own.mean(0), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(known["spread"], ((own - own.mean(0)) ** 2).sum(0), rtol=1e-5, atol=1e-6)


def test_only_classes_that_have_come_are_answered():
    stream = toy_stream("class")
    walk = Walk(SBMCL(), stream)
    walk.task(stream[0], 4)
    walk.task(stream[1], 4)
    logits = walk.logits(stream[0])
    assert (logits[:, 4:] == torch.finfo(torch.float32).min).all()
    assert (logits[:, :4] > torch.finfo(torch.float32).min).all()
    assert (walk.logits(stream[0]).argmax(1) < 4).all()


def test_a_task_without_statistics_is_answered_by_its_head():
    walk = Walk(SBMCL(), toy_stream())
    walk.task(walk.stream[0], 1)
    x, _ = walk.stream[1].test.take(slice(None))
    assert torch.equal(walk.logits(walk.stream[1]), walk.model(x, 1))


# ---- reading ii: an encoder fine-tuned in every task


@pytest.mark.parametrize("kind", KINDS)
def test_a_tuned_encoder_is_trained_as_fine_tuning_does_and_old_statistics_stay(kind):
    kept: dict[str, dict] = {}

    def look(walk: Walk, task: Task) -> None:
        for name, old in kept.items():
            now = walk.method.classes[name]
            assert now["count"] == old["count"]
            assert torch.equal(now["mean"], old["mean"])
            assert torch.equal(now["spread"], old["spread"])
        kept.update({n: {k: v.clone() if k != "count" else v for k, v in s.items()} for n, s in classes(walk).items()})

    def classes(walk: Walk) -> dict[str, dict]:
        return walk.method.classes

    walk = Walk(SBMCL(encoder="tuned"), toy_stream(), kind).run(after_task=look)
    assert_same_weights(walk.model, Walk(methods.get("sgd")(), toy_stream(), kind).run().model)
    assert len(kept) == 6
    # The features of the first task have moved away from the statistics: that is where forgetting comes from.
    task = walk.stream[0]
    x, y = task.train.take(slice(None))
    walk.model.eval()
    with torch.no_grad():
        now = walk.model.features(x[y == 0], 0).double().mean(0)
    assert not torch.allclose(now, kept["head 0 class 0"]["mean"], rtol=1e-3)


def test_the_posterior_only_sharpens():
    """In a domain-incremental stream alpha and beta grow with every task."""
    seen: list[tuple[int, torch.Tensor]] = []

    def look(walk: Walk, task: Task) -> None:
        known = walk.method.classes["head 0 class 0"]
        if seen:
            assert known["count"] > seen[-1][0]
            assert (known["spread"] >= seen[-1][1]).all()
        seen.append((known["count"], known["spread"].clone()))

    Walk(SBMCL(encoder="tuned"), toy_stream("domain"), epochs=1).run(after_task=look)
    assert len(seen) == 3


# ---- as for all methods


@pytest.mark.parametrize("kind", KINDS)
def test_resume(kind):
    assert_resumes(lambda: SBMCL(encoder="tuned"), kind)
    stream = toy_stream()
    whole = Walk(SBMCL(), stream, kind).run()
    part = Walk(SBMCL(), stream, kind).run(stop=(0, 4))
    rest = Walk(SBMCL(), stream, kind).run(resume=part.saved)
    assert_same_weights(whole.model, rest.model)
    assert whole.accuracy == rest.accuracy
    for name, known in whole.method.classes.items():
        assert torch.equal(known["mean"], rest.method.classes[name]["mean"])


def test_state_is_two_numbers_a_class_and_feature():
    walk = Walk(SBMCL(), toy_stream(), {"kind": "mlp", "hidden": [12, 10]}, epochs=1).run()
    assert walk.method.state_bytes() == 8 * 2 * 10 * 6


@pytest.mark.parametrize("wrong", [{"alpha0": 0.0}, {"beta0": -1.0}, {"beta0": float("inf")}])
def test_bad_values_are_named(wrong):
    (key,) = wrong
    with pytest.raises(ValueError, match=f"sb-mcl: {key}="):
        methods.get("sb-mcl")(**wrong)


def test_an_online_stream_needs_an_encoder_that_steps():
    with pytest.raises(ValueError, match=r"sb-mcl: encoder='frozen' .* use encoder='tuned'"):
        Walk(SBMCL(), toy_stream(), online=True)
    Walk(SBMCL(encoder="tuned"), toy_stream(), online=True)
