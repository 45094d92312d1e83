"""drcl: train one network on task after task without forgetting the earlier ones."""

from drcl import prox
from drcl.anchor import Anchor, AnchorError
from drcl.directions.kronecker import Kronecker
from drcl.drift import drift
from drcl.importance import MAS, Fisher, PathIntegral
from drcl.optimizer import DRCL
from drcl.retention import Retention
from drcl.version import __version__

__all__ = [
    "DRCL",
    "MAS",
    "Anchor",
    "AnchorError",
    "Fisher",
    "Kronecker",
    "PathIntegral",
    "Retention",
    "__version__",
    "drift",
    "prox",
]
