"""The iteration itself: identities of the splitting, convex ground truth, and the three readings of one loop."""

import itertools
import math

import cvxpy as cp
import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso
from torch import nn

from drcl import DRCL, Anchor

SPLITTINGS = ("douglas-rachford", "forward-backward", "implicit")


class Vector(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.w = nn.Parameter(torch.as_tensor(start, dtype=torch.float64).clone())


def protected(anchor, importance, **arguments):
    """A model of one vector that stands at its anchor, with importance exactly as given."""
    model = Vector(anchor)
    opt = DRCL(model.named_parameters(), **arguments)
    opt.protect(model, Anchor({"w": model.w.detach().clone()}, {"w": torch.as_tensor(importance, dtype=torch.float64)}))
    return model, opt


def z_of(model, opt):
    with opt.deployed():
        return model.w.detach().clone()


def gradients(count, size, seed=0):
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_case(size=40, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=size), rng.exponential(size=size)


# -- identities ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strength", [0.0, 0.7, 5.0, math.inf])
def test_y_is_z_plus_gamma_g(strength):
    a, f = random_case()
    model, opt = protected(a, f, lr=0.05, strength=strength, splitting="douglas-rachford")
    for g in gradients(5, 40):
        model.w.grad = g.clone()
        opt.step()
        assert torch.equal(model.w.detach(), z_of(model, opt) + g * 0.05)


def test_algorithm_1_as_printed():
    """x, r, z, y with every intermediate kept, for twenty steps."""
    a, f = random_case()
    gamma, lam = 0.05, 1.5
    model, opt = protected(a, f, lr=gamma, strength=lam, splitting="douglas-rachford")
    y = a.copy()
    for g in gradients(20, 40):
        model.w.grad = g.clone()
        opt.step()
        x = y - gamma * g.numpy()
        r = 2 * x - y
        z = a + np.sign(r - a) * np.maximum(np.abs(r - a) - gamma * lam * f, 0)
        y = y + z - x
        np.testing.assert_allclose(model.w.detach().numpy(), y, atol=1e-14)
        np.testing.assert_allclose(z_of(model, opt).numpy(), z, atol=1e-14)


def test_without_strength_it_is_reflected_gradient_descent():
    """z_{k+1} = z_k - 2 gamma g_k + gamma g_{k-1}, with g_{-1} = 0."""
    a, f = random_case()
    model, opt = protected(a, f, lr=0.05, strength=0.0, splitting="douglas-rachford")
    z, last = torch.from_numpy(a), torch.zeros(40, dtype=torch.float64)
    for g in gradients(10, 40):
        model.w.grad = g.clone()
        opt.step()
        z = z - 2 * 0.05 * g + 0.05 * last
        last = g
        torch.testing.assert_close(z_of(model, opt), z, rtol=0, atol=1e-14)


@pytest.mark.parametrize("splitting", SPLITTINGS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_infinite_strength_leaves_z_at_the_anchor_bit_for_bit(splitting, dtype):
    a, f = random_case()
    f[::3] = 0  # no importance, held nevertheless
    model = Vector(a).to(dtype)
    opt = DRCL(model.named_parameters(), lr=0.05, strength=math.inf, splitting=splitting)
    anchor = model.w.detach().clone()
    opt.protect(model, Anchor({"w": anchor}, {"w": torch.from_numpy(f)}))
    for g in gradients(5, 40):

        def closure(g=g):
            model.w.grad = g.to(dtype)
            return 0.0

        opt.step(closure)
    assert torch.equal(z_of(model, opt), anchor)


def test_the_threshold_is_exact():
    """gamma 1/2, lam 2, F 1 about zero: r = -g and tau = 1, both exact. A weight at tau stays, one ulp more moves."""
    above = np.nextafter(1.0, 2.0)
    model, opt = protected(np.zeros(5), np.ones(5), lr=0.5, strength=2.0, splitting="douglas-rachford")
    model.w.grad = torch.tensor([1.0, above, -1.0, -above, 3.0], dtype=torch.float64)
    opt.step()
    assert z_of(model, opt).tolist() == [0.0, -(above - 1), 0.0, above - 1, -2.0]


def test_a_weight_moves_iff_twice_its_gradient_exceeds_lam_F():
    g, f = gradients(1, 2000)[0], np.abs(gradients(1, 2000, seed=1)[0].numpy())
    f[:5] = 2 * g[:5].abs().numpy()  # the boundary itself: stays
    for splitting, twice in (("douglas-rachford", 2), ("forward-backward", 1)):
        model, opt = protected(np.zeros(2000), f / 2 * twice, lr=0.25, strength=1.0, splitting=splitting)
        model.w.grad = g.clone()
        opt.step()
        moved = z_of(model, opt) != 0
        assert torch.equal(moved, 2 * g.abs() > torch.from_numpy(f))
        assert 0 < int(moved.sum()) < 1995


# -- convex ground truth -------------------------------------------------------------------------------------------


class LeastSquares:
    """|Xw - b|^2 / 2n + lam * sum F |w - a|, with about half of the weights held at the solution."""

    def __init__(self, n=200, d=20, lam=0.6, seed=3):
        rng = np.random.default_rng(seed)
        self.x, self.a, self.f, self.lam = rng.normal(size=(n, d)), rng.normal(size=d), rng.exponential(size=d), lam
        self.b = self.x @ rng.normal(size=d) + rng.normal(size=n)
        self.hessian = self.x.T @ self.x / n
        self.linear = self.x.T @ self.b / n
        self.curvature = float(np.linalg.eigvalsh(self.hessian)[-1])

    def gradient(self, w):
        return self.hessian @ w - self.linear

    def by_cvxpy(self):
        w = cp.Variable(len(self.a))
        loss = cp.sum_squares(self.x @ w - self.b) / (2 * len(self.b))
        penalty = self.lam * (self.f @ cp.abs(w - self.a))
        cp.Problem(cp.Minimize(loss + penalty)).solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12)
        return w.value

    def by_lasso(self):
        """v = F (w - a) turns the weighted penalty about an anchor into a plain Lasso."""
        lasso = Lasso(alpha=self.lam, fit_intercept=False, tol=1e-14, max_iter=100_000)
        return self.a + lasso.fit(self.x / self.f, self.b - self.x @ self.a).coef_ / self.f

    def solve(self, gamma_times_curvature, steps, **arguments):
        arguments = {"strength": self.lam, **arguments}
        model, opt = protected(self.a, self.f, lr=gamma_times_curvature / self.curvature, **arguments)
        hessian, linear = torch.from_numpy(self.hessian), torch.from_numpy(self.linear)

        def closure():
            model.w.grad = hessian @ model.w.detach() - linear
            return 0.0

        for _ in range(steps):
            opt.step(closure)
        return z_of(model, opt).numpy(), model.w.detach().numpy()


@pytest.fixture(scope="module")
def problem():
    return LeastSquares()


@pytest.fixture(scope="module")
def solution(problem):
    w = problem.by_cvxpy()
    np.testing.assert_allclose(problem.by_lasso(), w, atol=1e-6)
    held = np.abs(w - problem.a) < 1e-7
    assert 5 <= held.sum() <= 15
    return w


def test_forward_backward_reaches_the_minimiser(problem, solution):
    z, y = problem.solve(1.0, 300, splitting="forward-backward")
    np.testing.assert_allclose(z, solution, atol=1e-5)
    assert np.array_equal(z, y)
    # held means held: where the solution is at the anchor, z is the anchor itself
    assert np.array_equal(z == problem.a, np.abs(solution - problem.a) < 1e-7)


@pytest.mark.parametrize(("gamma_times_curvature", "inner_steps"), [(0.5, 40), (1.0, 40), (2.5, 80)])
def test_implicit_reaches_the_minimiser(problem, solution, gamma_times_curvature, inner_steps):
    """An inner step shrinks the error by |1 - gamma * curvature| / 2, so the largest lr takes the most of them."""
    z, _ = problem.solve(gamma_times_curvature, 80, splitting="implicit", inner_steps=inner_steps)
    np.testing.assert_allclose(z, solution, atol=1e-5)


def test_the_explicit_form_is_biased_and_the_bias_halves_with_gamma(problem, solution):
    steps = {0.1: 700, 0.05: 1400, 0.025: 2800}
    errors = []
    for gamma, count in steps.items():
        z, y = problem.solve(gamma, count, splitting="douglas-rachford")
        errors.append(np.abs(z - solution).max())
        # it has come to rest: y = z + gamma * g(y), so the residual alone proves nothing
        np.testing.assert_allclose(y, z + gamma / problem.curvature * problem.gradient(y), atol=1e-9)
    assert errors[0] > 1e-3
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.15)
    assert errors[1] / errors[2] == pytest.approx(2, rel=0.1)


def test_what_rests_at_a_fixed_point(problem):
    """At rest |g_i(y)| <= lam F_i where z is at the anchor, and g_i(y) = -lam F_i sign(z - a) elsewhere."""
    z, y = problem.solve(0.3, 600, splitting="douglas-rachford")
    g, bound = problem.gradient(y), problem.lam * problem.f
    held = z == problem.a
    assert 0 < held.sum() < len(held)
    assert np.all(np.abs(g[held]) <= bound[held])
    np.testing.assert_allclose(g[~held], -bound[~held] * np.sign(z - problem.a)[~held], atol=1e-9)


def test_the_quadratic_penalty_reaches_the_ridge_solution(problem):
    held = problem.lam * np.diag(problem.f)
    ridge = np.linalg.solve(problem.hessian + held, problem.linear + held @ problem.a)
    for splitting in ("forward-backward", "implicit"):
        z, _ = problem.solve(1.0, 80, splitting=splitting, prox="l2", inner_steps=40)
        np.testing.assert_allclose(z, ridge, atol=1e-8)


def test_a_penalty_that_would_blow_up_in_the_loss(problem):
    """lr * lam * F far above 2: a gradient of the penalty would diverge, its prox holds every weight."""
    z, _ = problem.solve(1.0, 50, splitting="forward-backward", prox="l2", strength=1e9)
    np.testing.assert_allclose(z, problem.a, atol=1e-6)


def test_the_implicit_proposal_is_the_prox_of_the_loss(problem):
    """lam 0: y' = x, the solution of x + gamma * grad f(x) = y; also with weight decay, and for -f with maximize."""
    gamma, decay = 0.8 / problem.curvature, 0.1
    for sign, maximize in ((1, False), (-1, True)):
        model, opt = protected(
            problem.a,
            problem.f,
            lr=gamma,
            strength=0.0,
            splitting="implicit",
            inner_steps=80,
            weight_decay=decay,
        )
        opt.param_groups[0]["maximize"] = maximize

        def closure(model=model, sign=sign):
            model.w.grad = sign * torch.from_numpy(problem.gradient(model.w.detach().numpy()))
            return 0.0

        opt.step(closure)
        system = np.eye(20) * (1 + gamma * decay) + gamma * problem.hessian
        x = np.linalg.solve(system, problem.a + gamma * problem.linear)
        np.testing.assert_allclose(model.w.detach().numpy(), x, atol=1e-10)


# -- three readings of one loop ------------------------------------------------------------------------------------


def on_batch(problem, model, calls=None):
    def closure():
        if calls is not None:
            calls.append(model.w.detach().clone())
        model.w.grad = torch.from_numpy(problem.gradient(model.w.detach().numpy()))
        return float(len(calls or []))

    return closure


@pytest.mark.parametrize("splitting", SPLITTINGS)
def test_iterations_on_one_batch(problem, splitting):
    """iterations=K is K calls of step on the same batch; the residual is |y' - y| relative to the first."""
    arguments = dict(lr=0.2 / problem.curvature, strength=problem.lam, splitting=splitting)
    one, many = (protected(problem.a, problem.f, **arguments, iterations=k) for k in (1, 6))
    path = [one[0].w.detach().clone()]
    for _ in range(6):
        one[1].step(on_batch(problem, one[0]))
        path.append(one[0].w.detach().clone())
        assert one[1].iterations_used == 1
        assert one[1].residual == 1.0
    many[1].step(on_batch(problem, many[0]))
    assert torch.equal(many[0].w, one[0].w)
    assert many[1].iterations_used == 6
    size = [float((b - a).norm()) for a, b in itertools.pairwise(path)]
    assert many[1].residual == pytest.approx(size[5] / size[0], rel=1e-12)


def test_tolerance_stops_early(problem):
    arguments = dict(lr=0.2 / problem.curvature, strength=problem.lam, splitting="douglas-rachford")
    path_model, path = protected(problem.a, problem.f, **arguments)
    size = []
    for _ in range(200):
        before = path_model.w.detach().clone()
        path.step(on_batch(problem, path_model))
        size.append(float((path_model.w.detach() - before).norm()))
    first_below = next(k for k, s in enumerate(size) if s / size[0] < 1e-2) + 1
    model, opt = protected(problem.a, problem.f, **arguments, iterations=200, tolerance=1e-2)
    calls = []
    loss = opt.step(on_batch(problem, model, calls))
    assert opt.iterations_used == first_below == len(calls) == loss
    assert opt.residual == pytest.approx(size[first_below - 1] / size[0])
    assert opt.residual < 1e-2
    # at rest there is nothing to iterate on
    still, opt = protected(problem.a, problem.f, lr=0.1, splitting="douglas-rachford", iterations=50, tolerance=1e-2)

    def nothing():
        still.w.grad = torch.zeros_like(still.w)

    opt.step(nothing)
    assert (opt.iterations_used, opt.residual) == (1, 0.0)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("splitting", ["douglas-rachford", "forward-backward"])
def test_plasticity_steps_form_one_proposal(splitting, momentum):
    """Three SGD steps from y make x; then r = 2x - y (or x) meets (gamma1+gamma2+gamma3) lam F."""
    a, f = random_case(12)
    model, opt = protected(
        a, f, lr=0.1, momentum=momentum, strength=0.8, splitting=splitting, plasticity_steps=3, iterations=1
    )
    reflect = splitting == "douglas-rachford"
    z, y, buffer = a.copy(), a.copy(), np.zeros(12)
    for proposal in range(3):
        x, total = y.copy(), 0.0
        for k, g in enumerate(gradients(3, 12, seed=proposal).numpy()):
            lr = 0.1 / (k + 1)
            opt.param_groups[0]["lr"] = lr
            model.w.grad = torch.from_numpy(g)
            opt.step()
            buffer = momentum * buffer + g
            x, total = x - lr * buffer, total + lr
            if k < 2:
                np.testing.assert_allclose(model.w.detach().numpy(), x, atol=1e-14)
                # in the middle of a proposal z is still the outcome of the last one
                np.testing.assert_allclose(z_of(model, opt).numpy(), z, atol=1e-14)
                np.testing.assert_allclose(model.w.detach().numpy(), x, atol=1e-14)
        r = 2 * x - y if reflect else x
        z = a + np.sign(r - a) * np.maximum(np.abs(r - a) - total / (1 - momentum) * 0.8 * f, 0)
        y = y + z - x if reflect else z
        np.testing.assert_allclose(model.w.detach().numpy(), y, atol=1e-13)
        np.testing.assert_allclose(z_of(model, opt).numpy(), z, atol=1e-13)


@pytest.mark.parametrize("splitting", ["douglas-rachford", "forward-backward"])
def test_around_sgd_is_the_built_in_sgd(splitting):
    a, f = random_case()
    sgd = dict(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)
    own_model, own = protected(a, f, strength=0.5, splitting=splitting, **sgd)
    model = Vector(a)
    opt = DRCL.around(torch.optim.SGD(model.parameters(), **sgd), strength=0.5, splitting=splitting)
    opt.protect(model, own.anchor)
    for g in gradients(10, 40):
        own_model.w.grad, model.w.grad = g.clone(), g.clone()
        own.step()
        opt.step()
        torch.testing.assert_close(model.w, own_model.w, rtol=0, atol=1e-13)


@pytest.mark.parametrize("splitting", SPLITTINGS)
def test_before_the_first_task_ends_a_step_is_one_sgd_step(problem, splitting):
    model, calls = Vector(problem.a), []
    steps = 3 if splitting != "implicit" else 1
    for arguments in ({"iterations": 5, "tolerance": 1e-3}, {"plasticity_steps": steps}):
        opt = DRCL(model.named_parameters(), lr=0.1, splitting=splitting, **arguments)
        twin = Vector(model.w.detach())
        torch.optim.SGD(twin.parameters(), lr=0.1).step(on_batch(problem, twin))
        calls.clear()
        opt.step(on_batch(problem, model, calls))
        assert len(calls) == opt.iterations_used == 1
        assert torch.equal(model.w, twin.w)
        opt.step()  # no closure needed
