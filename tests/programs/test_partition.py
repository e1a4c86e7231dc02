"""The cut of a tensor into pieces: complete, in order, on cache lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcomm.programs import partition


@pytest.mark.parametrize(
    ("count", "itemsize", "parts", "pieces"),
    [
        (0, 4, 3, [(0, 0), (0, 0), (0, 0)]),
        (1, 4, 3, [(0, 1), (1, 0), (1, 0)]),
        (16, 4, 2, [(0, 16), (16, 0)]),
        (17, 4, 2, [(0, 16), (16, 1)]),
        (48, 4, 2, [(0, 32), (32, 16)]),
        (100, 1, 4, [(0, 64), (64, 36), (100, 0), (100, 0)]),
        (10, 16, 2, [(0, 8), (8, 2)]),
        (100, 4, 1, [(0, 112 - 12)]),
        (130, 3, 2, [(0, 128), (128, 2)]),  # 64 elements of 3 bytes are the first whole lines
        (2**40, 8, 2, [(0, 2**39), (2**39, 2**39)]),
    ],
)
def test_cut(count: int, itemsize: int, parts: int, pieces: list[tuple[int, int]]) -> None:
    assert partition(count, itemsize, parts) == pieces


@given(st.integers(0, 10_000), st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 70))
def test_properties(count: int, itemsize: int, parts: int) -> None:
    pieces = partition(count, itemsize, parts)
    assert len(pieces) == parts
    end = 0
    for begin, elements in pieces:
        assert begin == end
        end = begin + elements
        assert end == count or elements == pieces[0][1]
        assert elements == 0 or begin * itemsize % 64 == 0
    assert end == count
    # No larger than it must be: one line less and the pieces would not reach the end.
    size = -(-pieces[0][1] * itemsize // 64) * 64 // itemsize
    assert parts * (size - 64 // itemsize) < count or count == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((-1, 4, 2), "count: -1"), ((1, 0, 2), "itemsize: 0"), ((1, 4, 0), "parts: 0")],
)
def test_refuses(arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        partition(*arguments)
