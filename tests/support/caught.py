"""An exception as facts that travel from a rank to the test."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Caught:
    """What a call raised, and when.

    Args:
        classes: Names of its class and base classes, its own first.
        message: Its text.
        rank: The attributes of `hybridcomm.errors.CommError`; None for other exceptions.
        peer: As `rank`.
        operation: As `rank`.
        sequence: As `rank`.
        size_bytes: As `rank`.
        seconds: How long the call took to raise.
        raised_at: When it raised, by `time.monotonic()`, which all processes share.
    """

    classes: tuple[str, ...]
    message: str
    rank: int | None
    peer: int | None
    operation: str | None
    sequence: int | None
    size_bytes: int | None
    seconds: float
    raised_at: float


def caught(action: Callable[[], object]) -> Caught:
    """Does something that must raise.

    Args:
        action: What to do.

    Returns:
        What it raised.

    Raises:
        AssertionError: It did not raise.
    """
    began_at = time.monotonic()
    try:
        action()
    except Exception as error:
        raised_at = time.monotonic()
        return Caught(
            classes=tuple(cls.__name__ for cls in type(error).__mro__),
            message=str(error),
            rank=getattr(error, "rank", None),
            peer=getattr(error, "peer", None),
            operation=getattr(error, "operation", None),
            sequence=getattr(error, "sequence", None),
            size_bytes=getattr(error, "size_bytes", None),
            seconds=raised_at - began_at,
            raised_at=raised_at,
        )
    raise AssertionError("nothing was raised")
