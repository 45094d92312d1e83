"""Every backend of the step against the reference, bit for bit, and the reference against torch's SGD and numpy."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch

from drcl.prox import L1, L2, Box, ElasticNet, Penalty
from drcl.splitting import kernels, native
from drcl.splitting.kernels import Step, Weight

MOMENTA = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "dampened": {"momentum": 0.8, "dampening": 0.3},
    "nesterov": {"momentum": 0.9, "nesterov": True},
}
PROXES = {"l1": L1(), "l2": L2(), "elastic": ElasticNet(0.4)}
STRENGTHS = (0.0, 3.0, math.inf)
# compile takes seconds to warm up, so it does not get the whole product; `compiled` below gives it its own cases
FAST = ("native", "foreach", "reference", "auto")


def weight(y, rule, first, seed=0, like=lambda values: values):
    """State about y in the middle of a task: some weights at the anchor, some of no importance, gradients around."""
    rng = torch.Generator().manual_seed(seed)

    def noise():
        return torch.randn(y.shape, generator=rng, dtype=torch.float64)

    wide = torch.float32 if y.dtype in (torch.float16, torch.bfloat16) else y.dtype
    anchor = torch.where(noise() > 0, y.double(), y.double() + 0.1 * noise())
    importance = noise().square() * (noise() > -0.5)
    tensors = {"g": noise(), "anchor": anchor, "buffer": noise(), "z": noise()}
    tensors = {k: like(t.to(y.dtype)) for k, t in tensors.items()}
    if first:
        tensors["buffer"].zero_()
    return Weight(
        y=like(y),
        g=tensors["g"],
        anchor=tensors["anchor"],
        importance=like(importance.to(wide)),
        z=tensors["z"] if rule.reflect else None,
        buffer=tensors["buffer"] if rule.momentum else None,
        first=first and bool(rule.momentum),
    )


def twin(w):
    return Weight(**{k: t.clone() if isinstance(t, torch.Tensor) else t for k, t in vars(w).items()})


def step_of(lr, gamma, strength, prox, damping=0.0, **sgd):
    return Step(Penalty(prox, gamma, strength, damping), lr=lr, **sgd)


def run_and_compare(weights, rule, backend):
    expected = [twin(w) for w in weights]
    for w in expected:
        kernels.reference(w, rule)
    kernels.take(weights, rule, backend)
    for w, e in zip(weights, expected):
        for key in ("y", "z", "buffer", "g", "anchor", "importance"):
            ours, theirs = getattr(w, key), getattr(e, key)
            assert (ours is None) == (theirs is None)
            if ours is not None:
                assert torch.equal(ours, theirs), (key, backend, rule, (ours - theirs).abs().max())


def rules(momentum, prox, reflect):
    for decay, maximize, damping, strength in itertools.product((0.0, 0.02), (False, True), (0.0, 0.1), STRENGTHS):
        yield step_of(
            lr=0.05,
            gamma=0.05,
            strength=strength,
            prox=PROXES[prox],
            weight_decay=decay,
            maximize=maximize,
            reflect=reflect,
            damping=damping,
            **MOMENTA[momentum],
        )


@pytest.mark.parametrize("reflect", [True, False], ids=["reflected", "forward-backward"])
@pytest.mark.parametrize("prox", PROXES)
@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("backend", FAST)
def test_all_options(backend, dtype, momentum, prox, reflect):
    for rule, first in itertools.product(rules(momentum, prox, reflect), (True, False)):
        shapes = [(7, 5), (3,), (), (0, 4)]
        weights = [weight(torch.linspace(-1, 1, math.prod(s)).reshape(s).to(dtype), rule, first) for s in shapes]
        run_and_compare(weights, rule, backend)


@pytest.mark.parametrize("prox", PROXES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", [*FAST, "compile"])
def test_half_precision_is_computed_in_32_bits_and_rounded_once(backend, dtype, prox):
    for momentum, reflect in itertools.product(MOMENTA, (True, False)):
        for rule in rules(momentum, prox, reflect):
            half = weight(torch.linspace(-1, 1, 35).reshape(7, 5).to(dtype), rule, False)
            wide = Weight(*(t if t is None else t.float() for t in list(vars(half).values())[:6]), first=False)
            kernels.take([half], rule, backend)
            kernels.reference(wide, rule)
            for key in ("y", "z", "buffer"):
                ours, exact = getattr(half, key), getattr(wide, key)
                if ours is not None:
                    assert ours.dtype == dtype
                    assert torch.equal(ours, exact.to(dtype)), (key, rule)


def channels_last(t):
    return t.reshape(2, 3, 2, 3).to(memory_format=torch.channels_last)


def unaligned(t):
    return torch.cat([t.new_zeros(1), t.reshape(-1)])[1:]


def strided(t):
    return torch.stack([t.reshape(-1)] * 2, dim=1).reshape(-1)[::2]


LAYOUTS = {
    "contiguous": lambda t: t.clone(),
    "channels_last": channels_last,
    "transposed": lambda t: t.reshape(6, 6).t().contiguous().t(),
    "unaligned": unaligned,
    "with gaps": strided,
    "permuted": lambda t: t.reshape(3, 3, 4).permute(2, 0, 1).contiguous().permute(1, 2, 0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", FAST)
def test_layouts(backend, dtype, layout):
    for prox, momentum, reflect in itertools.product(PROXES, ("plain", "nesterov"), (True, False)):
        rule = step_of(0.05, 0.05, 3.0, PROXES[prox], reflect=reflect, **MOMENTA[momentum])
        w = weight(torch.linspace(-1, 1, 36).to(dtype), rule, False, like=LAYOUTS[layout])
        run_and_compare([w], rule, backend)


@pytest.mark.parametrize("backend", FAST)
def test_tensors_of_one_weight_in_different_layouts(backend):
    rule = step_of(0.05, 0.05, 3.0, L1(), momentum=0.9)
    w = weight(torch.linspace(-1, 1, 36).reshape(6, 6), rule, False)
    w.g = w.g.t().contiguous().t()
    w.importance = w.importance.t().contiguous().t()
    run_and_compare([w], rule, backend)
    w.g = torch.full((1, 1), 0.3).expand(6, 6)  # what sum().backward() leaves
    run_and_compare([w], rule, backend)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("backend", ["native", "foreach"])
def test_sizes_around_the_kernels_blocks(backend, threads):
    rule, before = step_of(0.05, 0.05, 1.0, L1()), torch.get_num_threads()
    sizes = (1, 31, 1023, 1024, 1025, 16383, 16384, 16385, 40001, 0, 3)
    weights = [weight(torch.linspace(-1, 1, n), rule, False, seed=n) for n in sizes]
    torch.set_num_threads(threads)
    try:
        run_and_compare(weights, rule, backend)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("backend", FAST)
def test_dtypes_and_first_steps_may_be_mixed_in_one_call(backend):
    rule = step_of(0.05, 0.05, 3.0, L1(), momentum=0.9)
    kinds = itertools.product((torch.float32, torch.float64, torch.bfloat16), (True, False))
    run_and_compare(
        [weight(torch.linspace(-1, 1, 9).to(d), rule, f, seed=i) for i, (d, f) in enumerate(kinds)], rule, backend
    )


@pytest.mark.parametrize("backend", FAST)
def test_a_prox_outside_the_family_uses_the_reference(backend):
    run_and_compare(
        [weight(torch.linspace(-1, 1, 9), step_of(0.05, 0.05, 3.0, Box()), False)],
        step_of(0.05, 0.05, 3.0, Box()),
        backend,
    )


def test_compiled():
    """Few cases: with and without momentum and reflection, each option once, sizes that change, all strengths."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="drcl")
        for dtype, momentum, reflect in ((torch.float32, "nesterov", True), (torch.float32, "plain", False)):
            for prox, strength, first in itertools.product(PROXES, STRENGTHS, (True, False)):
                rule = step_of(
                    0.05,
                    0.05,
                    strength,
                    PROXES[prox],
                    weight_decay=0.02,
                    maximize=first,
                    reflect=reflect,
                    damping=0.1 if first else 0.0,
                    **MOMENTA[momentum],
                )
                shapes = [(7, 5), (3,), (), (0, 4), (41,)]
                weights = [
                    weight(torch.linspace(-1, 1, math.prod(s)).reshape(s).to(dtype), rule, first) for s in shapes
                ]
                run_and_compare(weights, rule, "compile")
    assert "compile" not in kernels._fallen


def test_a_failing_compiler_leaves_no_weight_stepped_twice(monkeypatch):
    rule = step_of(0.05, 0.05, 3.0, L1())
    weights = [weight(torch.linspace(-1, 1, 9), rule, False, seed=s) for s in range(3)]
    calls = []

    def fails_later(w, rule):
        calls.append(w)
        if len(calls) == 2:
            raise RuntimeError("no compiler today\nmore\neven more")
        kernels.reference(w, rule)

    monkeypatch.setattr(kernels, "_compile", fails_later)
    monkeypatch.setattr(kernels, "_fallen", set())
    with pytest.warns(UserWarning, match="'compile' is not available \\(no compiler today more\\); using 'foreach'"):
        run_and_compare(weights, rule, "compile")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_and_compare(weights, rule, "compile")
    assert len(calls) == 2


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("maximize", [False, True])
def test_the_reference_without_penalty_is_torch_sgd(momentum, maximize):
    """strength 0 without reflection: y' = y - s, with s as torch.optim.SGD takes it, over several steps."""
    rule = step_of(0.1, 0.1, 0.0, L1(), weight_decay=0.03, maximize=maximize, reflect=False, **MOMENTA[momentum])
    p = torch.nn.Parameter(torch.linspace(-1, 1, 12))
    sgd = torch.optim.SGD([p], lr=0.1, weight_decay=0.03, maximize=maximize, **MOMENTA[momentum])
    w = weight(p.detach().clone(), rule, True)
    for step in range(4):
        g = torch.randn(12, generator=torch.Generator().manual_seed(step))
        p.grad, w.g = g.clone(), g
        sgd.step()
        kernels.reference(w, rule)
        w.first = False
        torch.testing.assert_close(w.y, p.detach(), rtol=0, atol=5e-7)


def test_the_reference_is_algorithm_1_in_numpy():
    rng = np.random.default_rng(0)
    y, g, a = rng.normal(size=(3, 50))
    f = rng.exponential(size=50)
    gamma, lam = 0.07, 4.0
    x = y - gamma * g
    r = 2 * x - y
    z = a + np.sign(r - a) * np.maximum(np.abs(r - a) - gamma * lam * f, 0)
    w = Weight(*(torch.from_numpy(v.copy()) for v in (y, g, a, f)), z=torch.zeros(50, dtype=torch.float64))
    kernels.reference(w, step_of(gamma, gamma, lam, L1()))
    np.testing.assert_allclose(w.z, z, atol=1e-15)
    np.testing.assert_allclose(w.y, y + z - x, atol=1e-15)


# -- the gradients' check ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "foreach"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_first_non_finite(bad, dtype, backend):
    for size, at in [(1, 0), (5, 4), (7, 2), (16387, 16386), (16387, 9000)]:
        gradients = [torch.full((3, 3), torch.finfo(dtype).max, dtype=dtype) for _ in range(3)]
        gradients.insert(2, torch.zeros(size, dtype=dtype))
        assert kernels.first_non_finite(gradients, backend) == -1
        gradients[2][at] = bad
        assert kernels.first_non_finite(gradients, backend) == 2
        gradients[1][0, 0] = bad
        assert kernels.first_non_finite(gradients, backend) == 1


def test_first_non_finite_of_sparse_expanded_and_mixed_gradients():
    sparse = torch.sparse_coo_tensor(
        [[1, 3]], torch.tensor([[1.0, 2.0], [3.0, math.nan]]), (5, 2), check_invariants=True
    )
    assert kernels.first_non_finite([torch.ones(2), sparse]) == 1
    assert kernels.first_non_finite([torch.ones(2), torch.ones(5, 2).to_sparse(1)]) == -1
    assert kernels.first_non_finite([torch.tensor(math.inf).expand(3, 3)]) == 0
    assert kernels.first_non_finite([torch.ones(3), torch.ones(3).double(), torch.tensor([math.nan]).half()]) == 2


@pytest.mark.parametrize("backend", ["foreach", "reference"])
def test_a_backend_in_plain_torch_never_asks_for_a_compiler(monkeypatch, backend):
    monkeypatch.setattr(native, "load", lambda: pytest.fail("asked for the compiled kernel"))
    rule = step_of(0.05, 0.05, 3.0, L1())
    w = weight(torch.linspace(-1, 1, 9), rule, False)
    assert kernels.first_non_finite([w.g], backend) == -1
    run_and_compare([w], rule, backend)
