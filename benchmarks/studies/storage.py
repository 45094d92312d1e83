"""What does bfloat16 cost that holds importance and directions? The study behind docs/guide/choosing.md.

    python -m benchmarks.studies.storage [--seeds 0 1 2]

runs what results/storage/runs.csv lacks; `make tables` writes the table from it.

Six tasks of permuted digits of scikit-learn, one head, an MLP of width 256, SGD with momentum. Each form with and
without DRCL(storage=torch.bfloat16), all else the same. Judged on validation data; test digits are not touched.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from typing import Any

import numpy as np
import torch
from benchmarks.studies.records import RESULTS, add, rows
from benchmarks.studies.untold import SAMPLES, mlp, permuted
from torch.nn import functional as F

import drcl
from drcl.directions.basis import Eigenbasis

RUNS = RESULTS / "storage" / "runs.csv"
FIELDS = ("form", "storage", "seed", "average", "learned", "bytes", "stored", "at_work")
FORMS = {"auto": 'directions, `preset="auto"`', "weights": 'single weights, `preset="weights"`'}
STORAGES = ("float32", "bfloat16")
EPOCHS = 5


def kept_bytes(opt: drcl.DRCL) -> float:
    """Bytes per weight that stay from task to task: anchor, importance, and what directions take."""
    own = [state[key] for _, state in opt.protected() for key in ("anchor", "importance")]
    own += [t for layer in opt.progress.layers.values() for t in layer.basis.tensors().values()]
    return sum(t.nbytes for t in own) / sum(p.numel() for p, _ in opt.protected())


def skewed(basis: Eigenbasis) -> float:
    """How far directions are from orthonormal: the largest |U^T U - 1| of both sides, as a norm."""
    sides = [u.double() for u in (basis.inputs, basis.outputs) if u is not None]
    found = [torch.linalg.matrix_norm(u.mT @ u - torch.eye(u.shape[-1], dtype=u.dtype), 2).max() for u in sides]
    return max(map(float, found))


def run(form: str, storage: str, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    net, tasks = mlp(256)(), permuted(seed)
    kept = torch.bfloat16 if storage == "bfloat16" else None
    opt = drcl.DRCL(net.named_parameters(), lr=0.02, momentum=0.9, preset=form, storage=kept)
    matrix = np.zeros((len(tasks), len(tasks)))
    for t, (x, y, _, _) in enumerate(tasks):
        rng = torch.Generator().manual_seed(1000 * seed + t)
        for _ in range(EPOCHS):
            for part in torch.randperm(len(x), generator=rng).split(32):
                opt.zero_grad()
                F.cross_entropy(net(x[part]), y[part]).backward()
                opt.step()
        estimator = (drcl.Fisher if form == "weights" else drcl.Kronecker)(samples=SAMPLES)
        opt.consolidate(net, list(zip(x.split(100), y.split(100))), estimator)
        with torch.no_grad():
            for u, (_, _, vx, vy) in enumerate(tasks[: t + 1]):
                matrix[t, u] = 100 * float((net(vx).argmax(-1) == vy).float().mean())
    bases = [layer.basis for layer in opt.progress.layers.values()]
    worst = [max(map(skewed, found), default=0.0) for found in (bases, [b.at_work(torch.float32) for b in bases])]
    accuracy = {"average": f"{matrix[-1].mean():.2f}", "learned": f"{np.mean(np.diag(matrix)):.2f}"}
    told = {"bytes": f"{kept_bytes(opt):.2f}", "stored": f"{worst[0]:.1e}", "at_work": f"{worst[1]:.1e}"}
    return {"form": form, "storage": storage, "seed": seed, **accuracy, **told}


# ---- the table


def markdown() -> str:
    """Accuracy and bytes by form and storage; the difference is that of the same seeds."""
    head = ["protected", "kept in", "seeds", "bytes per weight", "average", "learned", "cost", "off orthonormal"]
    lines = ["| " + " | ".join(head) + " |", "|---" * 3 + "|---:" * 5 + "|"]
    for form, words in FORMS.items():
        found = {s: {r["seed"]: r for r in rows(RUNS) if (r["form"], r["storage"]) == (form, s)} for s in STORAGES}
        for storage, runs in found.items():
            if not runs:
                continue
            values = {key: [float(r[key]) for r in runs.values()] for key in FIELDS[3:]}
            pairs = [float(found["float32"][seed]["average"]) - float(r["average"]) for seed, r in runs.items()]
            cells = [words, storage, str(len(runs)), f"{statistics.fmean(values['bytes']):.1f}"]
            cells += [f"{statistics.fmean(values[key]):.1f}" for key in ("average", "learned")]
            mean = f"{statistics.fmean(pairs):.1f}".replace("-", "−")
            cells += ["" if storage == "float32" else mean]
            off = f"{max(values['stored']):.0e} stored, {max(values['at_work']):.0e} in a step"
            lines.append("| " + " | ".join([*cells, off if form == "auto" else ""]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    done = {(row["form"], row["storage"], row["seed"]) for row in rows(RUNS)}
    for seed in args.seeds:
        for form in FORMS:
            for storage in STORAGES:
                if (form, storage, str(seed)) in done:
                    continue
                row = run(form, storage, seed)
                print(*row.values(), flush=True)
                add(RUNS, FIELDS, [row])


if __name__ == "__main__":
    main()
