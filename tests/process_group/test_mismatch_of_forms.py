"""Ranks that differ in a collective with a root, with parts, or with lengths of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.process_group.begun import begun
from tests.support.caught import Caught, caught
from tests.support.ranks import RankPool
from tests.support.worker import regroup

_OPS = dist.ReduceOp
_Call = Callable[[bool], Any]


def _zeros(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(count, dtype=dtype)


def _parts(*counts: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """One tensor for each rank; the last count goes on."""
    world = dist.get_world_size()
    return [_zeros(counts[min(rank, len(counts) - 1)], dtype) for rank in range(world)]


def _reduce(count: int, root: int, op: _OPS.RedOpType = _OPS.SUM) -> _Call:
    return lambda later: dist.reduce(_zeros(count), root, op, async_op=later)


def _reduce_scatter(
    *counts: int, op: _OPS.RedOpType = _OPS.SUM, dtype: torch.dtype = torch.float32
) -> _Call:
    def call(later: bool) -> Any:
        parts = _parts(*counts, dtype=dtype)
        output = torch.zeros_like(parts[dist.get_rank()])
        return dist.reduce_scatter(output, parts, op, async_op=later)

    return call


def _all_gather(*counts: int) -> _Call:
    def call(later: bool) -> Any:
        parts = _parts(*counts)
        return dist.all_gather(parts, torch.zeros_like(parts[dist.get_rank()]), async_op=later)

    return call


def _gather(count: int, root: int, dtype: torch.dtype = torch.float32) -> _Call:
    def call(later: bool) -> Any:
        parts = _parts(count, dtype=dtype) if dist.get_rank() == root else None
        return dist.gather(_zeros(count, dtype), parts, root, async_op=later)

    return call


def _scatter(count: int, root: int, dtype: torch.dtype = torch.float32) -> _Call:
    def call(later: bool) -> Any:
        parts = _parts(count, dtype=dtype) if dist.get_rank() == root else None
        return dist.scatter(_zeros(count, dtype), parts, root, async_op=later)

    return call


def _all_to_all(count: int, dtype: torch.dtype = torch.float32) -> _Call:
    return lambda later: dist.all_to_all(
        _parts(count, dtype=dtype), _parts(count, dtype=dtype), async_op=later
    )


def _exchange(given: Sequence[int], taken: Sequence[int]) -> _Call:
    """all_to_all_single with what goes to ranks 0 and 1, and what comes from them."""

    def call(later: bool) -> Any:
        return dist.all_to_all_single(
            _zeros(sum(taken)), _zeros(sum(given)), [*taken], [*given], async_op=later
        )

    return call


def _batch(*counts: int) -> _Call:
    """Sums in a batch."""

    def call(_: bool) -> None:
        with dist.distributed_c10d._coalescing_manager(async_ops=True) as batch:
            for count in counts:
                dist.all_reduce(_zeros(count))
        batch.wait()

    return call


class Difference(NamedTuple):
    """Two calls that do not go together, and the words that tell one from the other."""

    name: str
    one: _Call
    other: _Call
    words: tuple[str, str]


_DIFFERENCES = [
    Difference("reduce, root", _reduce(9, 0), _reduce(9, 1), ("root 0", "root 1")),
    Difference("reduce, count", _reduce(9, 1), _reduce(8, 1), ("of 9 float32", "of 8 float32")),
    Difference("reduce, op", _reduce(9, 1), _reduce(9, 1, _OPS.MAX), ("SUM", "MAX")),
    Difference("reduce, averaged", _reduce(9, 0), _reduce(9, 0, _OPS.AVG), ("SUM", "AVG")),
    Difference(
        "reduce or all_reduce",
        _reduce(9, 0),
        _batch(9),
        ("called reduce #1", "called all_reduce #1"),
    ),
    Difference(
        "reduce_scatter, count", _reduce_scatter(9), _reduce_scatter(8), ("of 9 fl", "of 8 fl")
    ),
    Difference(
        "reduce_scatter, op", _reduce_scatter(9), _reduce_scatter(9, op=_OPS.MIN), ("SUM", "MIN")
    ),
    Difference(
        "reduce_scatter, dtype",
        _reduce_scatter(9),
        _reduce_scatter(9, dtype=torch.int32),
        ("float32", "int32"),
    ),
    Difference(
        "reduce_scatter, lengths",
        _reduce_scatter(3, 6),
        _reduce_scatter(6, 3),
        ("reduce_scatter", "unevenly split"),
    ),
    Difference(
        "reduce_scatter, even or not",
        _reduce_scatter(3),
        _reduce_scatter(2, 4),
        ("of 3 float32", "unevenly split"),
    ),
    Difference(
        "all_gather, lengths",
        _all_gather(3, 6),
        _all_gather(6, 3),
        ("all_gather", "unevenly split"),
    ),
    Difference("gather, root", _gather(9, 0), _gather(9, 1), ("root 0", "root 1")),
    Difference("gather, count", _gather(9, 1), _gather(8, 1), ("of 9 fl", "of 8 fl")),
    Difference(
        "gather, dtype", _gather(9, 0), _gather(9, 0, torch.float16), ("float32", "float16")
    ),
    Difference("scatter, root", _scatter(9, 0), _scatter(9, 1), ("root 0", "root 1")),
    Difference("scatter, count", _scatter(9, 0), _scatter(8, 0), ("of 9 fl", "of 8 fl")),
    Difference("scatter, dtype", _scatter(9, 0), _scatter(9, 0, torch.int64), ("float32", "int64")),
    Difference(
        "gather or scatter",
        _gather(9, 0),
        _scatter(9, 0),
        ("called gather #1", "called scatter #1"),
    ),
    Difference("all_to_all, count", _all_to_all(9), _all_to_all(8), ("36 B", "32 B")),
    Difference(
        "all_to_all, dtype", _all_to_all(9), _all_to_all(9, torch.int32), ("float32", "int32")
    ),
    Difference(
        "all_to_all_single, splits",
        _exchange([4, 5], [4, 6]),
        _exchange([7, 2], [5, 2]),
        ("24 B", "28 B"),
    ),
    Difference(
        "all_to_all_single, none expected",
        _exchange([4, 5], [4, 0]),
        _exchange([7, 2], [5, 2]),
        ("0 B", "28 B"),
    ),
    Difference("batch, the second", _batch(1, 9), _batch(1, 8), ("of 9 float32", "of 8 float32")),
]


def _differ(number: int, async_op: bool) -> tuple[Caught, float]:
    """The last rank makes the other call; afterwards all sum in a new group."""
    rank, world = dist.get_rank(), dist.get_world_size()
    difference = _DIFFERENCES[number]
    call = difference.other if rank == world - 1 else difference.one

    def act() -> None:
        work = call(async_op)
        if async_op and work is not None:
            begun(work).wait()

    error = caught(act)
    group = dist.group.WORLD
    assert group is not None
    group.abort()
    regroup(range(world), "after the mismatch")
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    return error, total.item()


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("difference", _DIFFERENCES, ids=lambda difference: difference.name)
def test_every_rank_is_shown_both_sides(
    ours: RankPool, difference: Difference, world: int, async_op: bool
) -> None:
    if world > 2 and difference.name.startswith("all_to_all_single"):
        pytest.skip("its lengths are those of two ranks")
    number = _DIFFERENCES.index(difference)
    results = ours.run(world, _differ, number, async_op, timeout=20, group_timeout=15)
    odd = world - 1
    for rank, (error, total) in enumerate(results):
        assert "MismatchError" in error.classes, error.message
        for word in (*difference.words, f"rank {odd}"):
            assert word in error.message, (rank, word, error.message)
        assert error.rank == rank
        assert error.peer != rank
        assert error.seconds < 5
        assert total == sum(range(world))
