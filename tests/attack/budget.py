"""How hard to attack. Every part asks here how many cases to try; ``DRCL_ATTACK=100`` tries a hundred times as many."""

from __future__ import annotations

import math
import os


def times() -> float:
    """The factor in ``DRCL_ATTACK``; 1 if it is not set, which keeps every part under a minute."""
    text = os.environ.get("DRCL_ATTACK") or "1"
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"DRCL_ATTACK={text!r} must be a number above 0, such as 100")
    return value


def cases(usual: int) -> int:
    """How many cases to try where ``usual`` are tried without the variable; never none."""
    return max(1, round(usual * times()))
