"""A small language model learns one kind of text after another. The study behind docs/transformers.md.

    python -m benchmarks.studies.texts [--forms adamw auto ...] [--seeds 0]

runs what results/texts/runs.csv lacks; `make tables` writes the table from it. Needs transformers and peft.

A Llama of three layers and width 128 reads bytes. It learns Python (the standard library), then English (documentation
of installed packages), then C (headers). All forms start from the same model after Python. A form with a knob gets
`--trials` values of it: a first guess, a neighbour, then on and on from the better end. The best value has the lowest
mean loss over the three texts at the end, on validation text. Test text is measured in the same run and not looked at
for choosing a value. Files, not pieces of files, are split into train, validation and test.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import statistics
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from benchmarks.studies.records import RESULTS, add, rows
from torch import Tensor, nn

import drcl
from drcl.retention import measure

RUNS = RESULTS / "texts" / "runs.csv"
TEXTS = ("python", "english", "c")
PARTS = ("valid", "test")
FIELDS = ("form", "value", "seed", "after", "part", *TEXTS)
LR = 1e-3


class Size(NamedTuple):
    """What a run is made of; the tests take a smaller one."""

    width: int = 128
    layers: int = 3
    length: int = 128  # bytes of a sequence
    batch: int = 16
    first: int = 800  # steps on the first text
    steps: int = 250  # steps on each later text
    kept: int = 256  # sequences that importance is measured on
    judged: int = 256  # sequences of validation text, and of test text
    bytes: int = 2_000_000  # training text


class Form(NamedTuple):
    words: str
    knob: str = ""
    first: float = 0.0  # the first value of the knob
    factor: float = 10.0  # from one value to its neighbour


FORMS: dict[str, Form] = {
    "adamw": Form("AdamW"),
    "auto": Form("**drcl, as it comes**"),
    "told": Form("drcl, told how long a text is"),
    "adamw-slow": Form("AdamW, smaller learning rate", "lr", 3e-4, 1 / 3),
    "joint": Form("all three texts at once"),
    "ewc": Form("EWC in the loss", "strength", 10.0),
    "l2": Form("L2 to the start in the loss", "strength", 0.1),
    "weights": Form("drcl per weight", "strength", 1e-3),
    "lora": Form("LoRA", "lr", 3e-3, 1 / 3),
    "lora-auto": Form("LoRA inside drcl, as it comes"),
    "directions": Form("drcl directions, tuned", "strength", 3e-3),
    "preset": Form('drcl, `preset="directions"` as it comes'),  # the first trial of directions
}


# ---- texts


def files(text: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file of a kind of text on this machine; at most 20,000 bytes of one."""
    paths = sysconfig.get_paths()
    if text == "python":
        root, left_out = Path(paths["stdlib"]), {"site-packages", "test", "tests", "idlelib", "encodings"}
        found = [p for p in root.rglob("*.py") if not left_out & set(p.relative_to(root).parts)]
    elif text == "english":
        root = Path(paths["purelib"])
        found = [p for kind in ("*.md", "*.rst", "*.dist-info/METADATA") for p in root.rglob(kind)]
    else:
        root = Path(paths["include"])
        found = [*root.rglob("*.h"), *Path("/usr/include").glob("*.h")]
    for path in found:
        content = path.read_bytes()
        if path.name == "METADATA":  # behind its fields comes the README
            content = content.partition(b"\n\n")[2]
        if len(content) >= 500:
            yield path.name if text == "c" else path.relative_to(root).as_posix(), content[:20_000]


def sequences(text: str, size: Size) -> dict[str, Tensor]:
    """Sequences of bytes to train on, to choose by and to judge by: of the files eight, one and one of ten."""
    whole: dict[str, list[bytes]] = {"train": [], "valid": [], "test": []}
    seen = set()
    for name, content in sorted(files(text), key=lambda file: hashlib.sha256(file[0].encode()).digest()):
        digest = hashlib.sha256(content).digest()
        if digest not in seen:
            seen.add(digest)
            place = hashlib.sha256(name.encode()).digest()[-1] % 10
            whole["train" if place < 8 else "valid" if place == 8 else "test"].append(content)
    found = {}
    for part, contents in whole.items():
        joined = torch.frombuffer(bytearray(b"".join(contents)), dtype=torch.uint8).long()
        pieces = joined[: len(joined) // size.length * size.length].reshape(-1, size.length)
        order = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0))
        found[part] = pieces[order[: size.bytes // size.length if part == "train" else size.judged]]
    return found


def batches(pieces: Tensor, size: int) -> list[dict[str, Tensor]]:
    return [{"input_ids": part, "labels": part} for part in pieces.split(size)]


def drawn(pieces: Tensor, count: int, seed: int) -> Tensor:
    """So many sequences, each once before any comes again."""
    rng = torch.Generator().manual_seed(seed)
    turns = [torch.randperm(len(pieces), generator=rng) for _ in range(-(-count // len(pieces)))]
    return pieces[torch.cat(turns)[:count]]


# ---- one run


Penalty = Callable[[], Tensor]


def decoder(size: Size) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256, hidden_size=size.width, intermediate_size=2 * size.width, num_hidden_layers=size.layers,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=size.length,
    )  # fmt: skip
    model: nn.Module = LlamaForCausalLM(config)
    return model


def adapted(model: nn.Module) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))  # type: ignore[arg-type]


def learn(model: nn.Module, opt: torch.optim.Optimizer, data: Iterable[Any], penalty: Penalty | None = None) -> None:
    model.train()
    for batch in data:
        opt.zero_grad()
        loss = model(**batch).loss
        (loss if penalty is None else loss + penalty()).backward()
        opt.step()


class Pull:
    """The rivals' penalty in the loss: strength / 2 * sum of F (w - a)^2.

    F is one for L2, and for EWC the Fisher information of all texts so far, per byte.
    """

    def __init__(self, model: nn.Module, strength: float, weighted: bool) -> None:
        self.model, self.strength, self.weighted = model, strength, weighted
        self.anchor: dict[str, Tensor] = {}
        self.fisher: dict[str, Tensor] = {}

    def consolidate(self, pieces: Tensor, size: Size) -> None:
        own = dict(self.model.named_parameters())
        self.anchor = {name: p.detach().clone() for name, p in own.items()}
        if self.weighted:
            found = drcl.Fisher().estimate(self.model, batches(pieces, size.batch), own)
            for name, new in found.items():
                self.fisher[name] = self.fisher.get(name, 0) + new / size.length

    def __call__(self) -> Tensor:
        parts = [
            ((p - self.anchor[name]).square() * self.fisher.get(name, 1.0)).sum()
            for name, p in self.model.named_parameters()
        ]
        return self.strength / 2 * torch.stack(parts).sum()


def optimizer(model: nn.Module, form: str, value: float, steps: int) -> torch.optim.Optimizer:
    lr = value if FORMS[form].knob == "lr" or form == "lora-auto" else LR
    inner = torch.optim.AdamW([(n, p) for n, p in model.named_parameters() if p.requires_grad], lr=lr)
    if form in ("auto", "told", "lora-auto"):
        return drcl.DRCL.around(inner, horizon=steps if form == "told" else None)
    if form in ("weights", "directions"):
        return drcl.DRCL.around(inner, preset=form, strength=value)
    return inner


def measured(model: nn.Module, data: dict[str, dict[str, Tensor]], size: Size) -> dict[str, dict[str, float]]:
    """Nats per byte, by part and text."""
    return {part: measure(model, {text: batches(data[text][part], 2 * size.batch) for text in TEXTS}) for part in PARTS}


def start(data: dict[str, dict[str, Tensor]], seed: int, size: Size, folder: Path) -> nn.Module:
    """The model after the first text; made once per seed."""
    torch.manual_seed(seed)
    model, path = decoder(size), folder / f"python-{seed}.pt"
    if path.exists():
        model.load_state_dict(torch.load(path, weights_only=True))
        return model
    pieces = drawn(data["python"]["train"], size.first * size.batch, seed)
    learn(model, torch.optim.AdamW(model.parameters(), lr=LR), batches(pieces, size.batch))
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), path)
    return model


Found = dict[str, dict[str, dict[str, float]]]  # by the text learned last, part and text


def run(form: str, value: float, seed: int, data: Any, size: Size, folder: Path) -> Found:
    """Learn the second and the third text."""
    model = start(data, seed, size, folder)
    if form == "start":
        return {"python": measured(model, data, size)}
    torch.manual_seed(seed)
    model = adapted(model) if form.startswith("lora") else model
    streams = {t: drawn(data[t]["train"], size.steps * size.batch, 10 * seed + i) for i, t in enumerate(TEXTS)}
    opt = optimizer(model, form, value, size.steps)
    if form == "joint":
        together = drawn(torch.cat(list(streams.values())), 3 * size.steps * size.batch, seed)
        learn(model, opt, batches(together, size.batch))
        return {"c": measured(model, data, size)}
    pull = Pull(model, value, form == "ewc") if form in ("ewc", "l2") else None
    found: Found = {}
    for before, text in itertools.pairwise(TEXTS):
        old = streams[before][: size.kept]
        if pull is not None:
            pull.consolidate(old, size)
        if isinstance(opt, drcl.DRCL):
            opt.consolidate(model, batches(old, size.batch))
        else:
            opt = optimizer(model, form, value, size.steps)  # each text with fresh averages, as drcl does it
        learn(model, opt, batches(streams[text], size.batch), pull)
        if isinstance(opt, drcl.DRCL):
            with opt.deployed():
                found[text] = measured(model, data, size)
        else:
            found[text] = measured(model, data, size)
    return found


# ---- records and trials


def keep(path: Path, form: str, value: float, seed: int, found: Found) -> None:
    case = dict(form=form, value=f"{value:g}" if value else "", seed=seed)
    new = [
        {**case, "after": after, "part": part, **{text: f"{losses[text]:.4f}" for text in TEXTS}}
        for after, parts in found.items()
        for part, losses in parts.items()
    ]
    add(path, FIELDS, new)


def scores(kept: list[dict[str, str]], form: str) -> dict[str, float]:
    """By value, in the order of trying: the mean loss over the texts at the end, on validation text of seed 0."""
    mine = [r for r in kept if (r["form"], r["seed"], r["after"], r["part"]) == (form, "0", TEXTS[-1], "valid")]
    return {r["value"]: statistics.fmean(float(r[text]) for text in TEXTS) for r in mine}


def best(kept: list[dict[str, str]], form: str) -> str | None:
    found = scores(kept, form)
    return min(found, key=lambda value: found[value]) if found else None


def next_value(tried: dict[str, float], form: Form, trials: int) -> float | None:
    """The next trial of a knob: its first value, the neighbour, then on and on from the better end."""
    if len(tried) >= (trials if form.knob else 1):
        return None
    if not form.knob:
        return 0.0
    if len(tried) < 2:
        return form.first * form.factor ** len(tried)
    order = sorted(tried, key=float)
    step = max(form.factor, 1 / form.factor)
    low, high = float(order[0]), float(order[-1])
    return low / step if tried[order[0]] < tried[order[-1]] else high * step


def study(
    forms: Iterable[str], seeds: Iterable[int], trials: int, data: Any, size: Size, path: Path, folder: Path
) -> None:
    """Trials are made with seed 0; the others take the best value."""
    for seed in seeds:
        for form in ("start", *forms):
            while (value := planned(rows(path), form, seed, trials)) is not None:
                made = "directions" if form == "preset" else form
                found = run(made, value, seed, data, size, folder)
                keep(path, made, value, seed, found)
                last = [f"{loss:.3f}" for loss in list(found.values())[-1]["valid"].values()]
                print(form, f"{value:g}", f"seed {seed}, validation:", *last, flush=True)


def planned(kept: list[dict[str, str]], form: str, seed: int, trials: int) -> float | None:
    """The value of the next run of a form, or None if there is nothing left to do."""
    if form in FORMS and FORMS[form].knob and seed == 0:
        return next_value(scores(kept, form), FORMS[form], trials)
    chosen = best(kept, "lora" if form == "lora-auto" else form)  # its learning rate is that of LoRA
    if form == "preset":
        form, chosen = "directions", f"{FORMS['directions'].first:g}"
    if any((r["form"], r["value"], r["seed"]) == (form, chosen or "", str(seed)) for r in kept):
        return None
    if form in FORMS and FORMS[form].knob and not chosen:
        return None
    return float(chosen or 0.0)


# ---- the table


def losses(kept: list[dict[str, str]], form: str, after: str) -> dict[str, dict[str, float]]:
    """On test text with the chosen value: by seed and text."""
    value: str | None = "" if form == "start" else best(kept, form)
    if form == "preset":
        form, value = "directions", f"{FORMS['directions'].first:g}"
    mine = [r for r in kept if (r["form"], r["value"], r["after"], r["part"]) == (form, value, after, "test")]
    return {r["seed"]: {text: float(r[text]) for text in TEXTS} for r in mine}


def forgetting(kept: list[dict[str, str]], form: str) -> dict[str, float]:
    """By seed: how much the loss on Python and on English rose since each was learned, on average."""
    first, second, last = (losses(kept, f, t) for f, t in (("start", "python"), (form, "english"), (form, "c")))
    rises = {}
    for seed in first.keys() & second.keys() & last.keys():
        old = last[seed]["python"] - first[seed]["python"], last[seed]["english"] - second[seed]["english"]
        rises[seed] = statistics.fmean(old)
    return rises


def mean(values: Iterable[float], digits: int = 2) -> str:
    found = list(values)
    return f"{statistics.fmean(found):.{digits}f}".replace("-", "−") if found else ""


def line(kept: list[dict[str, str]], form: str, words: str, knob: str) -> list[str]:
    middle, last, rises = losses(kept, form, "english"), losses(kept, form, "c"), forgetting(kept, form)
    plain, plain_rises = losses(kept, "adamw", "c"), forgetting(kept, "adamw")
    chosen = f"{knob} {best(kept, form)}, of {len(scores(kept, form))}" if knob else ""
    cells = [words, chosen, str(len(last))]
    cells += [mean(s[t] for s in middle.values()) for t in TEXTS[:2]]
    cells += [mean(s[t] for s in last.values()) for t in TEXTS]
    cells += [mean(statistics.fmean(s.values()) for s in last.values()), mean(rises.values())]
    cells.append(mean((100 * rises[s] / plain_rises[s] for s in rises if s in plain_rises), 0))
    more = [100 * (last[s]["c"] / plain[s]["c"] - 1) for s in last if s in plain]
    return [*cells, ("" if not more or statistics.fmean(more) < 0 else "+") + mean(more, 1)]


def markdown(path: Path = RUNS) -> str:
    """Test loss by form, and the goal's two measures as shares of AdamW's."""
    kept = rows(path)
    old = ["Python, then", "English, then", "Python", "English", "C", "mean", "forgetting"]
    head = ["", "chosen", "seeds", *old, "% of AdamW's", "C, % more than AdamW"]
    lines = ["| " + " | ".join(head) + " |", "|---|---" + "|---:" * (len(head) - 2) + "|"]
    before = losses(kept, "start", "python")
    begun = [mean(s[t] for s in before.values()) for t in TEXTS]
    lines.append("| " + " | ".join(["the start", "", str(len(before)), "", "", *begun, "", "", "", ""]) + " |")
    for form, (words, knob, *_) in FORMS.items():
        if losses(kept, form, "c"):
            lines.append("| " + " | ".join(line(kept, form, words, knob)) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--trials", type=int, default=2, help="values of each knob, tried with seed 0")
    parser.add_argument("--out", type=Path, default=Path("runs/texts"), help="where models after Python are kept")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    data = {text: sequences(text, Size()) for text in TEXTS}
    study(args.forms, args.seeds, args.trials, data, Size(), RUNS, args.out)


if __name__ == "__main__":
    main()
