"""How far each splitting ends from the minimiser, and where a penalty in the loss breaks.

    python -m benchmarks.studies.bias

prints two tables and keeps the first in results/bias; `make tables` writes both into the docs.

Part 1: least squares plus an importance-weighted L1 penalty about an anchor, 40 weights, float64. The minimiser comes
from a long run of proximal gradient descent in plain numpy, independent of the package. Part 2: one weight pulled to
its anchor by the EWC penalty, in the loss (as EWC does) and as a proximal step.
"""

from __future__ import annotations

import numpy as np
import torch
from benchmarks.studies.records import RESULTS, rows, table

import drcl

DISTANCES = RESULTS / "bias" / "distances.csv"
GAMMAS = (0.1, 0.3, 0.6, 0.9)
SPLITTINGS = ("douglas-rachford", "forward-backward", "implicit")
STRENGTHS = (10.0, 90.0, 101.0, 1000.0)


def problem() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    rng = np.random.default_rng(0)
    A = rng.normal(size=(120, 40)) / np.sqrt(120)
    b, anchor, importance = rng.normal(size=120) * 3, rng.normal(size=40), rng.gamma(1.0, size=40)
    return A, b, anchor, importance / importance.mean(), float(np.linalg.eigvalsh(A.T @ A).max())


def minimiser(strength: float) -> np.ndarray:
    A, b, anchor, importance, L = problem()
    w = anchor.copy()
    for _ in range(20_000):
        d = w - A.T @ (A @ w - b) / L - anchor
        w = anchor + np.sign(d) * np.maximum(np.abs(d) - strength * importance / L, 0)
    return w


class Fixed:
    """An importance that is given rather than estimated."""

    needs_data = False

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def estimate(self, model, batches, parameters, forward=None):
        return {name: self.values.clone() for name in parameters}

    def describe(self) -> dict[str, str]:
        return {"estimator": "Fixed"}


class Weights(torch.nn.Module):
    def __init__(self, start: np.ndarray) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(start))


def distance(splitting: str, gamma_L: float, strength: float) -> float:
    A, b, anchor, importance, L = problem()
    At, bt = torch.tensor(A), torch.tensor(b)
    model = Weights(anchor)
    opt = drcl.DRCL(model.named_parameters(), lr=gamma_L / L, strength=strength, splitting=splitting, inner_steps=40)
    opt.consolidate(model, importance=Fixed(torch.tensor(importance)))

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = 0.5 * (At @ model.w - bt).square().sum()
        loss.backward()
        return loss

    for _ in range(int((900 if splitting == "implicit" else 3000) * 0.3 / gamma_L)):
        opt.step(closure)
    opt.eval()
    return float(np.abs(model.w.detach().numpy() - minimiser(strength)).max())


def pulled(strength: float, lr: float, proximal: bool) -> float:
    """Where a weight that starts at 1 is after 200 steps towards its anchor 0."""
    w = 1.0
    for _ in range(200):
        w = w / (1 + lr * strength) if proximal else w - lr * strength * w
    return w


def distances() -> str:
    """The largest distance to the minimiser at the fixed point, by gamma * L."""
    found = {(row["splitting"], float(row["gamma_L"])): float(row["distance"]) for row in rows(DISTANCES)}
    return table(["γL", *map(str, GAMMAS)], [[s, *(f"{found[s, g]:.2g}" for g in GAMMAS)] for s in SPLITTINGS])


def pulls() -> str:
    """A weight pulled to its anchor for 200 steps: learning rate 0.02, importance 1, by strength."""
    forms = {"penalty in the loss": False, "proximal step": True}
    body = [[name, *(f"{abs(pulled(s, 0.02, prox)):.0e}" for s in STRENGTHS)] for name, prox in forms.items()]
    return table(["strength", *(f"{s:g}" for s in STRENGTHS)], body)


TABLES = {"bias": distances, "pulled": pulls}


def main() -> None:
    DISTANCES.parent.mkdir(parents=True, exist_ok=True)
    lines = ["splitting,gamma_L,distance"]
    lines += [f"{s},{g},{distance(s, g, 0.5):.3g}" for s in SPLITTINGS for g in GAMMAS]
    DISTANCES.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(distances(), pulls(), sep="\n\n")


if __name__ == "__main__":
    main()
