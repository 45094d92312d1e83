"""Whatever code does to a model inside `undisturbed` is undone."""

import random

import numpy as np
import pytest
import torch
from tests.importance.problems import assert_untouched, restless, snapshot

from drcl.preserve import undisturbed


def test_undisturbed_restores_what_code_inside_replaces():
    model, _ = restless()
    before = snapshot(model)

    def meddle():
        with undisturbed(model, seed=4):
            model.eval()
            model.head.bias.requires_grad_(True)
            assert all(p.grad is None for p in model.parameters())
            model.head.weight.grad = torch.zeros_like(model.head.weight)
            model.calls.add_(5)
            model.body[1].running_mean = torch.zeros(6).double()
            torch.randn(2), np.random.rand(), random.random()  # noqa: NPY002
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        meddle()
    assert_untouched(before, snapshot(model))
