"""The routes for parameters without a layer rule: the definition itself, and torch.func, against plain autograd."""

import pytest
import torch
from tests.nets import Transformer
from tests.per_sample.definition import brute_force, check, doubles, moments, tokens
from torch import nn

from drcl.per_sample.fallback import one_by_one, times_used, vectorised


def test_parameters_without_a_rule_beside_those_with():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(4))
            self.lstm_like = nn.Bilinear(4, 4, 5)
            self.head = nn.Linear(5, 3)
            self.unused = nn.Linear(2, 2)
            self.unused_scale = nn.Parameter(torch.randn(3))

        def forward(self, x):
            return self.head(torch.tanh(self.lstm_like(x * self.scale, x)))

    torch.manual_seed(0)
    model = Net().double()
    found = moments(model, [doubles(5, 4)], [doubles(5, 3, seed=1)])
    assert found["unused.weight"].eq(0).all()
    assert found["unused_scale"].eq(0).all()
    check(model, doubles(5, 4))


def test_parametrised_and_subclassed_layers():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x) * self.bias

    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)), nn.Tanh(), Doubled(5, 3)).double()
    check(model, doubles(5, 4))


def test_layers_without_a_rule_in_several_chunks_and_cotangents(monkeypatch):
    class Own(nn.Linear):
        pass

    torch.manual_seed(0)
    model = nn.Sequential(Own(4, 5), nn.Tanh(), Own(5, 3)).double()
    # 43 numbers a sample, of which a sixteenth is counted: two samples at a time, so three chunks of five samples
    monkeypatch.setattr("drcl.per_sample.layers.CPU_CHUNK", 4)
    check(model, doubles(5, 4), directions=2)


def forward(model, batch):
    return model(batch[0]), None


def test_one_by_one_gives_every_samples_gradients():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    model[2].bias.requires_grad_(False)
    x, cotangents = doubles(4, 4), [doubles(4, 3, seed=k) for k in (1, 2)]
    wanted = {"2.bias": model[2].bias, "0.weight": model[0].weight}
    found, looked = [], []
    one_by_one(
        *(model, (x,), wanted, forward, [[v] for v in cotangents]),
        lambda name, gradient: found.append((name, gradient)),
        lambda output: looked.append(output.requires_grad),
    )
    assert looked == [True]
    assert not model[2].bias.requires_grad  # as it was
    assert [name for name, _ in found] == ["2.bias", "0.weight"] * 8
    model[2].bias.requires_grad_(True)
    gradients = iter(g for _, g in found)
    for i in range(4):
        for v in cotangents:
            loss = (model(x[i : i + 1]) * v[i]).sum()
            for g in torch.autograd.grad(loss, [model[2].bias, model[0].weight]):
                torch.testing.assert_close(next(gradients), g)


def test_sparse_gradients_come_dense_and_missing_ones_not_at_all():
    torch.manual_seed(0)
    table, unused = nn.Embedding(5, 3, sparse=True).double(), nn.Linear(2, 2).double()
    model = nn.ModuleDict({"table": table, "unused": unused})
    ids = torch.tensor([[1, 1, 4], [0, 2, 2]])
    found = {}
    one_by_one(
        *(model, (ids,), dict(model.named_parameters())),
        *(lambda m, b: (m["table"](b[0]), None), [[torch.ones(2, 3, 3).double()]]),
        lambda name, g: found.setdefault(name, []).append(g),
    )
    assert list(found) == ["table.weight"]
    assert [g.sum(1).tolist() for g in found["table.weight"]] == [[0, 6, 0, 0, 3], [3, 0, 6, 0, 0]]


@pytest.mark.parametrize("power", [1, 2])
def test_vectorised_equals_the_definition(power):
    """Attention's packed projections and a position table that has no batch."""
    torch.manual_seed(0)
    model = Transformer().double().eval()
    ids, cotangents = tokens(5), [doubles(5, 5, seed=k) for k in (1, 2)]
    expected = brute_force(model, ids, cotangents, power)
    parameters = dict(model.named_parameters())
    totals = {n: torch.zeros_like(p, requires_grad=False) for n, p in parameters.items()}
    vectorised(model, (ids,), parameters, forward, [[v] for v in cotangents], totals, power)
    for n, t in expected.items():
        torch.testing.assert_close(totals[n], t, rtol=1e-9, atol=1e-12)


def test_uses_are_counted_in_the_graph():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.never = nn.Linear(3, 3), nn.Linear(3, 3, bias=False), nn.Linear(3, 3)

        def forward(self, x):
            h = self.a(self.a(x))
            return {"one": self.b(h), "two": h @ self.b.weight + self.a.bias}

    model = Net()
    parameters = dict(model.named_parameters())
    times = times_used(model(torch.randn(2, 3)), parameters)
    assert {n: times[n] for n in parameters} == {
        **{"a.weight": 2, "a.bias": 3, "b.weight": 2},
        **{"never.weight": 0, "never.bias": 0},
    }
