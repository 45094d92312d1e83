"""POCL: the shortest vector of a hull against a quadratic program, hypergradients against finite differences, and
steps that go against no earlier task."""

from __future__ import annotations

import cvxpy
import numpy as np
import pytest
import torch
from tests.lab.methods.loop import KINDS, Walk, assert_resumes, assert_same_weights, network, toy_stream, weights

from drcl.lab import methods
from drcl.lab.methods.base import Batch, Setting, mixed_cross_entropy
from drcl.lab.methods.pocl import POCL, gram, min_norm

# ---- the shortest vector


def by_program(products: np.ndarray) -> float:
    """Its squared length, from a quadratic program."""
    share = cvxpy.Variable(len(products), nonneg=True)
    values, vectors = np.linalg.eigh(products)
    root = vectors * np.sqrt(values.clip(0))
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(root.T @ share)), [cvxpy.sum(share) == 1])
    return float(problem.solve(solver=cvxpy.CLARABEL))


@pytest.mark.parametrize("shift", [0.0, 0.7, 3.0])  # the hull holds the origin, nearly, or is far from it
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 12])
def test_shortest_vector_against_a_quadratic_program(count, shift):
    rng = np.random.default_rng(count)
    for dimension in (2, 3, 7, 40):
        for _ in range(4):
            vectors = rng.normal(size=(count, dimension)) + shift
            check_optimum(vectors @ vectors.T)


def test_shortest_vector_of_dependent_vectors():
    rng = np.random.default_rng(1)
    base = rng.normal(size=(2, 5)) + 1
    repeated = np.concatenate([base, base, base[:1] * 0.5 + base[1:] * 0.5])
    check_optimum(repeated @ repeated.T)
    scales = rng.normal(size=(4, 6)) * np.array([[1e-4], [1.0], [1e3], [1.0]])
    check_optimum(scales @ scales.T)


def check_optimum(products: np.ndarray) -> None:
    share = min_norm(products)
    largest = products.diagonal().max()
    assert (share >= 0).all()
    assert share.sum() == pytest.approx(1, abs=1e-12)
    along, square = products @ share, float(share @ products @ share)
    assert (along >= square - 1e-6 * largest).all()  # v . g_i >= |v|^2: the conditions of Karush, Kuhn and Tucker
    assert square == pytest.approx(by_program(products), abs=2e-7 * largest)


def test_shortest_vectors_by_hand():
    assert min_norm(np.array([[4.0]])).tolist() == [1.0]
    assert min_norm(np.zeros((3, 3))).tolist() == pytest.approx([1 / 3] * 3)
    assert min_norm(np.full((2, 2), 9.0)).sum() == pytest.approx(1)
    opposite = np.array([[1.0], [-3.0]])
    assert min_norm(opposite @ opposite.T).tolist() == pytest.approx([0.75, 0.25])
    behind = np.array([[1.0, 0.0], [5.0, 1.0]])  # the first is the nearest point of the segment
    assert min_norm(behind @ behind.T).tolist() == pytest.approx([1.0, 0.0])


def test_gram_is_the_matrix_of_inner_products():
    rng = torch.Generator().manual_seed(0)
    vectors = [{"a": torch.randn(3, 2, generator=rng), "b": torch.randn(4, generator=rng)} for _ in range(3)]
    del vectors[2]["b"]  # not reached by that task
    flat = np.stack([np.concatenate([v["a"].flatten(), v.get("b", torch.zeros(4))]) for v in vectors]).astype(float)
    np.testing.assert_allclose(gram(vectors), flat @ flat.T, rtol=1e-6)


# ---- hypergradients


def doubled(kind: str, **how) -> tuple[POCL, dict[str, torch.nn.Parameter], Batch, Batch]:
    """Before any training, in double: the method, its parameters, a batch of one task and one of both."""
    stream = toy_stream()
    method = POCL(**how)
    method.build(network(kind, stream).double(), Setting("task", 3, stream.heads, stream.shape, 0, 0.1, 0.0, 8))
    parts = []
    for task in stream[:2]:
        method.before_task(task)
        x, y = task.train.take(slice(0, 6))
        parts.append(Batch(x.double(), y, task.head))
    return method, dict(method.parameters(stream[1])), parts[0], parts[1].with_more(parts[0])


def after_the_step(method: POCL, own: dict, part: Batch, everything: Batch) -> torch.Tensor:
    """The loss of everything after a step on `part`, by moving the weights and putting them back."""
    kept = weights(method.model)
    inner = torch.autograd.grad(mixed_cross_entropy(method.model, part), list(own.values()), allow_unused=True)
    with torch.no_grad():
        for p, g in zip(own.values(), inner, strict=True):
            if g is not None:
                p.sub_(method.inner_lr * g)
    loss = mixed_cross_entropy(method.model, everything)
    gradients = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
    with torch.no_grad():
        for name, p in own.items():
            p.copy_(kept[name])
    method.after = dict(zip(own, gradients, strict=True))
    return loss.detach()


@pytest.mark.parametrize("kind", KINDS)
def test_the_exact_hypergradient_against_finite_differences(kind):
    method, own, part, everything = doubled(kind, inner_lr=0.5, exact=True)
    found = method.hypergradient(own, part, everything)
    rng = torch.Generator().manual_seed(2)
    first_order = POCL(inner_lr=0.5)
    first_order.__dict__.update({k: v for k, v in method.__dict__.items() if k not in ("inner_lr", "exact")})
    rough = first_order.hypergradient(own, part, everything)
    apart = 0.0
    for name, p in own.items():
        if name not in found:
            continue
        for place in torch.randint(p.numel(), (6,), generator=rng).tolist():
            values, kept = [], p.detach().flatten()[place].item()
            for step in (1e-6, -1e-6):
                with torch.no_grad():
                    p.view(-1)[place] = kept + step
                values.append(float(after_the_step(method, own, part, everything)))
            with torch.no_grad():
                p.view(-1)[place] = kept
            slope = (values[0] - values[1]) / 2e-6
            assert found[name].flatten()[place].item() == pytest.approx(slope, rel=1e-4, abs=1e-7), name
            apart = max(apart, abs(rough[name].flatten()[place].item() - slope))
    assert apart > 1e-3  # at the end of the step the gradient is another one: the test tells them apart


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_order_form_is_the_gradient_at_the_end_of_the_step(kind):
    method, own, part, everything = doubled(kind, inner_lr=0.3)
    before = weights(method.model)
    found = method.hypergradient(own, part, everything)
    assert all(torch.equal(before[n], p) for n, p in method.model.named_parameters())
    after_the_step(method, own, part, everything)
    for name, g in method.after.items():
        torch.testing.assert_close(found[name], g, rtol=1e-9, atol=1e-12)
    inner = torch.autograd.grad(mixed_cross_entropy(method.model, part), own.values(), allow_unused=True)
    known = {n: g for n, g in zip(own, inner, strict=True) if g is not None}
    again = method.hypergradient(own, part, everything, known)
    assert all(torch.equal(again[n], g) for n, g in found.items())


# ---- steps


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_each_step_over_three_tasks_goes_against_no_earlier_task(kind, exact):
    method = POCL(memory=40, replay=20, inner_lr=0.1, exact=exact)
    walk = Walk(method, toy_stream(), kind)
    seen = []

    def watch(moment, batch):
        if moment != "edited" or not method._earlier:
            return
        step = {n: p.grad.clone() for n, p in walk.model.named_parameters() if p.grad is not None}
        own = method.parameters(walk.stream[method.at.task])
        everything = method._current
        for part in method._earlier:
            everything = everything.with_more(part)
        old = [method.hypergradient(own, part, everything) for part in method._earlier]
        new = method.hypergradient(own, method._current, everything)
        assert set(step) == set(new)
        v = {n: step[n] - new[n] for n in step}
        square = float(gram([v])[0, 0])
        products = gram([v, *old])[0, 1:]
        assert (products >= square - 1e-4 * gram(old).diagonal().max()).all()
        assert square == pytest.approx(by_program(gram(old)), rel=1e-3, abs=1e-6)
        seen.append(len(old))

    walk.run(watch)
    assert set(seen) == {1, 2}
    assert [len(row) for row in walk.accuracy] == [1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_without_virtual_steps_it_is_twice_replay(kind):
    method = POCL(memory=40, replay=10, inner_lr=0.0)
    walk = Walk(method, toy_stream(), kind)
    seen = []

    def watch(moment, batch):
        if moment != "edited" or not method._earlier:
            return
        everything = method._current
        for part in method._earlier:
            everything = everything.with_more(part)
        assert len(everything) == 8 + 10
        own = method.parameters(walk.stream[method.at.task])
        wanted = torch.autograd.grad(mixed_cross_entropy(walk.model, everything), own.values(), allow_unused=True)
        for (name, p), g in zip(own.items(), wanted, strict=True):
            if g is None:
                assert p.grad is None, name
            else:
                torch.testing.assert_close(p.grad, 2 * g, rtol=1e-4, atol=1e-6)
        seen.append(method.at.task)

    walk.run(watch)
    assert set(seen) == {1, 2}


def test_the_first_task_is_fine_tuning():
    one = toy_stream()[:1]
    assert_same_weights(Walk(POCL(), one).run().model, Walk(methods.get("sgd")(), one).run().model)


@pytest.mark.parametrize("scenario", ["domain", "class"])
def test_tasks_that_share_a_head_are_told_apart(scenario):
    method = POCL(memory=60, replay=30)
    parts = []

    def watch(moment, batch):
        if moment == "edited":
            parts.append(len(method._earlier))
            # The logits of the batch itself, which the accuracy before an update is counted from
            with torch.no_grad():
                torch.testing.assert_close(method.logits, walk.model(batch.x, 0), rtol=1e-4, atol=1e-5)

    walk = Walk(method, toy_stream(scenario))
    walk.run(watch)
    assert set(parts) == {0, 1, 2}
    assert set(method.state["memory"]["head"].tolist()) == {0, 1, 2}  # numbers of tasks
    assert len(walk.accuracy[-1]) == 3


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("norm", ["shared", "per-task"])
def test_norm_statistics_see_each_step_once(norm, exact):
    method = POCL(memory=40, replay=12, exact=exact)
    spec = {"kind": "mlp", "hidden": [6], "norm": norm}
    walk = Walk(method, toy_stream(), spec, epochs=1)
    before: dict[str, torch.Tensor] = {}

    def watch(moment, batch):
        layer = walk.model.trunk.norm1
        if moment == "edited" and norm == "per-task":
            assert all(torch.equal(layer.task_mean[t], before["mean"][t]) for t in range(method.at.task))
        if moment == "stepped":
            if norm == "shared":
                assert int(layer.num_batches_tracked) == len(walk.losses)
            else:
                before["mean"] = layer.task_mean.clone()

    before["mean"] = walk.model.trunk.norm1.task_mean.clone() if norm == "per-task" else torch.zeros(())
    walk.run(watch)
    assert len(walk.accuracy[-1]) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_it_remembers(kind):
    walk = Walk(POCL(memory=60, replay=30), toy_stream(), kind, epochs=6, lr=0.02).run()
    assert min(walk.accuracy[-1]) >= 0.9


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_resume(kind, exact):
    assert_resumes(lambda: POCL(memory=20, replay=10, exact=exact), kind)


def test_state_is_the_memory_and_passes_are_counted():
    method = POCL(memory=20, replay=10)
    walk = Walk(method, toy_stream(), epochs=1)
    passes = []

    def watch(moment, batch):
        if moment == "edited":
            # two for each earlier task, and one for the task at hand beside the learner's own
            passes.append(2 * len(method._earlier) + 1 if method._earlier else 0)

    walk.run(watch)
    assert method.state_bytes() == 20 * (64 * 4 + 8 + 8)
    assert method.gradients == sum(passes) > 0


@pytest.mark.parametrize("wrong", [{"memory": 0}, {"replay": 0}, {"inner_lr": -0.1}, {"inner_lr": float("nan")}])
def test_bad_values_are_named(wrong):
    (key,) = wrong
    with pytest.raises(ValueError, match=f"pocl: {key}="):
        methods.get("pocl")(**wrong)
