"""Small things said everywhere: durations, shares, an exception in a sentence."""

from __future__ import annotations

import math

from drcl.lab.common.plugins import blame


def clock(seconds: float) -> str:
    """A duration as people say it: 8.2 s, 1:05 min, 2:03 h."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes = round(seconds) // 60
    return f"{minutes}:{round(seconds) % 60:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"


def percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.1f} %"


def reason(error: BaseException) -> str:
    """An exception in words; a bare one is named, so that the sentence is never empty. If it arose in a plugin, the
    sentence ends with where."""
    words = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if isinstance(error, OSError) and error.strerror:
        words = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    words = " ".join(words.split())
    return (words or type(error).__name__) + blame(error)
