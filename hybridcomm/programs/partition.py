"""How a tensor is cut into the chunks of a program."""

from __future__ import annotations

from math import gcd

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


def partition(count: int, itemsize: int, parts: int) -> list[tuple[int, int]]:
    """Cut ``count`` elements into ``parts`` consecutive pieces on cache line boundaries.

    Every piece has ``count / parts`` elements, rounded up to whole elements and then to whole
    cache lines, as long as there are any left: the last piece that is not empty may be shorter,
    and those after it are empty. Every rank and language computes the same cut, since it depends
    on these three numbers only.

    Args:
        count: Number of elements, 0 or more.
        itemsize: Bytes of an element, at least 1.
        parts: Number of pieces, at least 1.

    Returns:
        For each piece its first element and its number of elements.

    Raises:
        ValueError: A number is too small.
    """
    for name, value, least in (("count", count, 0), ("itemsize", itemsize, 1), ("parts", parts, 1)):
        if value < least:
            raise ValueError(f"{name}: {value} is too small; at least {least}")
    line = ALIGNMENT // gcd(ALIGNMENT, itemsize)  # elements in the least whole number of lines
    size = -(-count // parts)
    size += -size % line
    pieces = []
    for part in range(parts):
        begin = min(part * size, count)
        pieces.append((begin, min(size, count - begin)))
    return pieces
