"""The definition of importance, with nothing clever: every possible label of every sample, by autograd."""

import copy
import itertools

import torch
import torch.nn.functional as F

FAMILIES = {
    "softmax": lambda rows, y: F.cross_entropy(rows, y, reduction="none"),
    "bernoulli": lambda rows, y: F.binary_cross_entropy_with_logits(rows, y.to(rows), reduction="none").sum(1),
}


def all_labels(rows, likelihood):
    """Every joint labelling of these rows."""
    if likelihood == "softmax":
        for labels in itertools.product(range(rows.shape[1]), repeat=len(rows)):
            yield torch.tensor(labels)
    else:
        for labels in itertools.product((0, 1), repeat=rows.numel()):
            yield torch.tensor(labels).view(rows.shape)


def gradients(model, rows_of, samples, likelihood):
    """(probability, gradients by name) for every sample and joint label; `rows_of(model, i)` are sample i's rows."""
    model = copy.deepcopy(model).eval()
    names = [name for name, _ in model.named_parameters()]
    for i in range(samples):
        rows = rows_of(model, i)
        for y in all_labels(rows, likelihood):
            loss = FAMILIES[likelihood](rows, y).sum()
            found = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True, allow_unused=True)
            yield float(torch.exp(-loss.detach())), dict(zip(names, found))


def expected_squares(model, rows_of, samples, likelihood="softmax"):
    """E over labels of squared gradients, meaned over samples."""
    totals = {name: torch.zeros_like(p, requires_grad=False) for name, p in model.named_parameters()}
    for p, found in gradients(model, rows_of, samples, likelihood):
        for name, g in found.items():
            if g is not None:
                totals[name] += p * g**2 / samples
    return totals


def observed_squares(model, losses):
    """Squared gradients of each sample's loss, meaned; `losses(model)` yields them one by one."""
    model = copy.deepcopy(model).eval()
    totals = {name: torch.zeros_like(p, requires_grad=False) for name, p in model.named_parameters()}
    count = 0
    for loss in losses(model):
        count += 1
        found = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True, allow_unused=True)
        for name, g in zip(totals, found):
            if g is not None:
                totals[name] += g**2
    return {name: t / count for name, t in totals.items()}
