"""How much is lost where importance is measured on text that a model writes itself? The table of docs/lora.md.

    PYTHONPATH=src python benchmarks/studies/self_samples.py

A Llama of two layers learns Python's source, byte by byte; an adapter of rank 8 then learns English with AdamW inside
drcl, preset="directions". What to keep is measured on 200 sequences: Python that it learned, its own text, or bytes
drawn at random. Needs transformers and peft; minutes on one core.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import drcl
from drcl.integrations.huggingface import self_samples

Batches = list[dict[str, torch.Tensor]]
SAMPLES, LENGTH = 200, 64


def example() -> Any:
    """examples/lora_peft.py, whose data and loop these are."""
    path = Path(__file__).parents[2] / "examples" / "lora_peft.py"
    spec = importlib.util.spec_from_file_location("lora_peft", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def noise(seed: int) -> Batches:
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randint(256, (SAMPLES, LENGTH), generator=rng)
    return [{"input_ids": part, "labels": part} for part in rows.split(16)]


def main(steps: int, width: int, strengths: list[float], seed: int) -> None:
    own = example()
    code = inspect.getsource(argparse) + inspect.getsource(inspect) + inspect.getsource(json)
    python, held_python = own.pieces(code, 0.9)
    english, held_english = own.pieces("\n".join(own.topics.values()), 0.5)
    torch.manual_seed(seed)
    base = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=LENGTH,
        )
    )  # fmt: skip
    own.learn(base, torch.optim.AdamW(base.parameters(), lr=1e-3), python, 2 * steps)
    sources: dict[str, Callable[[Any], Batches]] = {
        "Python that it learned": lambda model: python[: -(-SAMPLES // 16)],
        "its own text": lambda model: self_samples(model, n=SAMPLES, length=LENGTH, seed=seed),
        "random bytes": lambda model: noise(seed),
    }
    print("| importance from | strength | Python before | Python after | English after |\n|---|---|---|---|---|")
    cases = [("nothing", 0.0), *((source, strength) for strength in strengths for source in sources)]
    for source, strength in cases:
        torch.manual_seed(seed)
        model = get_peft_model(copy.deepcopy(base), LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
        adam = torch.optim.AdamW(model.parameters(), lr=2e-3)
        opt = drcl.DRCL.around(adam, preset="directions", strength=strength)
        if source in sources:
            opt.consolidate(model, sources[source](model))
        retention = drcl.Retention({"Python": held_python, "English": held_english}, learned=["English"])
        before = retention.measure(model, "before")
        own.learn(model, opt, english, steps)
        after = retention.measure(model, "after", opt)
        numbers = (before["Python"], after["Python"], after["English"])
        print(f"| {source} | {strength or '–'} | " + " | ".join(f"{x:.3f}" for x in numbers) + " |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="of the adapter; the model had twice as many")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--strengths", type=float, nargs="+", default=[0.003, 0.03])
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
