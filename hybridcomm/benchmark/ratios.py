"""Compares two things measured in pairs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Quartiles(NamedTuple):
    """The middle of some numbers, and how far they spread.

    Args:
        low: Lower quartile.
        median: Median.
        high: Upper quartile.
    """

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} × ({self.low:.3g} – {self.high:.3g})"


def pair_ratios(numerators: Sequence[float], denominators: Sequence[float]) -> Quartiles:
    """Divides within pairs, so that what changes from pair to pair cancels out.

    Args:
        numerators: One number of each pair.
        denominators: The other numbers, as many.

    Returns:
        Quartiles of the ratios.
    """
    ratios = [above / below for above, below in zip(numerators, denominators, strict=True)]
    if len(ratios) == 1:
        return Quartiles(*ratios * 3)
    return Quartiles(*statistics.quantiles(ratios, n=4, method="inclusive"))
