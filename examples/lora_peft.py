"""Fine-tune a language model with LoRA and keep what it could do, without its old data: peft, alone and with drcl.

    pip install "drcl[integrations]" peft
    python examples/lora_peft.py

A small Llama knows source code of the standard library, byte by byte. Then an adapter learns the library's English
documentation. What to keep is measured on text that the model writes itself. Ends in tables of kept and learned.
"""

import argparse
import inspect
import json
from pydoc_data.topics import topics

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from drcl import DRCL, Retention
from drcl.integrations.huggingface import self_samples

LENGTH = 64


def pieces(text, share):
    """Batches of byte sequences: of the first part of a text to train on, of the rest to measure on."""
    rows = torch.tensor(list(text.encode())).long()
    rows = rows[: len(rows) // LENGTH * LENGTH].reshape(-1, LENGTH)
    order, cut = (
        torch.randperm(int(len(rows) * share), generator=torch.Generator().manual_seed(0)),
        int(len(rows) * share),
    )
    parts = rows[:cut][order].split(16), rows[cut : cut + 128].split(32)
    return [[{"input_ids": part, "labels": part} for part in some] for some in parts]


def learn(model, opt, batches, steps):
    for step in range(steps):
        opt.zero_grad()
        model(**batches[step % len(batches)]).loss.backward()
        opt.step()


def main(steps, width, samples):
    code = inspect.getsource(argparse) + inspect.getsource(inspect) + inspect.getsource(json)
    (python, held_python), (english, held_english) = pieces(code, 0.9), pieces("\n".join(topics.values()), 0.5)
    torch.manual_seed(0)
    base = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=LENGTH,
        )
    )  # fmt: skip
    learn(base, torch.optim.AdamW(base.parameters(), lr=1e-3), python, 2 * steps)
    start = {name: t.clone() for name, t in base.state_dict().items()}
    for title in ("LoRA", "LoRA inside drcl"):
        base.load_state_dict(start)
        model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
        opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
        if title != "LoRA":
            opt = DRCL.around(opt)
            opt.consolidate(model, self_samples(model, n=samples, length=LENGTH))
        probes = {"Python": held_python, "English": held_english}
        retention = Retention(probes, learned=["English"], title=f"{title}: cross entropy")
        retention.measure(model, "before")
        learn(model, opt, english, steps)
        retention.measure(model, "after", *([opt] if isinstance(opt, DRCL) else []))
        print(f"\n{retention}\n")
        base = model.unload()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=int, default=300, help="optimizer steps of the adapter; the model had twice as many"
    )
    parser.add_argument("--width", type=int, default=64, help="width of the model")
    parser.add_argument("--samples", type=int, default=200, help="that the model writes to measure what it can do")
    main(**vars(parser.parse_args()))
