"""The plugin in a real strategy of Avalanche: the same as a loop by hand, with a classifier that grows.

Avalanche needs torchvision, which is not installed beside the other libraries: CONTRIBUTING.md has the command.
"""

import copy

import pytest
import torch

pytest.importorskip("avalanche")

from avalanche.benchmarks import nc_benchmark
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.benchmarks.utils.data import make_avalanche_dataset
from avalanche.benchmarks.utils.data_attribute import DataAttribute
from avalanche.core import SupervisedPlugin
from avalanche.models import IncrementalClassifier
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin
from tests.integrations.small import WAYS, equal, weights
from torch import nn
from torch.nn.functional import cross_entropy

from drcl import DRCL, Anchor, Fisher, Kronecker
from drcl.integrations.avalanche import Continual, forward

CLASSES, FEATURES = 6, 5


def stream():
    """Three experiences of two classes each."""
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(96) % CLASSES
    x = torch.randn(96, FEATURES, generator=rng) + torch.randn(CLASSES, FEATURES, generator=rng)[y] * 2
    data = torch.utils.data.TensorDataset(x, y)
    labels = DataAttribute(y.tolist(), "targets")
    made = as_classification_dataset(make_avalanche_dataset(data, data_attributes=[labels]))
    return nc_benchmark(made, made, n_experiences=3, task_labels=False, shuffle=False)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU())
        self.head = IncrementalClassifier(8, initial_out_features=2)

    def forward(self, x):
        return self.head(self.body(x))


class Record(SupervisedPlugin):
    """What the strategy did, for doing the same by hand."""

    def __init__(self):
        super().__init__()
        self.models, self.batches, self.deployed = [], [], []

    def before_training_exp(self, strategy, *args, **kwargs):
        self.models.append(copy.deepcopy(strategy.model))
        self.batches.append([])

    def before_training_iteration(self, strategy, *args, **kwargs):
        self.batches[-1].append([t.clone() for t in strategy.mbatch])

    def before_eval(self, strategy, *args, **kwargs):
        self.deployed.append(weights(strategy.model))


def inner(model, kind):
    if kind == "adam":
        return torch.optim.Adam(model.parameters(), lr=0.02)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def run(kept, kind="sgd", evaluate=True):
    torch.manual_seed(1)
    model, record = Net(), Record()
    strategy = Naive(
        model=model,
        optimizer=inner(model, kind),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=8,
        train_epochs=2,
        eval_mb_size=32,
        plugins=[kept, record],
        evaluator=EvaluationPlugin(),
    )
    benchmark = stream()
    for experience in benchmark.train_stream:
        strategy.train(experience)
        if evaluate:
            strategy.eval(benchmark.test_stream)  # Avalanche grows the classifier here too, without the optimizer
    return strategy, record, benchmark


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("estimator", [Fisher, Kronecker])
def test_it_is_the_loop_by_hand_with_grow(way, kind, estimator):
    if estimator is Kronecker and way == "douglas-rachford":
        way = "directions"
    kept = Continual(importance=estimator(samples=32), **WAYS[way])
    strategy, record, benchmark = run(kept, kind)
    model = record.models[0]
    opt = DRCL.around(inner(model, kind), **kept.task.options)
    for number, experience in enumerate(benchmark.train_stream):
        larger = record.models[number]
        if number:
            old, new = dict(model.named_parameters()), dict(larger.named_parameters())
            for name in old:
                opt.grow(old[name], new[name])
            assert larger.head.classifier.weight.shape[0] == CLASSES
            model = larger
        model.train()
        for batch in record.batches[number]:
            opt.zero_grad()
            cross_entropy(model(batch[0]), batch[1]).backward()
            opt.step()
        data = torch.utils.data.DataLoader(experience.dataset, batch_size=8, collate_fn=experience.dataset.collate_fn)
        opt.consolidate(model, data, estimator(samples=32), forward)
        assert equal(weights(model), record.deployed[number]) or number == 0  # evaluation grows the first one
        assert torch.equal(model.body[0].weight, record.deployed[number]["body.0.weight"])
    assert equal(weights(model), weights(strategy.model))
    assert opt.tasks == kept.optimizer.tasks == 3


def test_protection_survives_and_new_rows_are_free(tmp_path, capsys):
    probes = {"first": [(x, y) for x, y, _ in torch.utils.data.DataLoader(stream().train_stream[0].dataset, 16)]}
    kept = Continual(probes=probes, save=tmp_path / "a", importance=Fisher(samples=32), **WAYS["douglas-rachford"])
    strategy, _, _ = run(kept)
    assert list(kept.retention.moments) == ["before", "experience 0", "experience 1", "experience 2"]
    saved = Anchor.load(tmp_path / "a", strategy.model)
    assert saved.provenance["tasks"] == 3
    assert list(saved.provenance["made"][-1]["retention"]["moments"])[-1] == "experience 2"
    assert "what you kept" in capsys.readouterr().out
    for group in kept.optimizer.param_groups:
        assert all(kept.optimizer.holds(group, p) for p in group["params"])


def test_an_anchor_from_before_survives_the_first_use_of_the_optimizer():
    """update_optimizer empties all state on its first call; the plugin protects after it."""
    model = Net()
    opt = DRCL(model.named_parameters(), lr=0.05, normalise="task")
    first = stream().train_stream[0].dataset
    opt.consolidate(model, torch.utils.data.DataLoader(first, 8), Fisher(samples=32), forward)
    opt.progress.buffers = {}  # the strategy decides which classes are active
    before = weights(model)
    kept = Continual(anchor=opt.anchor, strength=float("inf"), preset=None, importance=Fisher(samples=32))
    strategy, record, _ = run(kept, evaluate=False)
    assert kept.optimizer.tasks == 4
    assert torch.equal(strategy.model.body[0].weight, before["body.0.weight"])
    assert len(record.batches[0]) > 1
