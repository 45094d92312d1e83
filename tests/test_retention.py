"""What was kept and what was learned: measures against torch's own loss, tables, and what is refused."""

import json

import pytest
import torch
from tests.tasks import after_one_task, fit, mlp, same, task, whole_state
from torch import nn
from torch.nn.functional import cross_entropy as torch_cross_entropy

from drcl import DRCL, Anchor, Fisher
from drcl.retention import Retention, cross_entropy, measure


def accuracy(model, batches):
    found = [(model(x).argmax(1) == y).float().mean() for x, y in batches]
    return torch.stack(found).mean()


def test_the_cross_entropy_is_torchs_over_all_labels():
    """Batches of different sizes: the mean over labels, not over batches."""
    model, data = mlp(), task(0)
    data = [data[0], (data[1][0][:3], data[1][1][:3])]
    x, y = torch.cat([b[0] for b in data]), torch.cat([b[1] for b in data])
    expected = torch_cross_entropy(model(x), y).item()
    assert cross_entropy(model, data) == pytest.approx(expected, rel=1e-6)
    assert measure(model, {"a": data}) == {"a": cross_entropy(model, data)}


def test_positions_that_do_not_count_are_left_out():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 5)

        def forward(self, ids):
            return self.head(self.embedding(ids))

    model, ids = Tokens(), torch.arange(12).reshape(3, 4) % 5
    labels = ids.roll(1).clone()
    labels[0, 1:], labels[2, 0] = -100, -100
    expected = torch_cross_entropy(model(ids).flatten(0, 1), labels.flatten(), ignore_index=-100).item()
    assert cross_entropy(model, [{"ids": ids, "labels": labels}]) == pytest.approx(expected, rel=1e-6)
    by_hand = cross_entropy(model, [(ids, labels)], forward=lambda m, b: (m(b[0]), b[1]))
    assert by_hand == pytest.approx(expected, rel=1e-6)


def test_measuring_leaves_no_trace():
    model, opt = after_one_task(mlp(), then=3)
    model.train()
    before = whole_state(model, opt)
    retention = Retention({"old": task(0)})
    retention.measure(model, "now", opt)
    assert same(before, whole_state(model, opt))
    with opt.deployed():
        assert retention.moments["now"]["old"] == cross_entropy(model, task(0))
    assert retention.moments["now"]["old"] != cross_entropy(model, task(0))


def test_what_you_kept_and_what_you_learned():
    model = mlp()
    opt = DRCL(model.named_parameters(), lr=0.1)
    retention = Retention({"old": task(0), "new": task(1)}, learned="new")
    fit(model, opt, task(0), epochs=3)
    first = retention.measure(model, "before")
    opt.consolidate(model, task(0), Fisher(samples=40))
    fit(model, opt, task(1))
    retention.measure(model, "during")
    fit(model, opt, task(1))
    last = retention.measure(model, "after", opt)
    assert retention.changes() == {name: last[name] - first[name] for name in first}
    lines = str(retention).splitlines()
    assert lines[0] == "cross entropy"
    assert lines[1].split() == ["before", "after", "change"]
    assert [line for line in lines if line.startswith("what")] == ["what you kept", "what you learned"]
    assert lines[3].split() == [
        "old",
        f"{first['old']:.4g}",
        f"{last['old']:.4g}",
        f"{last['old'] - first['old']:+.4g}",
    ]
    assert lines[5].split()[0] == "new"


def test_it_goes_into_the_anchor_and_survives_a_restart(tmp_path):
    model, opt = after_one_task(mlp())
    retention = Retention({"old": task(0)}, metric=accuracy)
    retention.measure(model, "before", opt)
    retention.measure(model, "after", opt)
    retention.record(opt)
    opt.anchor.save(tmp_path / "a")
    facts = Anchor.load(tmp_path / "a").provenance["made"][-1]["retention"]
    assert facts == retention.facts()
    assert facts["measure"] == "accuracy"
    other = Retention({"old": task(0)}, metric=accuracy)
    other.load(json.loads(json.dumps(facts)))
    assert other.moments == retention.moments
    again = DRCL(model.named_parameters(), splitting="douglas-rachford")
    again.load_state_dict(opt.state_dict())
    assert again.anchor.provenance["made"][-1]["retention"] == facts


WRONG = {
    "no probes": (lambda: Retention({}), TypeError, "batches by name"),
    "a list": (lambda: Retention([1]), TypeError, "batches by name"),
    "a generator": (lambda: Retention({"a": (b for b in task(0))}), TypeError, "can be read only once"),
    "no batches": (lambda: Retention({"a": 3}), TypeError, "'a' is a int"),
    "unknown learned": (lambda: Retention({"a": []}, learned=["b"]), ValueError, "no probe 'b'; there are 'a'"),
    "no metric": (lambda: Retention({"a": []}, metric=3), TypeError, "metric=3 must be a function"),
    "empty": (lambda: measure(mlp(), {"a": []}), ValueError, "probe 'a': there are no labels to measure on"),
    "no labels": (lambda: measure(mlp(), {"a": [(torch.ones(2, 6),)]}), ValueError, "'a': the batches have no label"),
    "numbers": (lambda: measure(mlp(), {"a": [(torch.ones(2, 6), torch.ones(2, 3))]}), ValueError, "metric=..."),
    "no number": (lambda: measure(mlp(), {"a": []}, lambda m, b: "x"), TypeError, "must return a number"),
    "no model": (lambda: measure(3, {"a": []}), TypeError, "model must be a torch.nn.Module"),
    "no moment": (lambda: Retention({"a": task(0)}).measure(mlp(), 3), TypeError, "when=3"),
    "no change": (lambda: Retention({"a": task(0)}).changes(), RuntimeError, "two moments"),
    "no task": (lambda: Retention({"a": []}).record(DRCL(mlp().parameters())), RuntimeError, "consolidate"),
    "other facts": (lambda: Retention({"a": []}).load({"moments": {"x": {"b": 1}}}), ValueError, "other probes"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_refused(kind):
    act, error, sentence = WRONG[kind]
    with pytest.raises(error, match=sentence):
        act()
