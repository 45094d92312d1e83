"""Sentences for hyperparameters that make no sense; each names the method, the option, its value and the remedy."""

from __future__ import annotations

from math import inf


def positive(method: str, **values: float) -> None:
    """Refuse what is not a finite number above 0."""
    for key, value in values.items():
        if not 0 < value < inf:
            raise ValueError(f"{method}: {key}={value}: give a finite number above 0")


def not_negative(method: str, **values: float) -> None:
    """Refuse what is not a finite number of at least 0."""
    for key, value in values.items():
        if not 0 <= value < inf:
            raise ValueError(f"{method}: {key}={value}: give a finite number of at least 0")


def decay(method: str, **values: float) -> None:
    """Refuse what is not the rate of an exponential trace."""
    for key, value in values.items():
        if not 0 <= value < 1:
            raise ValueError(f"{method}: {key}={value}: give a number from 0 to below 1")


def at_least_one(method: str, **values: int | None) -> None:
    """Refuse a count below 1; None, where an option allows it, passes."""
    for key, value in values.items():
        if value is not None and value < 1:
            raise ValueError(f"{method}: {key}={value}: give a whole number of at least 1")
