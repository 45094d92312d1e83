"""DRCL along the directions of `drcl.Kronecker`: the method of `drcl.lab.methods.drcl` with the defaults of the
library's preset "directions".

    D = U_G^T (r - a) U_A,   z = a + U_G prox(D) U_A^T

U_A and U_G are the eigenvectors of the Kronecker factors of each layer's Fisher information, summed over tasks. Ten
steps form one proposal, so that the rotations are paid once in ten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from drcl import DRCL, Kronecker
from drcl.importance import Labels
from drcl.lab.common.fields import option
from drcl.lab.methods._fisher import LABELS
from drcl.lab.methods._library import takes
from drcl.lab.methods.drcl import DouglasRachford
from drcl.options import HELP, PRESETS, STRENGTH_AROUND_ADAM

PRESET = PRESETS["directions"]


@dataclass
@takes(DRCL, *PRESET, defaults=PRESET)
class KroneckerDouglasRachford(DouglasRachford):
    """Every option of `drcl` is one here."""

    name: ClassVar[str] = "drcl-kronecker"
    about: ClassVar[str] = "DRCL that protects directions of layers in place of single weights"

    strength: float = option(
        PRESET["strength"], f"lambda, on shares in a million a task; give {STRENGTH_AROUND_ADAM:g} with adam"
    )
    prox: Literal["l1", "l2", "elastic"] = option(PRESET["prox"], HELP["prox"])
    importance: Literal["kronecker"] = option("kronecker", "the directions of Kronecker factors")
    labels: Labels = option(Kronecker().labels, LABELS)
