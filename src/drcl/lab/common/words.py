"""Small things said everywhere: durations, shares, an exception in a sentence, text from elsewhere made harmless."""

from __future__ import annotations

import math
import re
from typing import Any

from drcl.lab.common.plugins import blame

# Characters that control a terminal, change the direction of reading, or are not allowed in XML.
_UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u200e\u200f\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_DEPTH = 50


def clean(text: str, keep: str = "") -> str:
    """The text with every control character written out, such as ``\\x1b``: names come from files of others."""
    return _UNSHOWN.sub(lambda found: found[0] if found[0] in keep else _written(ord(found[0])), text)


def _written(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def clean_tree(value: Any, depth: int = _DEPTH) -> Any:
    """Tables and lists as JSON has them with every text in them clean; ValueError where they are nested too deep."""
    if isinstance(value, str):
        return clean(value)
    if not isinstance(value, dict | list):
        return value
    if not depth:
        raise ValueError(f"it is nested more than {_DEPTH} deep")
    if isinstance(value, list):
        return [clean_tree(each, depth - 1) for each in value]
    return {clean(str(key)): clean_tree(each, depth - 1) for key, each in value.items()}


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
