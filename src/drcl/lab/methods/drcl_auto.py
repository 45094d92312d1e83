"""DRCL as the library does it when it is told nothing: directions, and a strength that it finds by itself.

The method of `drcl.lab.methods.drcl_kronecker` with the settings of the library's preset "auto": importance is measured
in the outputs, in its own units, and the strength follows from the length of a task and the room its first gradients
find (`drcl.splitting.auto`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from drcl import DRCL
from drcl.importance import Labels
from drcl.lab.common.fields import option
from drcl.lab.methods._fisher import LABELS
from drcl.lab.methods._library import fills_in_presets, takes
from drcl.lab.methods.base import Knob
from drcl.lab.methods.drcl_kronecker import KroneckerDouglasRachford
from drcl.options import HELP, PRESETS

PRESET = PRESETS["auto"]


@fills_in_presets
@dataclass
@takes(DRCL, *PRESET, defaults=PRESET)
class AutomaticDouglasRachford(KroneckerDouglasRachford):
    """Every option of `drcl-kronecker` is one here."""

    name: ClassVar[str] = "drcl-auto"
    about: ClassVar[str] = "DRCL along directions with a strength that it finds by itself"
    tunes: ClassVar[Knob | None] = None

    strength: float | Literal["auto"] = option(PRESET["strength"], HELP["strength"])  # type: ignore[assignment]
    prox: Literal["l1", "l2", "elastic"] = option(PRESET["prox"], HELP["prox"])
    labels: Labels = option("outputs", LABELS)
