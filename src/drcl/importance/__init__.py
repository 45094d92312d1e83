"""Estimators of what matters to the task just learned, and how importance adds up over tasks."""

from drcl.importance.base import History, Importance, Measured
from drcl.importance.fisher import MAS, Fisher, Labels
from drcl.importance.path_integral import PathIntegral

__all__ = ["MAS", "Fisher", "History", "Importance", "Labels", "Measured", "PathIntegral"]
