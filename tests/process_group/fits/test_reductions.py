"""Reductions that few backends have: PREMUL_SUM, sparse tensors, one root's result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _make_nccl_premul_sum

from tests.support.caught import Caught, caught
from tests.support.ranks import RankPool


def _premultiplied(kind: str) -> list[bool]:
    """The factor is of this rank; as a number and as a tensor."""
    rank, world = dist.get_rank(), dist.get_world_size()
    values = [torch.arange(1.0, 9.0) * 10**of for of in range(world)]
    total = torch.zeros(8)
    for of in range(world):
        total += values[of] * (of + 0.5)
    right = []
    for factor in (rank + 0.5, torch.tensor([rank + 0.5])):
        op: Any = _make_nccl_premul_sum(factor)
        mine = values[rank].clone()
        if kind == "all_reduce":
            dist.all_reduce(mine, op)
            right.append(torch.equal(mine, total))
        elif kind == "reduce":
            dist.reduce(mine, 1, op)
            right.append(torch.equal(mine, total if rank == 1 else values[rank]))
        else:
            part = torch.empty(8 // world)
            dist.reduce_scatter_tensor(part, mine, op)
            right.append(torch.equal(part, total.chunk(world)[rank]))
    return right


@pytest.mark.parametrize("kind", ["all_reduce", "reduce", "reduce_scatter"])
@pytest.mark.parametrize("world", [2, 4])
def test_premul_sum(ours: RankPool, kind: str, world: int) -> None:
    assert ours.run(world, _premultiplied, kind) == [[True, True]] * world


def _sparse(rank: int, world: int, dtype: torch.dtype, dense: int) -> Tensor:
    """Rank r has 3 r elements, not coalesced and in no order; rank 0 has none."""
    count = 3 * rank
    generator = torch.Generator().manual_seed(rank)
    indices = torch.randint(0, 4, (2, count), generator=generator)
    shape = (count, 5) if dense else (count,)
    values = torch.arange(float(count * 5)).reshape(-1, 5)[:, : shape[-1] if dense else 1]
    size = (4, 4, 5) if dense else (4, 4)
    of = (values.reshape(shape) + 10 * world * rank).to(dtype)
    return torch.sparse_coo_tensor(indices, of, size)


def _sparse_sum(dtype: torch.dtype, dense: int, asynchronously: bool) -> bool:
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = _sparse(rank, world, dtype, dense)
    work = dist.all_reduce(mine, async_op=asynchronously)
    if work is not None:
        work.wait()
    total = torch.stack([_sparse(of, world, dtype, dense).to_dense() for of in range(world)]).sum(0)
    return mine.is_sparse and torch.equal(mine.to_dense(), total.to(dtype))


@pytest.mark.parametrize("dense", [0, 1], ids=["all sparse", "rows"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("asynchronously", [False, True])
def test_sparse_tensors(
    pool: RankPool, dtype: torch.dtype, dense: int, asynchronously: bool
) -> None:
    assert pool.run(3, _sparse_sum, dtype, dense, asynchronously) == [True] * 3


def _sparse_average() -> bool:
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = _sparse(rank, world, torch.float32, 1)
    dist.all_reduce(mine, dist.ReduceOp.AVG)
    parts = [_sparse(of, world, torch.float32, 1).to_dense() for of in range(world)]
    return torch.equal(mine.to_dense(), torch.stack(parts).sum(0) / world)


def test_the_average_of_sparse_tensors(ours: RankPool) -> None:
    assert ours.run(3, _sparse_average) == [True] * 3


def _sparse_mismatch() -> Caught:
    size = (4, 4 + dist.get_rank())
    mine = torch.sparse_coo_tensor(torch.tensor([[1], [2]]), torch.ones(1), size)
    return caught(lambda: dist.all_reduce(mine))


def test_sparse_tensors_of_other_shapes(ours: RankPool) -> None:
    errors = ours.run(2, _sparse_mismatch)
    assert all("MismatchError" in error.classes for error in errors)
    assert all(error.message.startswith("all_reduce #1 ") for error in errors)
    # Whoever finds it first says it; the other one says where to look.
    told = ["[4, 4]" in error.message and "[4, 5]" in error.message for error in errors]
    assert any(told)
    assert all(t or "see the error of rank" in e.message for t, e in zip(told, errors, strict=True))


def _sparse_gradients() -> list[float]:
    torch.manual_seed(0)
    table = torch.nn.Embedding(10, 3, sparse=True)
    model = torch.nn.parallel.DistributedDataParallel(table)
    rank = dist.get_rank()
    model(torch.tensor([rank, rank + 1, 7])).sum().backward()
    gradient = table.weight.grad
    assert gradient is not None
    assert gradient.is_sparse
    return [float(value) for value in gradient.to_dense()[:, 0]]


def test_sparse_gradients_in_ddp(pool: RankPool) -> None:
    expected = [0.5, 1.0, 0.5, 0, 0, 0, 0, 1.0, 0, 0]
    assert pool.run(2, _sparse_gradients) == [expected] * 2


def _reduce_to_root(size: int) -> list[bool]:
    rank, world = dist.get_rank(), dist.get_world_size()
    right = []
    for root in range(world):
        mine = torch.arange(float(size)) + 100 * rank
        before = mine.clone()
        dist.reduce(mine, root)
        total = torch.arange(float(size)) * world + 100 * sum(range(world))
        right.append(torch.equal(mine, total if rank == root else before))
    return right


@pytest.mark.parametrize("size", [1, 1000, 1 << 19])
def test_reduce_leaves_other_ranks_tensors_alone(ours: RankPool, size: int) -> None:
    assert ours.run(3, _reduce_to_root, size) == [[True] * 3] * 3
