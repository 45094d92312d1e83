"""drcl: train one network on task after task without forgetting the earlier ones."""

__version__ = "0.1.0"
