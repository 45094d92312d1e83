"""What a figure shows, and how well it can be read."""

import numpy as np
from matplotlib.colors import to_rgb


def lines(figure):
    return [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) > 2]


def texts(figure):
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def _luminance(colour):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(a, b):
    """Between two colours, as the web's guidelines define it."""
    light, dark = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
