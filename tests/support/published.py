"""What the paper published on speed-ups: the three rows of Table IV, and the measurements behind
Figure 5.
"""

from __future__ import annotations

import math

SIZES = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32)
TABLE_IV = {
    "ResNet-18": (0.1222, 11.7094, 4.0927),
    "ResNet-152": (0.1414, 13.0476, 6.8803),
    "EfficientNet": (0.1380, 13.8657, 7.5652),
}
G4DN = (0.1338806402, 12.87424514, 6.176666667)
"""The averages, from the authors' code."""

FIGURE_5 = {
    "g3s.xlarge": (1, 1.775, 2.482, 4.539, 6.445, 7.968, 9.397, 10.753, 12.718, 12.532),
    "g4dn.xlarge": (1, 1.036, 1.390, 2.274, 3.065, 3.743, 4.323, 4.786, 5.490, 5.251),
    "g5.xlarge": (1, 0.473, 0.618, 1.027, 1.376, 1.697, 2.053, 2.235, 2.747, 2.879),
}
HELD_OUT = (12, 20, 24, 28)


def measured(name: str) -> list[tuple[float, float]]:
    """The points of a type in Figure 5."""
    return [(float(n), float(s)) for n, s in zip(SIZES, FIGURE_5[name], strict=True)]


def logistic(n: float, a: float, b: float, c: float) -> float:
    """Equation 10, written down once more."""
    return c / (1 + math.exp(-a * (n - b)))
