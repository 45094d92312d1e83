"""The pictures of one benchmark on the page, each with its caption and its text for who does not see it."""

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
from drcl.lab.report.table import REFERENCES, seed_text
from drcl.lab.runs.read import Run


@dataclass(frozen=True)
class Picture:
    """One figure on the page."""

    title: str
    caption: str
    svg: Markup


class Pictures:
    """Drawn once each; ``anchor`` makes the ids of this benchmark its own."""

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
        svg = inline_svg(figure, name, module.TITLE, module.describe(self._runs))
        return Picture(module.TITLE, caption, Markup(svg))

    def _panel(self, module: ModuleType, g: Group, index: int, title: str, caption: str) -> Picture:
        name = f"{self.anchor}-{module.__name__.rpartition('.')[2]}-{index}"
        words = f"{g.label}: {module.TITLE}"
        svg = inline_svg(module.draw(g.finished), name, words, module.describe(g.finished))
        return Picture(title, caption, Markup(svg))

    def _curves(self) -> list[Picture]:
        if not self.groups:
            return []
        band = self._band()
        captions = {
            accuracy_curves: "Mean test accuracy on the tasks learned up to then." + band,
            forgetting: "How far earlier tasks fell from the best they had." + band,
        }
        return [self._picture(module, module.draw(self._runs, self.looks), text) for module, text in captions.items()]

    def _band(self) -> str:
        several = any(len(g.finished) > 1 for g in self.groups)
        return " The band is one standard deviation over seeds." if several else ""

    def _matrices(self) -> list[Picture]:
        # A bound that was trained once has one row; its matrix would be an empty square.
        drawn = [g for g in self.groups if (~np.isnan(g.matrix()).all(axis=1)).sum() > 1] or self.groups
        return [self._panel(matrix, g, k, g.label, _over(g)) for k, g in enumerate(drawn)]

    def _recorded(self) -> list[Group]:
        return [g for g in self.groups if g.method not in REFERENCES and drift.shares(g)[1].size]

    def _drifts(self) -> list[Picture]:
        recorded = self._recorded()
        still = [g for g in recorded if _kept_any(g)]
        pictures = [
            self._panel(drift, g, k, f"{g.label}: left exactly in place", "Bit for bit. " + _over(g))
            for k, g in enumerate(still)
        ]
        if recorded:
            caption = "Change of the weights at each task, relative to their size, layers weighted by size."
            runs = [run for g in recorded for run in g.finished]
            if any(not math.isnan(change) for run in runs for change in movement.relative_change(run)):
                pictures.append(self._picture(movement, movement.draw(runs, self.looks), caption + self._band()))
        return pictures

    def _moved_everything(self) -> str:
        labels = [g.label for g in self._recorded() if not _kept_any(g)]
        if not labels:
            return ""
        names = labels[0] if len(labels) == 1 else ", ".join(labels[:-1]) + " and " + labels[-1]
        return f"{names} moved every weight at every task."

    def _costs(self) -> list[Picture]:
        if all(math.isnan(run.value("learning_seconds")) for run in self._runs):
            return []
        return [
            self._picture(
                cost,
                cost.draw(self._runs, self.looks),
                "Training and consolidation; evaluation is not counted.",
            ),
            self._picture(time_parts, time_parts.draw(self._runs), "The whole sequence, mean over seeds."),
        ]


def _kept_any(g: Group) -> bool:
    return bool((drift.shares(g)[1] > 0).any())


def _over(g: Group) -> str:
    seeds = [run.seed for run in g.finished if run.seed is not None]
    return f"Mean over {seed_text(seeds)}." if len(seeds) > 1 else f"{seed_text(seeds).capitalize()}."
