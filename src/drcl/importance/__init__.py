"""What matters to the task just learned: estimators of importance, and how tasks add up."""

from drcl.importance.base import History, Importance, Measured
from drcl.importance.fisher import MAS, Fisher, Labels
from drcl.importance.path_integral import PathIntegral

__all__ = ["MAS", "Fisher", "History", "Importance", "Labels", "Measured", "PathIntegral"]
