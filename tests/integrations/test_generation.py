"""Text that a model writes itself: as many samples as asked for, drawn from the model, and good for consolidating."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

from tests.integrations.small import LENGTH, TOKENS, equal, language_model, weights  # noqa: E402
from torch import nn  # noqa: E402

from drcl import DRCL, Kronecker  # noqa: E402
from drcl.integrations.huggingface import self_samples  # noqa: E402


class Words:
    """A tokenizer of numbers."""

    bos_token_id, eos_token_id, pad_token_id = 1, 2, None

    def __call__(self, text):
        return {"input_ids": [int(word) for word in text.split()]}


def gpt(seed=0):
    torch.manual_seed(seed)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=TOKENS, n_positions=LENGTH)
    )


@pytest.mark.parametrize("make", [gpt, language_model])
@pytest.mark.parametrize("tokenizer", [None, Words()])
def test_batches_of_the_models_own_text(make, tokenizer):
    model = make().train()
    torch.manual_seed(3)
    before, state = weights(model), torch.get_rng_state()
    made = self_samples(model, tokenizer, 10, length=30, batch_size=4)
    assert torch.equal(torch.get_rng_state(), state)
    assert equal(weights(model), before)
    assert model.training
    assert [len(b["input_ids"]) for b in made] == [4, 4, 2]
    for batch in made:
        assert batch["input_ids"].shape[1] <= LENGTH
        assert ((batch["labels"] == -100) == (batch["attention_mask"] == 0)).all()
        assert (batch["input_ids"] < TOKENS).all()
        if tokenizer is not None:
            assert (batch["input_ids"][:, 0] == 1).all()
    again = self_samples(model, tokenizer, 10, length=30, batch_size=4)
    assert all(torch.equal(a[k], b[k]) for a, b in zip(made, again) for k in a)
    other = self_samples(model, tokenizer, 10, length=30, batch_size=4, seed=1)
    assert any(not torch.equal(a["input_ids"], b["input_ids"]) for a, b in zip(made, other))
    opt = DRCL(model.named_parameters(), preset="directions")
    opt.consolidate(model, made, Kronecker(samples=10))
    assert opt.tasks == 1


def test_it_is_drawn_from_the_model():
    """The frequencies of the token after the first one are the model's probabilities, temperature and all."""
    model = gpt()
    model.lm_head.weight.data.mul_(20)
    for temperature in (1.0, 0.5):
        made = self_samples(model, Words(), 2000, length=2, temperature=temperature, batch_size=2000)
        found = torch.bincount(made[0]["input_ids"][:, 1], minlength=TOKENS) / 2000
        with torch.no_grad():
            logits = model.eval()(torch.tensor([[1]])).logits[0, 0] / temperature
        logits[2] = -torch.inf  # no text ends before it has begun
        assert (found - logits.softmax(0)).abs().max() < 0.05


def test_what_comes_after_an_end_does_not_count():
    long = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=TOKENS, n_positions=64)
    )
    with torch.no_grad():
        long.transformer.wte.weight.zero_()  # every token is as likely as any other
    made = self_samples(long, Words(), 50, length=40, batch_size=50)[0]
    ended = [row for row in made["input_ids"].tolist() if 2 in row[1:-1]]
    assert ended
    for row, mask, labels in zip(*(made[k].tolist() for k in ("input_ids", "attention_mask", "labels"))):
        end = row.index(2, 1) if 2 in row[1:] else len(row) - 1
        assert mask == [int(i <= end) for i in range(len(row))]
        assert labels == [token if i <= end else -100 for i, token in enumerate(row)]
        assert end >= 8 or end == len(row) - 1
    short = self_samples(long, Words(), 12, length=40, batch_size=1)
    assert len({b["input_ids"].shape[1] for b in short}) > 1
    opt = DRCL(long.named_parameters(), preset="directions")
    opt.consolidate(long, short, Kronecker(samples=12))
    assert opt.anchor.provenance["directions"]


def test_prompts_are_what_it_begins_with():
    made = self_samples(gpt(), Words(), 5, prompts=["3 4", "5 6 7"], length=8, batch_size=2)
    rows = [row for b in made for row in b["input_ids"].tolist()]
    assert len(rows) == 5
    assert all(row[:2] == [3, 4] for row in rows[:3])
    assert all(row[:3] == [5, 6, 7] for row in rows[3:])


def test_what_is_refused():
    model = gpt()
    with pytest.raises(TypeError, match="a Linear does not generate text"):
        self_samples(nn.Linear(2, 2))
    for name, value in (("n", 0), ("length", 1), ("batch_size", True)):
        with pytest.raises(ValueError, match=rf"self_samples\({name}={value}\)"):
            self_samples(model, **{name: value})
    with pytest.raises(ValueError, match="temperature must be a number above 0"):
        self_samples(model, temperature=0)
    with pytest.raises(TypeError, match="prompts must be a list of texts"):
        self_samples(model, Words(), prompts="3 4")
    with pytest.raises(ValueError, match="give at least one text"):
        self_samples(model, Words(), prompts=[])
    with pytest.raises(ValueError, match="prompts need a tokenizer"):
        self_samples(model, prompts=["3"])
    with pytest.raises(ValueError, match="makes no tokens from ''"):
        self_samples(model, Words(), prompts=[""])
    with pytest.raises(ValueError, match="leaves no room for new text in length=2"):
        self_samples(model, Words(), 2, prompts=["3 4"], length=2)
    torch.manual_seed(0)
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": TOKENS}
    with pytest.raises(ValueError, match="needs an input text and cannot begin one"):
        self_samples(transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)))
