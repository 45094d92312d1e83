"""What is found out about the layers before the samples are read."""

import torch
from tests.directions.problems import everything
from tests.importance.imitation import Conv1D
from torch import nn

from drcl import Fisher
from drcl.directions.trial import Trial


def trial(model, x, **options):
    data = [(x, torch.zeros(len(x), dtype=torch.long))]
    fisher = Fisher(labels="empirical")
    return Trial(fisher, model, data, everything(model), lambda m, b: (m(b[0]), b[1]), {}, False, 4096, **options)


def test_how_often_a_layer_is_used_in_a_sample():
    torch.manual_seed(0)
    pixels = nn.Sequential(nn.Conv2d(2, 3, 2, stride=2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4)).eval()
    found = trial(pixels, torch.randn(5, 2, 4, 4))
    assert found.places == {"0.weight": 4, "3.weight": 1}
    tokens = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), Conv1D(7, 5), nn.Flatten(), nn.Linear(21, 2))
    found = trial(tokens, torch.randn(5, 3, 6))
    assert found.places == {"0.weight": 3, "2.weight": 3, "4.weight": 1}


def test_whatever_has_a_rule_is_tapped_along():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.PReLU(), nn.Linear(3, 2))
    found = trial(model, torch.randn(5, 4))
    assert set(found.layers) == {"0.weight", "3.weight"}
    assert {"1.weight", "1.bias"} <= set(found.onepass.names)
    assert "2.weight" not in found.onepass.names
    alone = trial(nn.Sequential(nn.LayerNorm(4)), torch.randn(5, 4))
    assert alone.layers == alone.places == {}
    assert alone.onepass.names == []
