"""What the ranks exchange, and what must come of it, in numpy alone.

Values are small integers that differ from element to element and from rank to rank, so that sums
are exact in every dtype and a lost, doubled or misplaced element shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cases import Case, Form

Array = NDArray[Any]

# numpy has no bfloat16: it is kept in its bits.
_STORED = {"bfloat16": "uint16"}
# Up to which every integer is exact.
_EXACT = {
    "float64": 1 << 53,
    "float32": 1 << 24,
    "float16": 1 << 11,
    "bfloat16": 1 << 8,
    "int64": 1 << 62,
    "int32": (1 << 31) - 1,
    "int8": 127,
    "uint8": 255,
}
# After so many elements values come again: primes, so that no slot's or part's size is a multiple.
_CYCLES = (997, 509, 251, 113, 61, 31, 13, 5, 3)
_BLOCK = 1 << 20  # elements checked at once, so that checking needs little memory
_ROOT = 0


def stored_dtype(dtype: str) -> np.dtype[Any]:
    """How numpy keeps a dtype.

    Args:
        dtype: Its name.

    Returns:
        numpy's dtype of the same size.
    """
    return np.dtype(_STORED.get(dtype, dtype))


def encode(values: NDArray[np.float64], dtype: str) -> Array:
    """Turns numbers into a dtype that holds them exactly.

    Args:
        values: Any shape.
        dtype: Name of the dtype.

    Returns:
        The same shape, in `stored_dtype(dtype)`.
    """
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(stored_dtype(dtype))


def decode(stored: Array, dtype: str) -> NDArray[np.float64]:
    """Turns a dtype into numbers.

    Args:
        stored: In `stored_dtype(dtype)`; any shape.
        dtype: Name of the dtype.

    Returns:
        The same shape.
    """
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


def is_root(rank: int) -> bool:
    """Whether a rank is the root of the collectives that have one."""
    return rank == _ROOT


def neighbour(case: Case, rank: int) -> int | None:
    """With whom a rank plays ping-pong; the last of an odd number of ranks has nobody."""
    other = rank ^ 1
    return other if other < case.world else None


def fill(case: Case, rank: int, source: Array) -> None:
    """Writes what a rank contributes.

    Args:
        case: The case.
        rank: The rank.
        source: Its input.
    """
    for start, stop in _blocks(source.size):
        source[start:stop] = encode(_values(case, rank, start, stop), case.dtype)


def count_wrong(case: Case, rank: int, result: Array) -> int:
    """Compares a rank's result with what it must be in float64.

    Args:
        case: The case.
        rank: The rank.
        result: Its output.

    Returns:
        How many elements are wrong.
    """
    expected = _expectation(case, rank)
    if expected is None:
        return 0
    wrong = 0
    for start, stop in _blocks(result.size):
        want = expected(start, stop)
        got = decode(result[start:stop], case.dtype)
        if case.reduction == "avg":
            # Divided, and so rounded: to the dtype's digits, or for integers toward zero.
            inexact = case.dtype.startswith(("float", "bfloat"))
            margin = np.abs(want) / _EXACT[case.dtype] if inexact else 0.0
            want = want if inexact else np.trunc(want)
            wrong += int(np.count_nonzero(~(np.abs(got - want) <= margin)))
        else:
            wrong += int(np.count_nonzero(got != want))
    return wrong


def input_and_output(
    case: Case, rank: int, allocate: Callable[[int], Array]
) -> tuple[Array, Array]:
    """Lays out a rank's buffers.

    Args:
        case: The case.
        rank: The rank.
        allocate: Gives memory of so many elements.

    Returns:
        Input and output; in place, one is the other or a part of it.
    """
    if case.form is Form.OUT_OF_PLACE:
        return allocate(case.input_elements), allocate(case.output_elements)
    whole = allocate(case.elements)
    own = slice(rank * case.count, (rank + 1) * case.count)
    if case.collective == "all_gather":
        return whole[own], whole
    if case.collective == "reduce_scatter":
        return whole, whole[own]
    return whole, whole


def _blocks(size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, size, _BLOCK):
        yield start, min(start + _BLOCK, size)


def _values(case: Case, rank: int, start: int, stop: int) -> NDArray[np.float64]:
    largest = _EXACT[case.dtype] // (case.world if case.reduction in ("sum", "avg") else 1)
    cycle = next((cycle for cycle in _CYCLES if cycle <= largest), 1)
    index = np.arange(start, stop, dtype=np.int64)
    return ((index * 7 + rank * 3) % cycle + 1).astype(np.float64)


def _expectation(case: Case, rank: int) -> Callable[[int, int], NDArray[np.float64]] | None:
    """What lies from one element of a rank's output to another; None where it has none."""
    count = case.count

    def of(source: int, offset: int = 0) -> Callable[[int, int], NDArray[np.float64]]:
        return lambda start, stop: _values(case, source, start + offset, stop + offset)

    def reduced(offset: int = 0) -> Callable[[int, int], NDArray[np.float64]]:
        return lambda start, stop: _reduce(case, start + offset, stop + offset)

    def parts(of_rank: Callable[[int], int]) -> Callable[[int, int], NDArray[np.float64]]:
        """Each rank's part in turn; `of_rank` is where it lies in that rank's input."""

        def look(start: int, stop: int) -> NDArray[np.float64]:
            pieces = []
            while start < stop:
                source, at = divmod(start, count)
                upto = min(stop, (source + 1) * count)
                offset = of_rank(source)
                pieces.append(_values(case, source, offset + at, offset + at + upto - start))
                start = upto
            return np.concatenate(pieces)

        return look

    match case.collective:
        case "all_reduce":
            return reduced()
        case "reduce":
            return reduced() if is_root(rank) else None
        case "reduce_scatter":
            return reduced(rank * count)
        case "broadcast":
            return of(_ROOT)
        case "scatter":
            return of(_ROOT, rank * count)
        case "all_gather":
            return parts(lambda source: 0)
        case "gather":
            return parts(lambda source: 0) if is_root(rank) else None
        case "all_to_all":
            return parts(lambda source: rank * count)
        case "send_recv":
            return of((rank - 1) % case.world)
        case "ping_pong":
            other = neighbour(case, rank)
            return None if other is None else of(other)
        case _:
            return None


def _reduce(case: Case, start: int, stop: int) -> NDArray[np.float64]:
    combine = {"min": np.minimum, "max": np.maximum}.get(case.reduction, np.add)
    result = _values(case, 0, start, stop)
    for rank in range(1, case.world):
        result = combine(result, _values(case, rank, start, stop))
    return result / case.world if case.reduction == "avg" else result
