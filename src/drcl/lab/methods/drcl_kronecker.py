"""DRCL along the directions of `drcl.Kronecker`: the method of `drcl.lab.methods.drcl` with the defaults of the
library's preset "directions".

    D = U_G^T (r - a) U_A,   z = a + U_G prox(D) U_A^T

U_A and U_G are the eigenvectors of the Kronecker factors of each layer's Fisher information, summed over tasks. Ten
steps form one proposal, so that weights are rotated only once in ten steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from drcl import DRCL, Kronecker
from drcl.importance import Labels
from drcl.lab.common.fields import option
from drcl.lab.methods._fisher import LABELS
from drcl.lab.methods._library import fills_in_presets, takes
from drcl.lab.methods.drcl import DouglasRachford
from drcl.options import HELP, PRESETS

PRESET = PRESETS["directions"]


@fills_in_presets
@dataclass
@takes(DRCL, *PRESET, defaults=PRESET)
class KroneckerDouglasRachford(DouglasRachford):
    """It has every option of `drcl`."""

    name: ClassVar[str] = "drcl-kronecker"
    about: ClassVar[str] = "DRCL that protects directions of layers instead of single weights"

    strength: float = option(PRESET["strength"], "lambda; importance is counted in shares of a million per task")
    prox: Literal["l1", "l2", "elastic"] = option(PRESET["prox"], HELP["prox"])
    importance: Literal["kronecker"] = option("kronecker", "the directions of Kronecker factors")
    labels: Labels = option(Kronecker.usual_labels, LABELS)
