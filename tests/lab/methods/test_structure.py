"""What IBPCL and BAN share: weights held where earlier tasks use them and free elsewhere, masks that are binary and
final, sticks that only get shorter."""

from __future__ import annotations

import pytest
import torch
from tests.lab.methods.loop import Walk, assert_resumes, toy_stream, weights
from torch.distributions import Bernoulli, Normal, kl_divergence

from drcl.lab import methods
from drcl.lab.methods import _gaussian
from drcl.lab.methods._structure import Structured, bernoulli_kl, softplus_inverse
from drcl.lab.streams import Task

# Wide enough for masks that leave a way through.
MLP = {"kind": "mlp", "hidden": [30, 24]}
CNN = {"kind": "cnn", "channels": [10, 12], "hidden": 24}
both = pytest.mark.parametrize("name", ["ibpcl", "ban"])
kinds = pytest.mark.parametrize("kind", [MLP, CNN], ids=["mlp", "cnn"])


def quick(name: str, **more: object) -> Structured:
    return methods.get(name)(**{"test_samples": 2} | more)


def walked(name: str, kind: dict, tasks: int = 2, epochs: int = 2, **more: object) -> Walk:
    """After some tasks, and at the start of the next one."""
    walk = Walk(quick(name, **more), toy_stream(), kind)
    for task in walk.stream[:tasks]:
        walk.task(task, epochs)
    walk.method.at.task, walk.method.at.stage, walk.method.at.step = tasks, 0, 0
    walk.method.before_task(walk.stream[tasks])
    return walk


def moved(walk: Walk) -> None:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in walk.model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))


# ---- the divergence of the weights


@both
@kinds
def test_weights_outside_the_union_are_free_and_those_inside_are_held(name: str, kind: dict) -> None:
    walk = walked(name, kind)
    method = walk.method
    assert method.weight_divergence().item() == 0  # the posterior has become the prior
    moved(walk)
    total = method.weight_divergence()
    wanted, free_weights = torch.zeros(()), 0
    for layer_name, layer in method.layers.items():
        # By hand: an entry counts if one of the two stored masks has it, a bias if its unit has any.
        stored = [method.mask_of(t)[layer_name].expand_as(layer.weight).bool() for t in range(2)]
        used = stored[0] | stored[1]
        units = used.flatten(1).any(1)
        assert used.any()
        free_weights += int((~used).sum())
        old, (weight_sigma, bias_sigma) = method.state["old"][layer_name], layer.sigma()
        each = kl_divergence(Normal(layer.weight, weight_sigma), Normal(old["weight"], old["weight_sigma"]))
        wanted = wanted + each[used].sum()
        each = kl_divergence(Normal(layer.bias, bias_sigma), Normal(old["bias"], old["bias_sigma"]))
        wanted = wanted + each[units].sum()
        for p, free in ((layer.weight, ~used), (layer.weight_scale, ~used), (layer.bias, ~units)):
            (grad,) = torch.autograd.grad(total, p, retain_graph=True)
            assert (grad[free] == 0).all()
            assert (grad[~free] != 0).all()
    assert free_weights > 100
    torch.testing.assert_close(total, wanted, rtol=1e-4, atol=1e-3)


@both
def test_the_first_task_has_no_prior_on_the_weights(name: str) -> None:
    walk = Walk(quick(name), toy_stream(), MLP)
    moved(walk)
    assert walk.method.weight_divergence().item() == 0


@both
@kinds
def test_kl_bounds_how_far_old_answers_drift(name: str, kind: dict) -> None:
    """Means under the stored mask, before and after a task: hard pressed they hardly move, without pressure they do."""
    drift = {}
    for kl in (0.0, 1e4):
        walk = Walk(quick(name, kl=kl, test_samples=0), toy_stream(), kind)
        walk.task(walk.stream[0], 3)
        before = walk.logits(walk.stream[0])
        walk.task(walk.stream[1], 3)
        drift[kl] = float((walk.logits(walk.stream[0]) - before).norm())
    assert drift[1e4] < 0.2 * drift[0.0]


# ---- sticks and masks


@both
@kinds
def test_sticks_never_grow(name: str, kind: dict) -> None:
    """Along the units of a layer, or along the layers: each is the one before times a share."""
    walk = walked(name, kind)
    moved(walk)
    method, generator = walk.method, torch.Generator().manual_seed(0)
    for _ in range(20):
        for drawn in (method.log_sticks(generator), method.log_sticks(None)):
            if name == "ibpcl":
                rows = [log_pi.flatten() for log_pi in drawn.values()]
            else:
                rows = [torch.stack([log_pi.flatten()[0] for log_pi in drawn.values()])]
            for row in rows:
                assert (row <= 0).all()
                assert (row.diff() <= 0).all()


@both
@kinds
def test_stored_masks_are_binary_and_final_and_their_union_grows(name: str, kind: dict) -> None:
    stored: dict[int, dict[str, torch.Tensor]] = {}
    unions: list[dict[str, torch.Tensor]] = []

    def after_task(walk: Walk, task: Task) -> None:
        method = walk.method
        assert set(method.state["masks"]) == {str(t) for t in range(task.index + 1)}
        for bits in method.state["masks"][str(task.index)].values():
            assert bits.dtype == torch.uint8  # one bit an entry
        stored[task.index] = {n: m.clone() for n, m in method.mask_of(task.index).items()}
        for seen, masks in stored.items():
            for layer, mask in masks.items():
                assert set(mask.unique().tolist()) <= {0.0, 1.0}
                assert mask.any()
                assert mask.shape == method.layers[layer].weight.shape[:2] + (1,) * (mask.dim() - 2)
                assert torch.equal(method.mask_of(seen)[layer], mask)
        unions.append({n: u.clone() for n, u in method.union().items()})
        for layer in method.layers:
            by_hand = torch.stack([masks[layer] for masks in stored.values()]).amax(0)
            assert torch.equal(unions[-1][layer], by_hand)
            assert (unions[-1][layer] >= unions[0][layer]).all()

    walk = Walk(quick(name), toy_stream(), kind).run(after_task=after_task)
    assert [len(row) for row in walk.accuracy] == [1, 2, 3]
    assert any(not torch.equal(stored[0][n], stored[2][n]) for n in stored[0])


@both
@kinds
def test_the_second_stage_leaves_the_mask_alone(name: str, kind: dict) -> None:
    held: dict[str, torch.Tensor] = {}
    masks: dict[str, torch.Tensor] = {}
    seen = []

    def after_step(walk: Walk) -> None:
        method = walk.method
        now = weights(walk.model)
        if method.at.stage == 0:
            held.clear()
            assert method.fixed() is None
            return
        fixed = method.fixed()
        if method.at.step == 0:
            masks.update({n: m.clone() for n, m in fixed.items()})
        if held:
            assert all(torch.equal(held[n], now[n]) for n in now if n.startswith("structure."))
            assert all(torch.equal(fixed[n], m) for n, m in masks.items())
            for layer in method.layers:
                # What neither this task nor an earlier one uses is not touched either.
                unused = fixed[layer] == 0 if not method.union() else (fixed[layer] + method.union()[layer]) == 0
                unused = unused.expand_as(now[f"{layer}.weight"])
                assert torch.equal(now[f"{layer}.weight"][unused], held[f"{layer}.weight"][unused])
            changed = [n for n in now if not torch.equal(held[n], now[n])]
            seen.append(any(n.startswith("trunk.") for n in changed))
        held.update(now)

    stream = toy_stream()
    walk = Walk(quick(name), stream, kind)
    walk.run(after_step=after_step)
    assert len(seen) == 3 * (2 * 3 - 1)  # tasks, steps of a second stage but the first
    assert all(seen)
    final = walk.method.mask_of(2)
    assert all(torch.equal(final[n], m) for n, m in masks.items())


@both
def test_structure_is_learned_in_the_first_stage(name: str) -> None:
    walk = Walk(quick(name), toy_stream(), MLP)
    start, moved_by = {}, []

    def after_step(walk: Walk) -> None:
        if walk.method.at.task == 0 and walk.method.at.stage == 0:
            moved_by.append([n for n, p in walk.method.structure.items() if not torch.equal(p, start[n])])

    start.update({n: p.detach().clone() for n, p in walk.method.structure.items()})
    walk.run(after_step=after_step)
    assert set(moved_by[-1]) == set(start)


@both
def test_offsets_begin_anew_with_each_task(name: str) -> None:
    walk = walked(name, MLP)
    assert all((walk.method.offset(layer) == 0).all() for layer in walk.method.layers)
    assert walk.method.stick_divergence().item() == pytest.approx(0, abs=1e-3)


@both
def test_a_layer_never_ends_without_a_unit(name: str) -> None:
    walk = Walk(quick(name), toy_stream(), CNN)
    with torch.no_grad():
        for layer in walk.method.layers:
            walk.method.offset(layer).fill_(-60.0)
            walk.method.offset(layer)[1] += 9.0
    for mask in walk.method.current().values():
        assert mask.flatten(1).any(1).tolist() == [unit == 1 for unit in range(len(mask))]
        assert mask[1].all()


# ---- draws


@both
def test_relaxed_masks_become_binary_and_are_as_frequent_as_they_should(name: str) -> None:
    walk = Walk(quick(name), toy_stream(), {"kind": "mlp", "hidden": [40, 30]})
    method, generator = walk.method, torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in method.layers:
            method.offset(layer).normal_(0, 1, generator=generator)
        distance = []
        for temperature in (10.0, 0.3, 1e-3):
            masks, _ = method.draw(generator, temperature)
            drawn = torch.cat([m.flatten() for m in masks.values()])
            distance.append(float(torch.minimum(drawn, 1 - drawn).mean()))
        assert distance[0] > distance[1] > distance[2]
        assert distance[2] < 1e-3
        # Sticks are drawn too, so their chances are those of each draw.
        wanted, found = 0.0, 0.0
        for number in range(30):
            odds = method.odds(torch.Generator().manual_seed(number))
            wanted += float(torch.sigmoid(method.offset("trunk.fc1") + odds["trunk.fc1"]).mean()) / 30
            masks, _ = method.draw(torch.Generator().manual_seed(number), 1e-4)
            found += float(masks["trunk.fc1"].mean()) / 30
    assert found == pytest.approx(wanted, abs=0.01)


def test_bernoulli_kl_matches_torch_distributions() -> None:
    generator = torch.Generator().manual_seed(1)
    logits, prior = (3 * torch.randn(6, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    wanted = kl_divergence(Bernoulli(logits=logits), Bernoulli(logits=prior)).sum()
    torch.testing.assert_close(bernoulli_kl(logits, prior), wanted)
    assert bernoulli_kl(logits, logits).item() == pytest.approx(0, abs=1e-12)


@both
def test_the_divergence_of_the_masks_counts_every_layer(name: str) -> None:
    walk = Walk(quick(name), toy_stream(), CNN)
    method = walk.method
    _, divergence = method.draw(torch.Generator().manual_seed(0), 1.0)
    assert divergence.item() == pytest.approx(0, abs=1e-4)  # without offsets posterior and prior are the same
    moved(walk)
    _, divergence = method.draw(torch.Generator().manual_seed(0), 1.0)
    generator, wanted = torch.Generator().manual_seed(0), torch.zeros(())
    for layer, prior in method.odds(generator).items():
        offset = method.offset(layer).detach()
        each = kl_divergence(Bernoulli(logits=offset + prior), Bernoulli(logits=prior.expand_as(offset))).sum()
        assert each > 0
        wanted = wanted + each
    torch.testing.assert_close(divergence, wanted, rtol=1e-3, atol=1e-4)


@both
@kinds
def test_there_is_real_noise_in_every_layer(name: str, kind: dict) -> None:
    """Convolutions too: their outputs vary from draw to draw by as much as sigma says, and sigma is learned."""
    walk = Walk(quick(name, sigma_start=0.1), toy_stream(), kind)
    method = walk.method
    x, y = walk.stream[0].train.take(slice(0, 8))
    method.before_task(walk.stream[0])
    masks = {n: torch.ones_like(method.offset(n)) for n in method.layers}
    first = next(iter(method.layers.values()))
    flat = x if isinstance(first, torch.nn.Conv2d) else x.flatten(1)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), _gaussian.masked(method.layers, masks), _gaussian.noise(method.layers.values(), generator):
        drawn = torch.stack([first(flat) for _ in range(2000)])
    spread = torch.full_like(first.weight, 0.01), torch.full_like(first.bias, 0.01)
    wanted = first.apply_layer(flat.square(), *spread)
    torch.testing.assert_close(drawn.var(0).mean(), wanted.mean(), rtol=0.05, atol=0)
    with _gaussian.noise(method.layers.values(), generator):
        fit = torch.nn.functional.cross_entropy(walk.model(x, 0), y)
    for layer in method.layers.values():
        (grad,) = torch.autograd.grad(fit, layer.weight_scale, retain_graph=True)
        assert grad.norm() > 0


@both
def test_answers_are_the_mean_probability_of_draws_under_the_tasks_mask(name: str) -> None:
    walk = walked(name, MLP, test_samples=5)
    task = walk.stream[0]
    found = walk.logits(task)
    assert torch.equal(found, walk.logits(task))
    torch.testing.assert_close(found.exp().sum(1), torch.ones(len(found)))
    method, x = walk.method, task.test.take(slice(None))[0]
    seen = []
    handle = walk.model.heads.register_forward_hook(lambda *given: seen.append(given[2].softmax(1)))
    again = walk.logits(task)
    handle.remove()
    assert len(seen) == 5
    assert not torch.equal(seen[0], seen[1])
    torch.testing.assert_close(again.exp(), torch.stack(seen).mean(0), rtol=1e-5, atol=1e-6)
    assert method.layers["trunk.fc1"].mask is None
    method.test_samples = 0
    means = walk.logits(task)
    with torch.no_grad(), _gaussian.masked(method.layers, method.mask_of(0)):
        assert torch.equal(means, walk.model(x, 0))


# ---- as for all methods


@both
@kinds
def test_resume(name: str, kind: dict) -> None:
    assert_resumes(lambda: quick(name), kind)


@both
def test_heads_of_tasks_are_plain_and_free(name: str) -> None:
    walk = Walk(quick(name), toy_stream(), MLP)
    assert list(walk.method.layers) == ["trunk.fc1", "trunk.fc2"]
    before = weights(walk.model)
    walk.task(walk.stream[0], 1)
    now = weights(walk.model)
    assert all(torch.equal(before[n], now[n]) for n in now if n.startswith(("heads.layers.1", "heads.layers.2")))
    assert not torch.equal(before["heads.layers.0.weight"], now["heads.layers.0.weight"])


@both
def test_each_draw_is_counted(name: str) -> None:
    walk = Walk(quick(name, samples=3), toy_stream(), MLP)
    walk.task(walk.stream[0], 1)
    assert walk.method.gradients == 2 * 2 * 3  # two more a step, two stages of three steps


@both
def test_the_runs_own_optimizer(name: str) -> None:
    walk = Walk(quick(name, adam_lr=None, structure_lr=0.5), toy_stream(), MLP, lr=0.02)
    groups = walk.method.optimizer(walk.stream[0]).param_groups
    assert [group["lr"] for group in groups] == [0.02, 0.5]
    assert isinstance(walk.method.optimizer(walk.stream[0]), torch.optim.SGD)
    walk.method.at.stage = 1
    assert len(walk.method.optimizer(walk.stream[0]).param_groups) == 1


@both
def test_what_it_cannot_do_is_refused(name: str) -> None:
    for wrong in (
        {"kl": -1.0},
        {"samples": 0},
        {"test_samples": -1},
        {"sigma_start": 0.0},
        {"structure_lr": 0.0},
        {"adam_lr": -1.0},
    ):
        with pytest.raises(ValueError, match=f"{name}: {next(iter(wrong))}="):
            methods.get(name)(**wrong)
    for scenario in ("domain", "class"):
        with pytest.raises(ValueError, match="told the task"):
            Walk(quick(name), toy_stream(scenario), MLP)
    with pytest.raises(ValueError, match="norm layers"):
        Walk(quick(name), toy_stream(), CNN | {"norm": "group"})
    with pytest.raises(ValueError, match="weight_decay"):
        Walk(quick(name), toy_stream(), MLP, weight_decay=0.1)


def test_softplus_and_its_inverse() -> None:
    values = torch.tensor([1e-3, 0.5, 1.0, 30.0, 300.0])
    torch.testing.assert_close(torch.nn.functional.softplus(softplus_inverse(values)), values)
