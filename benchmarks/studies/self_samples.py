"""How much is lost where importance is measured on text that a model writes itself? The table of docs/lora.md.

    python -m benchmarks.studies.self_samples [--seeds 0 1 2]

runs what results/self-samples/runs.csv lacks; `make tables` writes the table from it.

A Llama of two layers learns Python's source, byte by byte; an adapter of rank 8 then learns English with AdamW inside
drcl. What to keep is measured on 200 sequences: Python that it learned, its own text, or bytes
drawn at random. Needs transformers and peft; minutes on one core.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import inspect
import json
import statistics
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.studies.records import RESULTS, ROOT, add, rows, table

Batches = list[dict[str, torch.Tensor]]
SAMPLES, LENGTH, WIDTH = 200, 64, 64
STEPS = 300  # of the adapter; the model has had twice as many
STRENGTHS = ("auto", 0.003, 0.03)  # drcl as it comes, and preset="directions"
SOURCES = ("Python that it learned", "its own text", "random bytes")
CASES: list[tuple[str, Any]] = [("nothing", 0.0), *((source, k) for k in STRENGTHS for source in SOURCES)]
RUNS = RESULTS / "self-samples" / "runs.csv"
FIELDS = ("source", "strength", "seed", "before", "after", "learned")


def example() -> Any:
    """examples/lora_peft.py, whose data and loop these are."""
    spec = importlib.util.spec_from_file_location("lora_peft", ROOT / "examples" / "lora_peft.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def noise(seed: int) -> Batches:
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randint(256, (SAMPLES, LENGTH), generator=rng)
    return [{"input_ids": part, "labels": part} for part in rows.split(16)]


def study(seed: int, todo: list[tuple[str, Any]]) -> None:
    """Sources of importance at their strengths, all from one model."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    import drcl
    from drcl.integrations.huggingface import self_samples

    own = example()
    code = inspect.getsource(argparse) + inspect.getsource(inspect) + inspect.getsource(json)
    python, held_python = own.pieces(code, 0.9)
    english, held_english = own.pieces("\n".join(own.topics.values()), 0.5)
    torch.manual_seed(seed)
    base = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=LENGTH,
        )
    )  # fmt: skip
    own.learn(base, torch.optim.AdamW(base.parameters(), lr=1e-3), python, 2 * STEPS)
    makers: list[Callable[[Any], Batches]] = [
        lambda model: python[: -(-SAMPLES // 16)],
        lambda model: self_samples(model, n=SAMPLES, length=LENGTH, seed=seed),
        lambda model: noise(seed),
    ]
    sources = dict(zip(SOURCES, makers))
    for source, strength in todo:
        torch.manual_seed(seed)
        model = get_peft_model(copy.deepcopy(base), LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
        adam = torch.optim.AdamW(model.parameters(), lr=2e-3)
        found = {"horizon": STEPS} if strength == "auto" else {"preset": "directions", "strength": strength}
        opt = drcl.DRCL.around(adam, **found)
        if source in sources:
            opt.consolidate(model, sources[source](model))
        retention = drcl.Retention({"Python": held_python, "English": held_english}, learned=["English"])
        before = retention.measure(model, "before")
        own.learn(model, opt, english, STEPS)
        after = retention.measure(model, "after", opt)
        numbers = {"before": before["Python"], "after": after["Python"], "learned": after["English"]}
        row = {"source": source, "strength": strength, "seed": seed, **{k: f"{x:.4f}" for k, x in numbers.items()}}
        print(*row.values(), flush=True)
        add(RUNS, FIELDS, [row])


def markdown() -> str:
    """Means over seeds."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows(RUNS):
        found.setdefault((row["source"], row["strength"]), []).append(row)
    body = [
        [source, "–" if source == "nothing" else strength, str(len(same))]
        + [f"{statistics.fmean(float(row[key]) for row in same):.3f}" for key in FIELDS[3:]]
        for (source, strength), same in found.items()
    ]
    return table(["importance from", "strength", "seeds", "Python before", "Python after", "English after"], body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    done = {(row["source"], row["strength"], row["seed"]) for row in rows(RUNS)}
    for seed in parser.parse_args().seeds:
        todo = [(source, k) for source, k in CASES if (source, str(k), str(seed)) not in done]
        if todo:
            study(seed, todo)


if __name__ == "__main__":
    main()
