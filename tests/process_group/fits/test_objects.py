"""Python objects travel between the ranks of the whole group and of a part of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.support.ranks import RankPool


def _object(rank: int, to: int | None = None) -> dict[str, Any]:
    """Of another size and type of content on each rank."""
    return {"rank": rank, "to": to, "text": "é" * (1 + 1000 * rank), "part": {rank, (rank, None)}}


def _objects(members: list[int]) -> list[bool]:
    group = dist.new_group(members)
    rank = dist.get_rank()
    if rank not in members:
        return []
    first, last = members[0], members[-1]
    right = []

    everybody: list[Any] = [None] * len(members)
    dist.all_gather_object(everybody, _object(rank), group=group)
    right.append(everybody == [_object(member) for member in members])

    at_last: list[Any] | None = [None] * len(members) if rank == last else None
    dist.gather_object(_object(rank), at_last, dst=last, group=group)
    right.append(at_last is None or at_last == [_object(member) for member in members])

    given = [_object(last, to=member) for member in members] if rank == last else None
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, given, src=last, group=group)
    right.append(mine == [_object(last, to=rank)])

    both = [_object(first), "second"] if rank == first else [None, None]
    dist.broadcast_object_list(both, src=first, group=group)
    right.append(both == [_object(first), "second"])

    if rank == first:
        dist.send_object_list([_object(first), 7], dst=last, group=group)
    elif rank == last:
        came: list[Any] = [None, None]
        source = dist.recv_object_list(came, src=first, group=group)
        right += [source == first, came == [_object(first), 7]]
    return right


@pytest.mark.parametrize("members", [[0, 1, 2], [0, 2]], ids=["all", "a part"])
def test_objects_arrive_as_they_were(pool: RankPool, members: list[int]) -> None:
    for rank, right in enumerate(pool.run(3, _objects, members)):
        assert all(right)
        assert bool(right) == (rank in members)


def _tensors() -> list[float]:
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, torch.full((5,), float(dist.get_rank())))
    return [tensor.sum().item() for tensor in everybody]


def test_objects_may_be_tensors(pool: RankPool) -> None:
    assert pool.run(3, _tensors) == [[0.0, 5.0, 10.0]] * 3
