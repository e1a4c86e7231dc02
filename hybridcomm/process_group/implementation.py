"""Which implementation a process uses: the compiled one, or the one in plain Python."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Literal

from hybridcomm import _compiled

VARIABLE = "HYBRIDCOMM_IMPL"

Implementation = Literal["compiled", "reference"]


def asked_for(environment: Mapping[str, str] = os.environ) -> Implementation | None:
    """Reads what the environment asks for.

    Args:
        environment: Where to look HYBRIDCOMM_IMPL up.

    Returns:
        The implementation; None if the variable is not set.

    Raises:
        ValueError: There is no such implementation.
    """
    word = environment.get(VARIABLE, "").strip()
    if not word:
        return None
    if word == "compiled":
        return "compiled"
    if word == "reference":
        return "reference"
    raise ValueError(f"{VARIABLE}: {word!r} is not known; one of compiled, reference")


def likely(environment: Mapping[str, str] = os.environ) -> Implementation:
    """Tells what `choose` would choose, without a warning.

    Args:
        environment: Where to look HYBRIDCOMM_IMPL up.

    Returns:
        The implementation.

    Raises:
        ValueError: HYBRIDCOMM_IMPL names none.
    """
    asked = asked_for(environment)
    if asked is not None:
        return asked
    return "reference" if _compiled.built_for() is None else "compiled"


def choose() -> Implementation:
    """Chooses what HYBRIDCOMM_IMPL names, or else what there is.

    Where nothing is compiled that is plain Python, with one warning for each process: nobody should
    wonder why it is slow. A build against another torch is no reason: that stays an error.

    Returns:
        The implementation.

    Raises:
        ValueError: HYBRIDCOMM_IMPL names none.
    """
    global _warned
    chosen = likely()
    if chosen == "reference" and asked_for() is None and not _warned:
        _warned = True
        warnings.warn(
            "hybridcomm has no compiled part here, so it runs in plain Python: right, but many "
            f"times slower. Build it with `make build`, or set {VARIABLE}=reference to say that "
            "this is what you want",
            stacklevel=2,
        )
    return chosen


_warned = False
