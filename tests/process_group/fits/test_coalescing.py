"""Several operations as one: the coalescing manager and the coalesced forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.support.caught import Caught, caught
from tests.support.ranks import RankPool

_COUNT = 5


def _input(rank: int, number: int, rows: int = 1) -> Tensor:
    """The number-th tensor of a rank; each has another length."""
    return torch.arange(float(rows * (3 + number))) * (rank + 1) + 1000 * number


def _all_reduce() -> list[Tensor]:
    values = [_input(dist.get_rank(), number) for number in range(_COUNT)]
    for value in values:
        dist.all_reduce(value)
    return values


def _all_gather() -> list[Tensor]:
    rank, world = dist.get_rank(), dist.get_world_size()
    outputs = []
    for number in range(_COUNT):
        outputs.append(torch.empty(world * (3 + number)))
        dist.all_gather_into_tensor(outputs[-1], _input(rank, number))
    return outputs


def _reduce_scatter() -> list[Tensor]:
    rank, world = dist.get_rank(), dist.get_world_size()
    outputs = []
    for number in range(_COUNT):
        outputs.append(torch.empty(3 + number))
        dist.reduce_scatter_tensor(outputs[-1], _input(rank, number, rows=world))
    return outputs


def _expected(name: str, rank: int, world: int) -> list[Tensor]:
    results = []
    for number in range(_COUNT):
        rows = world if name == "reduce_scatter" else 1
        inputs = [_input(of, number, rows) for of in range(world)]
        total = torch.stack(inputs).sum(0)
        if name == "all_gather":
            results.append(torch.cat(inputs))
        else:
            results.append(total.chunk(world)[rank] if rows > 1 else total)
    return results


_CALLS: dict[str, Callable[[], list[Tensor]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
}


def _managed(name: str, asynchronously: bool) -> bool:
    with _coalescing_manager(async_ops=asynchronously) as manager:
        values = _CALLS[name]()
    if asynchronously:
        manager.wait()
    expected = _expected(name, dist.get_rank(), dist.get_world_size())
    return all(torch.equal(a, b) for a, b in zip(values, expected, strict=True))


@pytest.mark.parametrize("asynchronously", [False, True])
@pytest.mark.parametrize("name", _CALLS)
def test_the_coalescing_manager(ours: RankPool, name: str, asynchronously: bool) -> None:
    assert ours.run(3, _managed, name, asynchronously) == [True] * 3


def _forms(asynchronously: bool) -> list[bool]:
    rank, world = dist.get_rank(), dist.get_world_size()
    summed = [_input(rank, number) for number in range(_COUNT)]
    gathered = [[torch.empty(3 + number) for number in range(_COUNT)] for _ in range(world)]
    works: list[Any] = [
        dist.all_reduce_coalesced(summed, async_op=asynchronously),
        dist.all_gather_coalesced(
            gathered, [_input(rank, number) for number in range(_COUNT)], async_op=asynchronously
        ),
    ]
    for work in works:
        assert (work is not None) == asynchronously
        if asynchronously:
            work.wait()
    rows = zip(*gathered, strict=True)
    return [
        all(map(torch.equal, summed, _expected("all_reduce", rank, world))),
        all(map(torch.equal, map(torch.cat, rows), _expected("all_gather", rank, world))),
    ]


@pytest.mark.parametrize("asynchronously", [False, True])
@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_the_coalesced_forms(pool: RankPool, asynchronously: bool) -> None:
    assert pool.run(3, _forms, asynchronously) == [[True, True]] * 3


def _mismatched() -> list[Caught]:
    """The third of a batch has another length on rank 1."""

    def reduce() -> None:
        with _coalescing_manager():
            for number in range(_COUNT):
                more = int(number == 2 and dist.get_rank() == 1)
                dist.all_reduce(torch.ones(10 + number + more))

    return [caught(reduce)]


def test_an_error_in_a_batch(ours: RankPool) -> None:
    for (error,) in ours.run(2, _mismatched):
        assert "MismatchError" in error.classes


def _mixed() -> list[Any]:
    """A batch of another thread's group does not swallow what this one does."""
    other = dist.new_group()
    value, alone = torch.ones(4), torch.ones(2)
    group: Any = dist.group.WORLD
    group._start_coalescing(torch.device("cpu"))
    dist.all_reduce(value)
    dist.all_reduce(alone, group=other)
    immediately = alone.tolist()
    group._end_coalescing(torch.device("cpu")).wait()
    return [immediately, value.tolist()]


def test_a_batch_is_of_one_group(ours: RankPool) -> None:
    assert ours.run(2, _mixed) == [[[2.0] * 2, [2.0] * 4]] * 2
