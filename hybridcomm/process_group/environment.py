"""The environment's variables: which there are, and a word about those that there are not."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Mapping

PREFIX = "HYBRIDCOMM_"
_NAMES = (
    "ALGORITHM",
    "BUILD",
    "CHANNELS",
    "CXXFLAGS",
    "FR_FRAMES",
    "IMPL",
    "ISA",
    "SLOTS",
    "SLOT_BYTES",
)
VARIABLES = frozenset(PREFIX + name for name in _NAMES)


def unknown(environment: Mapping[str, str]) -> list[str]:
    """Finds variables that look like ours and are not.

    Args:
        environment: Where to look.

    Returns:
        A sentence for each.
    """
    sentences = []
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in VARIABLES:
            continue
        meant = difflib.get_close_matches(name.removeprefix(PREFIX), _NAMES, 1)
        advice = (
            f"did you mean {PREFIX}{meant[0]}?"
            if meant
            else f"there are {', '.join(sorted(VARIABLES))}"
        )
        sentences.append(f"hybridcomm reads no variable {name}; {advice}")
    return sentences


def warn_of_unknown() -> None:
    """Warns of this process's variables that nothing reads, once: a slip would go unnoticed."""
    global _looked
    if _looked:
        return
    _looked = True
    for sentence in unknown(os.environ):
        warnings.warn(sentence, stacklevel=2)


_looked = False
