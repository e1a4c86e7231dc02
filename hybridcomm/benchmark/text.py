"""Writes quantities for people."""

from __future__ import annotations


def bytes_text(size: int) -> str:
    """Writes a size.

    Args:
        size: Bytes.

    Returns:
        For instance "4 B", "64 KiB" or "25 MiB".
    """
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} B"


def seconds_text(seconds: float) -> str:
    """Writes a time to three digits.

    Args:
        seconds: Seconds.

    Returns:
        For instance "4.1 µs", "28 ms" or "1.5 s".
    """
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
