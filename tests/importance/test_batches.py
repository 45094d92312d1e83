"""Batches as loaders of transformers give them, against labels moved and positions masked by hand."""

import pytest
import torch
import torch.nn.functional as F
from tests.importance.brute import expected_squares, observed_squares
from tests.importance.imitation import (
    ModelOutput,
    PlainOutput,
    TinyForSequenceClassification,
    TinyForTokenClassification,
    TinyLMHeadModel,
)
from tests.importance.problems import assert_same, named
from torch import nn
from torch.utils.data import DataLoader

from drcl import DRCL, Fisher, Kronecker
from drcl.importance.batches import default_forward

IDS = torch.tensor([[0, 2, 1, 3], [3, 3, 0, 1], [1, 0, 2, 2]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]])
LABELS = torch.where(MASK.bool(), IDS, -100)


def loader(**columns):
    """A DataLoader of dicts, one entry a sample."""
    return DataLoader([{k: v[i] for k, v in columns.items()} for i in range(3)], batch_size=2)


def lm_rows(model, i):
    """The logits of a sequence that are about a token inside its mask."""
    logits = model(IDS[i : i + 1], MASK[i : i + 1])["logits"][0]
    return logits[: int(MASK[i].sum()) - 1]


@pytest.mark.parametrize("batch", [{"attention_mask": MASK}, {"attention_mask": MASK, "labels": LABELS}], ids=len)
def test_a_language_model_counts_the_tokens_inside_its_mask(batch):
    model = TinyLMHeadModel()
    expected = expected_squares(model, lm_rows, 3)
    found = Fisher(labels="exact").estimate(model, loader(input_ids=IDS, **batch), named(model))
    assert_same(found, expected)


def test_without_a_mask_all_tokens_but_the_last_are_told_something():
    model = TinyLMHeadModel()
    expected = expected_squares(model, lambda m, i: m(IDS[i : i + 1])["logits"][0][:-1], 3)
    assert_same(Fisher(labels="exact").estimate(model, loader(input_ids=IDS), named(model)), expected)


@pytest.mark.parametrize("output", [ModelOutput, PlainOutput], ids=["a dict", "an object"])
def test_labels_of_a_language_model_are_moved_as_its_own_loss_does(output):
    model = TinyLMHeadModel()
    model.output = output

    def losses(m):
        m.output = ModelOutput
        for i in range(3):
            out = m(IDS[i : i + 1], MASK[i : i + 1], LABELS[i : i + 1])
            yield out.loss * (int(MASK[i].sum()) - 1)  # a sum over tokens, where its own is a mean

    data = loader(input_ids=IDS, attention_mask=MASK, labels=LABELS)
    assert_same(Fisher(labels="empirical").estimate(model, data, named(model)), observed_squares(model, losses))
    # With a loss of one's own the same labels come beside the logits.
    own = Fisher(
        labels="empirical",
        loss=lambda o, t: F.cross_entropy(o.movedim(-1, 1), t, reduction="none").sum(1),
    )
    assert_same(own.estimate(model, data, named(model)), observed_squares(model, losses))


def test_labels_that_stand_where_their_tokens_do_are_left_there():
    model = TinyForTokenClassification()
    labels = IDS % 3
    data = loader(input_ids=IDS, attention_mask=MASK, labels=labels)

    def losses(m):
        for i in range(3):
            logits = m(IDS[i : i + 1]).logits[0][MASK[i].bool()]
            yield F.cross_entropy(logits, labels[i][MASK[i].bool()], reduction="sum")

    assert_same(Fisher(labels="empirical").estimate(model, data, named(model)), observed_squares(model, losses))
    expected = expected_squares(model, lambda m, i: m(IDS[i : i + 1]).logits[0][MASK[i].bool()], 3)
    assert_same(Fisher(labels="exact").estimate(model, data, named(model)), expected)


@pytest.mark.parametrize(
    ("config", "likelihood", "labels"),
    [
        ({"num_labels": 1, "problem_type": None}, "gaussian", torch.tensor([0.5, 1.0, -2.0])),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, "bernoulli", torch.eye(3)),
        ({"num_labels": 3, "problem_type": "single_label_classification"}, "softmax", torch.tensor([0, 2, 1])),
        ({"num_labels": 3, "problem_type": None}, "softmax", torch.tensor([0, 2, 1])),
    ],
)
@pytest.mark.parametrize("kind", [Fisher, Kronecker])
def test_the_config_tells_the_likelihood_and_the_anchor_repeats_it(config, likelihood, labels, kind):
    model = TinyForSequenceClassification(**config)
    data = loader(input_ids=IDS, labels=labels)
    for how in ("sampled", "signs", "exact", "empirical"):
        guessed = kind(labels=how).estimate(model, data, named(model))
        assert_same(guessed, kind(labels=how, likelihood=likelihood).estimate(model, data, named(model)))
    opt = DRCL(model.named_parameters(), lr=0.1)
    opt.consolidate(model, data, importance=kind())
    assert opt.anchor.provenance["made"][0]["likelihood"] == likelihood


def test_consolidate_takes_such_a_loader_as_it_is():
    model = TinyLMHeadModel()
    opt = DRCL(model.named_parameters(), lr=0.1, preset="directions")
    opt.consolidate(model, loader(input_ids=IDS, attention_mask=MASK, labels=LABELS))
    opt.zero_grad()
    model(IDS, MASK, LABELS).loss.backward()
    opt.step()
    told = opt.anchor.provenance
    assert {"wte.weight", "wpe.weight", "block.ln.weight"} <= set(told["diagonal"])


def test_what_does_not_fit_is_refused():
    model = TinyLMHeadModel()
    with pytest.raises(TypeError, match=r"forward\(input_ids, attention_mask, labels\): 'idx' is none of them"):
        default_forward(model, {"input_ids": IDS, "idx": torch.arange(3)})
    with pytest.raises(ValueError, match=r"predicts the next token.*\{'input_ids': \.\.\., 'labels': \.\.\.\}"):
        default_forward(model, (IDS, LABELS))
    moved = torch.cat([IDS[:, 1:], torch.full((3, 1), -100)], 1)
    assert default_forward(model, (IDS, moved))[1] is moved
    with pytest.raises(ValueError, match="needs labels, but the batch has none"):
        Fisher(labels="empirical").estimate(model, loader(input_ids=IDS), named(model))


class Insisting(nn.Module):
    """Cannot be called without labels."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2).double()

    def forward(self, x, labels):
        return {"logits": self.head(x), "loss": F.cross_entropy(self.head(x), labels)}


def test_a_model_that_insists_on_labels_gets_them():
    model, x, y = Insisting(), torch.randn(3, 2).double(), torch.tensor([0, 1, 0])
    output, target = default_forward(model, {"x": x, "labels": y})
    assert torch.equal(output, model.head(x))
    assert target is y


def test_sequences_of_several_lengths():
    """Each batch has its own; the importance is the mean over all samples."""
    model = TinyLMHeadModel()
    batches = [{"input_ids": IDS}, {"input_ids": IDS[:2, :3]}, {"input_ids": IDS[2:, :2]}]
    each = [
        expected_squares(
            model, lambda m, i, ids=b["input_ids"]: m(ids[i : i + 1])["logits"][0][:-1], len(b["input_ids"])
        )
        for b in batches
    ]
    expected = {n: sum(len(b["input_ids"]) * e[n] for b, e in zip(batches, each)) / 6 for n in each[0]}
    assert_same(Fisher(labels="exact").estimate(model, batches, named(model)), expected)
    directions = Kronecker(labels="exact").estimate(model, batches, named(model))
    for name, value in expected.items():
        assert float(directions[name].sum()) == pytest.approx(float(value.sum()))
