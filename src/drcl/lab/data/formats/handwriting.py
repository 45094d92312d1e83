"""Simulated handwriting: a character's strokes drawn by a writer with habits and a shaky hand.

Everything about a picture follows from (seed, character, writer), so pictures can be drawn in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

VERSION = 1  # part of the cache's name; raise it when the pictures of a seed change
POINTS = 12  # along each stroke
LEFT, TOP, SIDE = 0.0, 900.0, 1024.0  # the square the stroke data is given in, its y axis pointing up
OVERSAMPLING = 4
CROWDED = 12  # strokes
PAPER = 255


@dataclass(frozen=True)
class Writer:
    """What stays the same from one character of a writer to the next."""

    matrix: np.ndarray  # slant, turn and proportions
    bend: np.ndarray  # [2, 3]: amplitude, frequency and phase of a smooth warp in x and y
    pen: float  # stroke width as a share of the picture
    ink: int  # grey of the ink
    unrest: float  # how much strokes deviate


def writer(seed: int, number: int) -> Writer:
    """Writer ``number`` of this seed."""
    rng = np.random.default_rng([seed, 1, number])
    slant, turn = rng.normal(0, 0.12), np.deg2rad(rng.normal(0, 4))
    scale = rng.uniform(0.78, 0.92) * np.exp(rng.normal(0, 0.07, 2))
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    matrix = rotation @ np.array([[1.0, slant], [0.0, 1.0]]) @ np.diag(np.minimum(scale, 0.97))
    bend = np.stack([rng.uniform(0, 0.03, 2), rng.uniform(1.5, 4.0, 2), rng.uniform(0, 2 * np.pi, 2)], axis=1)
    return Writer(matrix, bend, rng.uniform(0.045, 0.085), int(rng.integers(0, 70)), float(rng.uniform(0.6, 1.4)))


def centre_lines(medians: list[list[list[float]]]) -> np.ndarray:
    """Strokes as [S, POINTS, 2] in a square from -0.5 to 0.5, y down, evenly spaced along smooth curves."""
    return np.stack([_even(_smooth(np.array(median, np.float64))) for median in medians])


def draw(lines: np.ndarray, character: int, who: Writer, number: int, seed: int, size: int) -> np.ndarray:
    """One picture uint8 [1, size, size]: dark ink on white paper."""
    rng = np.random.default_rng([seed, 2, character, number])
    strokes = len(lines)
    middle = lines.mean(axis=1, keepdims=True)
    shift = rng.normal(0, 0.012 * who.unrest, (strokes, 1, 2))
    angle = np.deg2rad(rng.normal(0, 3.5 * who.unrest, strokes))
    stretch = np.exp(rng.normal(0, 0.06 * who.unrest, (strokes, 1, 1)))
    turn = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], -1).reshape(-1, 2, 2)
    along = np.linspace(-1, 1, POINTS)
    bow = rng.normal(0, 0.008 * who.unrest, (strokes, 1, 2)) * (1 - along**2)[None, :, None]
    points = (lines - middle) * stretch @ turn.transpose(0, 2, 1) + middle + shift + bow
    amplitude, frequency, phase = who.bend.T
    points = points + amplitude * np.sin(frequency * np.pi * points[..., ::-1] + phase)
    points = points @ who.matrix.T + rng.normal(0, 0.012, 2)
    canvas = size * OVERSAMPLING
    pixels = (points + 0.5) * canvas
    # A narrower pen for crowded characters, because strokes cannot be spaced out here as writers do.
    pen = canvas * who.pen * min(1.0, (CROWDED / strokes) ** 0.5) * float(np.exp(rng.normal(0, 0.08)))
    widths = np.maximum(1.0, pen * np.exp(rng.normal(0, 0.1, strokes)))
    round_off = _corners(pixels)
    picture = Image.new("L", (canvas, canvas), PAPER)
    pencil = ImageDraw.Draw(picture)
    for line, width, corners in zip(pixels.tolist(), widths.tolist(), round_off.tolist(), strict=True):
        pencil.line([tuple(point) for point in line], fill=who.ink, width=round(width))
        radius = width / 2
        for (x, y), corner in zip(line, corners, strict=True):
            if corner:
                pencil.ellipse((x - radius, y - radius, x + radius, y + radius), fill=who.ink)
    return np.asarray(picture.reduce(OVERSAMPLING))[None]


def _corners(lines: np.ndarray) -> np.ndarray:
    """Which points need a round blob of ink: both ends, and where a line turns by some 25 degrees or more."""
    steps = np.diff(lines, axis=1)
    steps = steps / np.maximum(np.linalg.norm(steps, axis=2, keepdims=True), 1e-9)
    marked = np.ones(lines.shape[:2], bool)
    marked[:, 1:-1] = (steps[:, 1:] * steps[:, :-1]).sum(axis=2) < 0.9
    return marked


def _smooth(points: np.ndarray) -> np.ndarray:
    """A Catmull-Rom curve through ``points``, sampled densely, in the unit square."""
    points = np.stack([(points[:, 0] - LEFT) / SIDE, (TOP - points[:, 1]) / SIDE], axis=1) - 0.5
    if len(points) < 2:
        return np.repeat(points, 2, axis=0)
    before = np.concatenate([points[:1], points[:-2]])
    after = np.concatenate([points[2:], points[-1:]])
    start, end = points[:-1], points[1:]
    t = np.linspace(0, 1, 9)[:-1, None, None]
    curve = 0.5 * (
        2 * start
        + (end - before) * t
        + (2 * before - 5 * start + 4 * end - after) * t**2
        + (3 * start - before - 3 * end + after) * t**3
    )
    return np.concatenate([curve.transpose(1, 0, 2).reshape(-1, 2), points[-1:]])


def _even(curve: np.ndarray) -> np.ndarray:
    length = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(curve, axis=0), axis=1))])
    at = np.linspace(0, length[-1], POINTS)
    return np.stack([np.interp(at, length, curve[:, axis]) for axis in (0, 1)], axis=1)
