"""Ranks that call different things learn so, all of them, and can go on in a new group."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

from tests.support.caught import Caught, caught
from tests.support.ranks import RankPool
from tests.support.worker import rank_of_call, regroup


def _zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


# What a rank may call; each takes async_op.
_CALLS: dict[str, Callable[[bool], dist.Work | None]] = {
    "sum": lambda later: dist.all_reduce(_zeros(100, 2560), async_op=later),
    "sum of twice as many": lambda later: dist.all_reduce(_zeros(200, 2560), async_op=later),
    "sum of none": lambda later: dist.all_reduce(_zeros(0), async_op=later),
    "max": lambda later: dist.all_reduce(_zeros(100, 2560), dist.ReduceOp.MAX, async_op=later),
    "sum of doubles": lambda later: dist.all_reduce(
        _zeros(100, 2560, dtype=torch.float64), async_op=later
    ),
    "broadcast of 0": lambda later: dist.broadcast(_zeros(100, 2560), 0, async_op=later),
    "broadcast of 1": lambda later: dist.broadcast(_zeros(100, 2560), 1, async_op=later),
    "gather": lambda later: dist.all_gather_into_tensor(
        _zeros(dist.get_world_size() * 100), _zeros(100), async_op=later
    ),
    "gather of more": lambda later: dist.all_gather_into_tensor(
        _zeros(dist.get_world_size() * 101), _zeros(101), async_op=later
    ),
    "barrier": lambda later: dist.barrier(async_op=later),
}


class Difference(NamedTuple):
    """Two calls that do not go together, and the words that tell one from the other."""

    one: str
    other: str
    words: tuple[str, str]

    def __str__(self) -> str:
        return f"{self.one} - {self.other}"


_DIFFERENCES = [
    Difference("sum", "sum of twice as many", ("256000", "512000")),
    Difference("sum of none", "sum", ("of 0 float32", "of 256000 float32")),
    Difference("sum", "max", ("SUM", "MAX")),
    Difference("sum", "sum of doubles", ("float32", "float64")),
    Difference("broadcast of 0", "broadcast of 1", ("root 0", "root 1")),
    Difference("gather", "gather of more", ("of 100 float32", "of 101 float32")),
    Difference("sum", "broadcast of 0", ("all_reduce", "broadcast")),
    Difference("gather", "barrier", ("all_gather", "barrier")),
]


def _call(names: Sequence[str], async_op: bool) -> tuple[Caught, float]:
    """Agrees once, then calls what is this rank's; afterwards sums in a new group."""
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(torch.ones(1))

    def differ() -> None:
        work = _CALLS[names[rank]](async_op)
        if work is not None:
            work.wait()

    error = caught(differ)
    group = dist.group.WORLD
    assert group is not None
    group.abort()
    regroup(range(world), "after the mismatch")
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    return error, total.item()


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("difference", _DIFFERENCES, ids=str)
def test_every_rank_is_shown_both_sides(
    ours: RankPool, difference: Difference, world: int, async_op: bool
) -> None:
    odd = world - 1
    names = [difference.one] * odd + [difference.other]
    results = ours.run(world, _call, names, async_op, timeout=20, group_timeout=15)
    for rank, (error, total) in enumerate(results):
        assert "MismatchError" in error.classes, error.message
        assert "DistBackendError" in error.classes
        for word in (*difference.words, f"rank {odd}", "#2"):
            assert word in error.message, (rank, word, error.message)
        assert error.rank == rank
        # One that differs from this rank.
        assert error.peer != rank
        assert rank == odd or error.peer == odd
        assert error.seconds < 5
        assert total == sum(range(world))


def _set_up_differently(variable: str, values: Sequence[str]) -> Caught:
    os.environ[variable] = values[rank_of_call()]
    group = dist.new_group()
    return caught(lambda: dist.all_reduce(torch.ones(8), group=group))


@pytest.mark.parametrize(
    ("variable", "values"),
    [
        ("HYBRIDCOMM_SLOT_BYTES", ("4096", "8192")),
        ("HYBRIDCOMM_SLOTS", ("2", "4")),
        ("HYBRIDCOMM_CHANNELS", ("1", "2")),
        ("HYBRIDCOMM_ALGORITHM", ("all_reduce=ring", "all_reduce=two_shot")),
    ],
    ids=["slot_bytes", "slots", "channels", "algorithm"],
)
def test_ranks_set_up_differently_are_told(
    ours: RankPool, variable: str, values: tuple[str, str]
) -> None:
    for error in ours.run(2, _set_up_differently, variable, values, timeout=20, group_timeout=15):
        assert "MismatchError" in error.classes, error.message
        for value in values:
            assert value.removeprefix("all_reduce=") in error.message
        assert error.seconds < 5
