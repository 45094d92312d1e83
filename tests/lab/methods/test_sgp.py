"""SGP: GPM where all importances are 1, plain descent where they are 0, and the importances themselves.

What it shares with GPM, orthonormal bases among them, is tested there for both."""

from __future__ import annotations

import pytest
import torch
from tests.lab.methods.loop import KINDS, MLP, Walk, toy_stream

from drcl.lab.methods.gpm import GPM
from drcl.lab.methods.sgd import SGD
from drcl.lab.methods.sgp import SGP, importance

LOW = {"threshold": 0.9, "increase": 0.003, "samples": 20}


def test_importance_by_hand() -> None:
    """alpha = 1, values 4, 2, 1: 2*4/(4+4), 2*2/(2+4), 2*1/(1+4)."""
    values = torch.tensor([4.0, 2.0, 1.0])
    torch.testing.assert_close(importance(values, 1.0), torch.tensor([1.0, 2 / 3, 0.4]))
    torch.testing.assert_close(importance(values, 0.0), values / 4)
    assert importance(torch.zeros(2), 1.0).tolist() == [0, 0]
    assert len(importance(torch.empty(0), 1.0)) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("constant", "like"), [(1.0, "gpm"), (0.0, "sgd")])
def test_sgp_with_all_importances_equal_is_gpm_or_sgd(kind: str, constant: float, like: str) -> None:
    class Fixed(SGP):
        name = "gpm"  # which decides the images that are looked at

        def importance(self, name: str) -> torch.Tensor:
            return torch.full_like(super().importance(name), constant)

    fixed = Walk(Fixed(**LOW), toy_stream(), kind, epochs=1).run()
    other = GPM(**LOW) if like == "gpm" else SGD()
    rival = Walk(other, toy_stream(), kind, epochs=1).run()
    for name, p in rival.model.named_parameters():
        torch.testing.assert_close(dict(fixed.model.named_parameters())[name], p, atol=1e-5, rtol=1e-4)


def test_an_old_direction_gains_what_the_new_task_has_along_it() -> None:
    """Inputs 3 e1 and 6 e2 with e1 in memory at .25 and alpha 1: e1 gains 2*3/(3+6), e2 is new with 2*6/(6+6). The
    same inputs once more take e1 to 1, where it stops."""
    method = SGP(alpha=1.0)
    method.state["importances"] = {"layer": torch.tensor([0.25])}
    inputs = torch.tensor([[3.0, 0.0], [0.0, 6.0]], dtype=torch.float64)
    memory = torch.tensor([[1.0], [0.0]])
    method.weigh("layer", memory, torch.tensor([6.0], dtype=torch.float64), inputs)
    torch.testing.assert_close(method.state["importances"]["layer"], torch.tensor([0.25 + 2 * 3 / (3 + 6), 1.0]))
    method.weigh("layer", torch.eye(2), torch.empty(0, dtype=torch.float64), inputs)
    assert method.state["importances"]["layer"].tolist() == [1.0, 1.0]


def test_bad_values_are_refused() -> None:
    with pytest.raises(ValueError, match="alpha"):
        SGP(alpha=-1.0)
    with pytest.raises(ValueError, match="weight_decay"):
        Walk(SGP(), toy_stream(), MLP, weight_decay=0.1)
