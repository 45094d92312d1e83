"""Teach a language model English without losing its Python: the Trainer of transformers, alone and with drcl.

    pip install "drcl[integrations]"
    python examples/huggingface_trainer.py

A small Llama learns the source code of the standard library, byte by byte, and then the library's English
documentation. The second training never sees a line of code, only the anchor of the first. At the end, tables show what
the model kept and what it learned.
"""

import argparse
import inspect
import json
import tempfile
from pydoc_data.topics import topics

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from drcl import Retention
from drcl.integrations.huggingface import Continual

LENGTH = 64


def pieces(text, share):
    """Sequences of bytes: the first part of a text to train on, and the rest to measure on."""
    rows = torch.tensor(list(text.encode())).long()
    rows = rows[: len(rows) // LENGTH * LENGTH].reshape(-1, LENGTH)
    cut = int(len(rows) * share)
    return [[{"input_ids": row, "labels": row} for row in part] for part in (rows[:cut], rows[cut : cut + 128])]


def train(model, data, steps, folder, callbacks=()):
    settings = TrainingArguments(
        folder, max_steps=steps, per_device_train_batch_size=16, learning_rate=1e-3, lr_scheduler_type="constant",
        save_strategy="no", report_to=[], disable_tqdm=True, seed=0, use_cpu=True,
    )  # fmt: skip
    Trainer(model, settings, train_dataset=data, callbacks=list(callbacks)).train()


def main(steps, width):
    code = inspect.getsource(argparse) + inspect.getsource(inspect) + inspect.getsource(json)
    prose = "\n".join(topics.values())
    (python, held_python), (english, held_english) = pieces(code, 0.9), pieces(prose, 0.5)
    held = {"Python": held_python, "English": held_english}
    probes = {name: list(torch.utils.data.DataLoader(data, 32)) for name, data in held.items()}
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=LENGTH,
        )
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        anchor = f"{folder}/python.safetensors"
        train(model, python, steps, folder, [Continual(save=anchor)])
        start = {name: t.clone() for name, t in model.state_dict().items()}
        for title in ("AdamW", "AdamW inside drcl"):
            model.load_state_dict(start)
            retention = Retention(probes, learned=["English"], title=f"{title}: cross entropy")
            retention.measure(model, "before")
            callbacks = [] if title == "AdamW" else [Continual(anchor=anchor)]
            train(model, english, steps, folder, callbacks)
            retention.measure(model, "after")
            print(f"\n{retention}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps of each training")
    parser.add_argument("--width", type=int, default=64, help="width of the model")
    main(**vars(parser.parse_args()))
