"""Do two versions of the code compute the same, bit for bit?

    python tests/same_numbers.py record before.json     in the old version
    python tests/same_numbers.py compare before.json    in the new one, on the same machine

Every method runs two tasks for one epoch on digits-split and digits-permuted; five library loops run beside them. Kept
are digests of the accuracy matrix, the drift and the final weights. Only public names and the command line are used.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import drcl
from drcl.__main__ import main as command


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def lab_runs() -> Iterator[tuple[str, dict[str, str]]]:
    from drcl.lab import methods

    for benchmark in ("digits-split", "digits-permuted"):
        for name in methods.names():
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as told:
                options = ["-o", "epochs=1", "-o", "tasks=2", "-o", "step_norms=true", "--out", folder, "--name", "run"]
                sys.argv = ["drcl", "run", benchmark, "-m", name, *options]
                with contextlib.suppress(SystemExit):
                    command()
                run = Path(folder, "run")
                if not (run / "result.json").exists():
                    yield f"{benchmark} {name}", {"refused": told.getvalue().strip()[:200]}
                    continue
                result = json.loads((run / "result.json").read_text())
                yield (
                    f"{benchmark} {name}",
                    {
                        "accuracy": json.dumps(result["accuracy_matrix"]),
                        "drift": digest((run / "drift.csv").read_bytes(), (run / "curve.csv").read_bytes()),
                        "weights": digest((run / "model.safetensors").read_bytes()),
                    },
                )


Maker = Callable[[nn.Module], drcl.DRCL]
LOOPS: dict[str, Maker] = {
    "per weight": lambda m: drcl.DRCL(m.named_parameters(), lr=0.1, momentum=0.9),
    "directions": lambda m: drcl.DRCL(m.named_parameters(), lr=0.05, momentum=0.9, preset="directions"),
    "around AdamW": lambda m: drcl.DRCL.around(torch.optim.AdamW(m.named_parameters(), lr=1e-3), strength=0.1),
    "stable": lambda m: drcl.DRCL(m.named_parameters(), lr=0.1, stable=0.8, splitting="douglas-rachford"),
    "groups": lambda m: drcl.DRCL(
        [
            {"params": list(m[0].named_parameters("0")), "strength": 1.0},  # type: ignore[index]
            {"params": list(m[2].named_parameters("2")), "free": True, "lr": 0.01},  # type: ignore[index]
        ],
        lr=0.1,
        weight_decay=1e-4,
        prox="elastic",
    ),
}


def library_loops() -> Iterator[tuple[str, dict[str, str]]]:
    for name, make in LOOPS.items():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
        optimizer = make(model)
        for task in range(3):
            generator = torch.Generator().manual_seed(task)
            x, y = torch.randn(256, 20, generator=generator), torch.randint(5, (256,), generator=generator)
            batches = list(zip(x.split(32), y.split(32)))
            for _ in range(4):
                for inputs, labels in batches:
                    optimizer.zero_grad()
                    F.cross_entropy(model(inputs), labels).backward()
                    optimizer.step()
            with optimizer.deployed():
                anchor = optimizer.anchor
                moved = "" if anchor is None else str(drcl.drift(model, anchor))
            optimizer.consolidate(model, batches)
        weights = [p.detach().numpy().tobytes() for p in model.parameters()]
        state = [s[k].numpy().tobytes() for _, s in optimizer.protected() for k in ("anchor", "importance")]
        yield f"loop: {name}", {"weights": digest(*weights), "state": digest(*state), "drift": digest(moved.encode())}


def main() -> None:
    if len(sys.argv) != 3 or sys.argv[1] not in ("record", "compare"):
        sys.exit(__doc__)
    action, path = sys.argv[1], Path(sys.argv[2])
    found = dict([*library_loops(), *lab_runs()])
    if action == "record":
        path.write_text(json.dumps(found, indent=1))
        print(f"{len(found)} runs recorded in {path}")
        return
    before = json.loads(path.read_text())
    differ = [name for name in before if found.get(name) != before[name]]
    for name in differ:
        print(f"differs: {name}: {before[name]} was, {found.get(name)} is")
    print(f"{len(before) - len(differ)} of {len(before)} the same")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
