"""DRCL along the directions of `drcl.Kronecker`: the method of `drcl.lab.methods.drcl` with other defaults.

    D = U_G^T (r - a) U_A,   z = a + U_G prox(D) U_A^T

U_A and U_G are the eigenvectors of the Kronecker factors of each layer's Fisher information, summed over tasks. Ten
steps form one proposal, so that the rotations are paid once in ten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from drcl.importance import Labels
from drcl.lab.common.options import option
from drcl.lab.methods._fisher import LABELS
from drcl.lab.methods.drcl import NORMALISE, DouglasRachford


@dataclass
class KroneckerDouglasRachford(DouglasRachford):
    """Every option of `drcl` is one here."""

    name: ClassVar[str] = "drcl-kronecker"
    about: ClassVar[str] = "DRCL that protects directions of layers in place of single weights"

    strength: float = option(0.03, "lambda, on shares in a million a task; give 3 with adam")
    prox: Literal["l1", "l2", "elastic"] = option("l2", "the penalty whose proximal map is taken")
    plasticity_steps: int = option(10, "optimizer steps that form one proposal")
    normalise: Literal["task", "share", "global"] = option("share", NORMALISE)
    importance: Literal["kronecker"] = option("kronecker", "the directions of Kronecker factors")
    labels: Labels = option("signs", LABELS)
