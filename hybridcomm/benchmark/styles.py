"""How the lines of pictures differ."""

from __future__ import annotations

from typing import Any

# Okabe and Ito's palette, told apart by colour-blind readers; line style and marker differ too, so
# that nothing is lost in grey.
STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    {"color": "#009E73", "linestyle": "-.", "marker": "^"},
    {"color": "#CC79A7", "linestyle": ":", "marker": "D"},
    {"color": "#E69F00", "linestyle": "-", "marker": "v"},
    {"color": "#56B4E9", "linestyle": "--", "marker": "P"},
)
