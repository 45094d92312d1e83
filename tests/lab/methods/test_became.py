"""BECAME: the merge minimises the quadratic it is derived from, and covers what the Fisher covers."""

from __future__ import annotations

import pytest
import torch
from scipy.optimize import minimize_scalar
from tests.lab.methods.loop import KINDS, MLP, Walk, toy_stream, weights

from drcl.lab.methods import became
from drcl.lab.methods.became import BECAME, coefficient


def tensors(seed: int, positive: bool = False) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found = {n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in [("a", (3, 2)), ("b", (4,))]}
    return {n: t.square() for n, t in found.items()} if positive else found


def test_the_coefficient_minimises_the_sum_of_the_two_quadratics() -> None:
    p, w, new, old = tensors(0), tensors(1), tensors(2, True), tensors(3, True)
    away = {n: w[n] - p[n] for n in p}

    def both(k: float) -> float:
        at = {n: p[n] + k * away[n] for n in p}
        return float(sum((old[n] * (at[n] - p[n]) ** 2 + new[n] * (at[n] - w[n]) ** 2).sum() for n in p))

    best = minimize_scalar(both, bounds=(0, 1), method="bounded", options={"xatol": 1e-12}).x
    found = coefficient(away, new, old)
    assert 0 < found < 1
    assert found == pytest.approx(best, abs=1e-7)
    assert both(found) <= min(both(found - 1e-6), both(found + 1e-6))
    # by hand: one weight, d = 2, F_new = 3, F_old = 1
    one = {"a": torch.tensor([2.0])}
    assert coefficient(one, {"a": torch.tensor([3.0])}, {"a": torch.tensor([1.0])}) == 0.75


def test_its_ends_and_scale() -> None:
    away, new, old = tensors(0), tensors(1, True), tensors(2, True)
    zero = {n: torch.zeros_like(t) for n, t in away.items()}
    assert coefficient(away, new, zero) == 1.0
    assert coefficient(away, zero, old) == 0.0
    scaled = [{n: 1e4 * t for n, t in f.items()} for f in (new, old)]
    assert coefficient(away, *scaled) == pytest.approx(coefficient(away, new, old), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("host", ["gpm", "sgp"])
def test_merged_weights_lie_on_the_line_and_the_head_stays(
    kind: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = BECAME(threshold=0.9, samples=20, fisher_samples=12, host=host)  # type: ignore[arg-type]
    seen: list[tuple[dict, dict]] = []
    original = became._fisher.diagonal

    def spy(self: BECAME, task: object, parameters: dict, samples: int, labels: str, word: str) -> dict:
        found = original(self, task, parameters, samples, labels, word)
        if word == "free":
            seen.append((weights(method.model), found))
        return found

    monkeypatch.setattr(became._fisher, "diagonal", spy)
    start: list[dict] = []
    begin = method.before_stage
    monkeypatch.setattr(method, "before_stage", lambda task, stage: (begin(task, stage), remember(stage)))

    def remember(stage: int) -> None:
        if stage == 1:
            start.append(weights(method.model))

    precision: list[dict] = []

    def after_task(walk: Walk, task: object) -> None:
        precision.append({n: t.clone() for n, t in walk.method.state["precision"].items()})
        if task.index == 0:
            return
        (free, fisher), projected, now = seen[-1], start[-1], weights(walk.model)
        share = walk.method.state["shares"][-1]
        assert 0 <= share <= 1
        trunk = walk.method.protected()
        above = sum(float((fisher[n] * (free[n] - projected[n]) ** 2).sum()) for n in trunk)
        below = sum(float((precision[-2][n] * (free[n] - projected[n]) ** 2).sum()) for n in trunk)
        assert share == pytest.approx(above / (above + below), rel=1e-4)
        for name in now:
            if name in trunk:
                torch.testing.assert_close(now[name], projected[name] + share * (free[name] - projected[name]))
            else:
                assert torch.equal(now[name], free[name])
        assert "projected" not in walk.method.state
        assert all((precision[-1][n] >= precision[-2][n]).all() for n in trunk)

    walk = Walk(method, toy_stream(), kind, epochs=1).run(after_task=after_task)
    assert len(seen) == len(start) == 2  # the first task has one stage, the others two
    assert [len(row) for row in walk.accuracy] == [1, 2, 3]
    assert ("importances" in method.state) == (host == "sgp")
    counted = sum(p.numel() for p in walk.method.protected().values())
    counted += sum(m.numel() for m in method.state["bases"].values())
    counted += sum(v.numel() for v in method.state.get("importances", {}).values())
    assert method.state_bytes() == 4 * counted


def test_the_first_stage_is_projected_and_the_second_is_free() -> None:
    ratio: dict[int, list[float]] = {0: [], 1: []}

    def after_step(walk: Walk) -> None:
        from drcl.lab.methods import _bases

        name = "trunk.fc2"
        if walk.method.at.task:
            matrix, m = _bases.gradient(walk.method.layers[name]), walk.method.state["bases"][name]
            ratio[walk.method.at.stage].append(float((matrix @ m).norm() / matrix.norm()))

    Walk(BECAME(threshold=0.9, samples=20, fisher_samples=8), toy_stream(), MLP, epochs=1).run(after_step=after_step)
    assert max(ratio[0]) < 1e-4
    assert min(ratio[1]) > 0.1


def test_a_shared_head_is_merged_too() -> None:
    walk = Walk(BECAME(threshold=0.9, samples=20, fisher_samples=8), toy_stream("domain"), MLP, epochs=1).run()
    assert "heads.layers.0.weight" in walk.method.state["precision"]


def test_bad_values_are_refused() -> None:
    with pytest.raises(ValueError, match="fisher_samples"):
        BECAME(fisher_samples=0)
    with pytest.raises(ValueError, match="threshold"):
        BECAME(threshold=1.2)
