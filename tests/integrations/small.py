"""A small language model and sequences that count in steps; models of transformers are made from configs."""

import torch

TOKENS, LENGTH = 17, 8
DOUGLAS = {"preset": None, "splitting": "douglas-rachford", "prox": "l1", "strength": 0.05}
DIRECTIONS = {"plasticity_steps": 4}
WAYS = {"douglas-rachford": DOUGLAS, "directions": DIRECTIONS}


def language_model(seed=0):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=TOKENS, num_key_value_heads=2, max_position_embeddings=LENGTH, **sizes)
    return LlamaForCausalLM(config)


def sequences(step, count=24):
    """Each token is the one before plus `step`, from a random start."""
    start = torch.randint(TOKENS, (count, 1), generator=torch.Generator().manual_seed(step))
    rows = (start + torch.arange(LENGTH) * step) % TOKENS
    return [{"input_ids": row, "labels": row} for row in rows]


def batches(step, count=16):
    rows = torch.stack([sample["input_ids"] for sample in sequences(step, count)])
    return [{"input_ids": half, "labels": half} for half in rows.chunk(2)]


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
