"""The version of this release; files that are kept say which one wrote them."""

__version__ = "0.1.0"
