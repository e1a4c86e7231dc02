"""Tensors of everyday and of extraordinary size, with the group's default options."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from hybridcomm.reference import run_collective
from tests.support.ranks import RankPool
from tests.support.tensors import difference, values

# Several segments at the default size of a slot, and not a multiple of anything.
_COUNT = 5_000_011
_BLOCK = 1 << 18  # small, so that temporaries stay in the cache


def _everyday(operation: str) -> str | None:
    """Compares this rank's result with the reference's; both are made here."""
    rank, world = dist.get_rank(), dist.get_world_size()
    inputs = [values(torch.float32, _COUNT, seed=1, rank=r) for r in range(world)]
    mine = inputs[rank].clone()
    if operation == "all_reduce":
        dist.all_reduce(mine)
        right = run_collective("all_reduce", "two_shot", inputs, slot_bytes=1 << 26)[rank]
        return difference(mine, right)
    if operation == "broadcast":
        dist.broadcast(mine, 1)
        return difference(mine, inputs[1])
    gathered = torch.full((world, _COUNT), 7.0)
    dist.all_gather_into_tensor(gathered.view(-1), mine)
    return difference(gathered, torch.stack(inputs))


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("operation", ["all_reduce", "broadcast", "all_gather"])
def test_many_segments_at_the_default_slot_size(pool: RankPool, operation: str, world: int) -> None:
    if pool.backend == "gloo" and operation == "all_reduce":
        pytest.skip("Gloo adds in another order")
    assert pool.run(world, _everyday, operation, timeout=100) == [None] * world


def _blocks(tensor: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Pieces of a tensor with the positions of their elements."""
    for start in range(0, tensor.numel(), _BLOCK):
        piece = tensor[start : start + _BLOCK]
        yield piece, torch.arange(start, start + piece.numel())


def _value(position: Tensor, rank: int) -> Tensor:
    return ((position * (2 * rank + 3)) ^ (position >> 11)) & 0xFF


def _extraordinary() -> list[int]:
    """Sums more than 2^31 bytes; returns where elements are wrong."""
    rank, world = dist.get_rank(), dist.get_world_size()
    tensor = torch.empty((1 << 31) + 77, dtype=torch.uint8)
    for piece, position in _blocks(tensor):
        piece.copy_(_value(position, rank))
    dist.all_reduce(tensor)
    wrong = []
    for piece, position in _blocks(tensor):
        right = sum(_value(position, r) for r in range(world)) & 0xFF
        wrong += position[piece != right][:1].tolist()
    return wrong


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_more_than_two_gibibytes(pool: RankPool) -> None:
    assert pool.run(2, _extraordinary, timeout=500) == [[], []]
