"""The pictures of one benchmark on the page, each with its caption and its text for readers who cannot see it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from drcl.lab.report.figures import accuracy_curves, cost, drift, forgetting, matrix, movement, style, time_parts
from drcl.lab.report.groups import Group
from drcl.lab.report.svg import inline_svg
from drcl.lab.report.table import REFERENCES, Statistic, seed_text
from drcl.lab.runs.read import Run


@dataclass(frozen=True)
class Picture:
    """One figure on the page."""

    title: str
    caption: str
    svg: Markup
    key: str = ""  # the method that it shows; empty if it shows several


class Pictures:
    """All figures, each drawn once; ``anchor`` makes the ids of this benchmark unique."""

    def __init__(self, groups: Sequence[Group], anchor: str, looks: Mapping[str, style.Look]) -> None:
        self.groups = [g for g in groups if g.finished]
        self.anchor = anchor
        self.looks = looks
        self.curves = self._curves()
        self.matrices = self._matrices()
        self.drifts = self._drifts()
        self.costs = self._costs()
        self.moved_everything = self._moved_everything()

    @property
    def _runs(self) -> list[Run]:
        return [run for g in self.groups for run in g.finished]

    def _picture(self, module: ModuleType, figure: Figure, caption: str) -> Picture:
        name = f"{self.anchor}-{module.__name__.rpartition('.')[2]}"
        svg = inline_svg(figure, name, module.TITLE, module.describe(self.groups))
        return Picture(module.TITLE, caption, Markup(svg))

    def _panel(self, module: ModuleType, g: Group, index: int, title: str, caption: str) -> Picture:
        name = f"{self.anchor}-{module.__name__.rpartition('.')[2]}-{index}"
        words = f"{g.label}: {module.TITLE}"
        svg = inline_svg(module.draw([g]), name, words, module.describe([g]))
        return Picture(title, caption, Markup(svg), self.looks[g.label].key)

    def _curves(self) -> list[Picture]:
        if not self.groups:
            return []
        band = self._band()
        captions = {
            accuracy_curves: "Mean test accuracy on the tasks learned up to then." + band,
            forgetting: "How far earlier tasks fell from the best they had." + band,
        }
        return [self._picture(module, module.draw(self.groups, self.looks), text) for module, text in captions.items()]

    def _band(self) -> str:
        several = any(len(g.finished) > 1 for g in self.groups)
        return " The band is one standard deviation over seeds." if several else ""

    def _matrices(self) -> list[Picture]:
        # A bound that is trained only once has one row, so its matrix would be nearly empty.
        drawn = [g for g in self.groups if (~np.isnan(g.matrix()).all(axis=1)).sum() > 1] or self.groups
        return [self._panel(matrix, g, k, g.label, _over(g)) for k, g in enumerate(drawn)]

    def _recorded(self) -> list[Group]:
        return [g for g in self.groups if g.method not in REFERENCES and drift.shares(g)[1].size]

    def _drifts(self) -> list[Picture]:
        recorded = self._recorded()
        held = self._held()
        still = [g for g in recorded if drift.kept_any(g) and math.isnan(held[g.label])]
        pictures = [
            self._panel(drift, g, k, f"{g.label}: left exactly in place", "Bit for bit. " + _over(g))
            for k, g in enumerate(still)
        ]
        if recorded:
            caption = "Change of the weights at each task, relative to their size, layers weighted by size."
            runs = [run for g in recorded for run in g.finished]
            if any(not math.isnan(change) for run in runs for change in movement.relative_change(run)):
                pictures.append(self._picture(movement, movement.draw(recorded, self.looks), caption + self._band()))
        return pictures

    def _held(self) -> dict[str, float]:
        """The share of directions each method held: not a number for methods that protect single weights or nothing."""
        return {
            g.label: Statistic.of(run.value("directions_held") for run in g.finished).mean for g in self._recorded()
        }

    def _moved_everything(self) -> str:
        """A sentence instead of maps that would show only zeros, or single weights where directions are protected."""
        held = self._held()
        zeros = [g for g in self._recorded() if not drift.kept_any(g) and math.isnan(held[g.label])]
        all_moved = [g.label for g in zeros if not (drift.shares(g)[1] > 0).any()]
        nearly = [g.label for g in zeros if g.label not in all_moved]
        sentences = [f"{_listed(all_moved)} moved every weight at every task."] if all_moved else []
        if nearly:
            sentences.append(
                f"{_listed(nearly)} left less than 0.5 % of the weights of any layer in place at any task."
            )
        for label, share in held.items():
            if share < 0.005:
                sentences.append(f"{label} pulled directions back and held almost none of them exactly.")
            elif not math.isnan(share):
                sentences.append(
                    f"{label} held {100 * share:.1f} % of the directions of its layers at each later task."
                )
        return " ".join(sentences)

    def _costs(self) -> list[Picture]:
        if all(math.isnan(run.value("learning_seconds")) for run in self._runs):
            return []
        return [
            self._picture(
                cost,
                cost.draw(self.groups, self.looks),
                "Training and consolidation; evaluation is not counted.",
            ),
            self._picture(time_parts, time_parts.draw(self.groups, self.looks), "The whole sequence, mean over seeds."),
        ]


def _listed(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else ", ".join(labels[:-1]) + " and " + labels[-1]


def _over(g: Group) -> str:
    seeds = [run.seed for run in g.finished if run.seed is not None]
    return f"Mean over {seed_text(seeds)}." if len(seeds) > 1 else f"{seed_text(seeds).capitalize()}."
