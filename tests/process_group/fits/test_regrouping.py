"""Groups out of groups: split, merged, shrunk, also after a rank has died."""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.distributed_c10d import SHRINK_ABORT, shrink_group

from tests.support.caught import Caught, caught
from tests.support.ranks import RankPool
from tests.support.worker import report


def _use(group: Any) -> list[float]:
    """A collective, and a message around the ring; what came of them."""
    rank, size = group.rank(), group.size()
    total = torch.tensor([10.0 ** dist.get_rank()])
    group.allreduce([total]).wait()
    came = torch.empty(1)
    receiving = group.recv([came], (rank - 1) % size, 3)
    group.send([torch.tensor([100.0 + rank])], (rank + 1) % size, 3).wait()
    receiving.wait()
    return [total.item(), came.item()]


def _world() -> Any:
    group = dist.group.WORLD
    assert group is not None
    return group


def _split(ranks: list[list[int]]) -> dict[str, Any]:
    parent = _world()
    dist.all_reduce(torch.ones(3))
    mine = next((part for part in ranks if dist.get_rank() in part), ranks[0])
    group = parent.split_group(mine, group_name=f"part {mine}", group_desc="a part")
    dist.all_reduce(torch.ones(3))
    found = {}
    if group is not None:
        found = {
            "rank": group.rank(),
            "size": group.size(),
            "name": group.group_name,
            "used": _use(group),
        }
    del group
    dist.all_reduce(torch.ones(3))
    return found


def test_a_group_is_split_and_goes_on(ours: RankPool) -> None:
    found = ours.run(4, _split, [[3, 0], [1, 2]])
    assert [part["size"] for part in found] == [2] * 4
    assert [part["name"] for part in found] == ["part [3, 0]", *["part [1, 2]"] * 2, "part [3, 0]"]
    assert [part["used"][0] for part in found] == [1001.0, 110.0, 110.0, 1001.0]
    assert sorted((found[0]["rank"], found[3]["rank"])) == [0, 1]
    assert [part["used"][1] + part["rank"] for part in found] == [101.0] * 4


def test_a_rank_in_no_part_has_no_group(ours: RankPool) -> None:
    found = ours.run(3, _split, [[0, 2]])
    assert found[1] == {}
    assert [found[rank]["used"][0] for rank in (0, 2)] == [101.0] * 2


def _split_again() -> list[list[float]]:
    """Three times under one name: the parts before are still used, or gone."""
    used, kept = [], []
    for keep in (True, False, True):
        part = _world().split_group([0, 1] if dist.get_rank() < 2 else [2, 3])
        used.append(_use(part))
        if keep:
            kept.append(part)
        del part
    return used + [_use(part) for part in kept]


def test_a_group_is_split_again(ours: RankPool) -> None:
    for rank, used in enumerate(ours.run(4, _split_again)):
        assert used == [[11.0 * 100.0 ** (rank // 2), 101.0 - rank % 2]] * 5


def _split_and_fail() -> list[Caught]:
    """An error in a part names the rank by its number in the job, too."""
    group = _world().split_group([1, 2], group_name="part")
    if group is None:
        return []
    return [caught(lambda: group.allreduce([torch.ones(3 + group.rank())]).wait())]


def test_an_error_in_a_part(ours: RankPool) -> None:
    found = ours.run(3, _split_and_fail)
    assert found[0] == []
    for rank in (1, 2):
        (error,) = found[rank]
        assert "MismatchError" in error.classes
        assert "group 'part'" in error.message
        assert f"rank {rank - 1} (global rank {rank})" in error.message


def _merge() -> dict[str, Any]:
    """Two halves become one group, in another order of ranks."""
    rank = dist.get_rank()
    half = _world().split_group([0, 1] if rank < 2 else [2, 3], group_name=f"half {rank // 2}")
    used = _use(half)
    store = dist.distributed_c10d._get_default_store()
    assert half is not None
    whole = half.merge_remote_group(
        PrefixStore("merged", store), 4, timedelta(seconds=20), "merged", None
    )
    return {
        "half": used,
        "rank": whole.rank(),
        "size": whole.size(),
        "whole": _use(whole),
        "again": _use(half),
    }


def test_two_groups_become_one(ours: RankPool) -> None:
    found = ours.run(4, _merge)
    assert sorted(part["rank"] for part in found) == [0, 1, 2, 3]
    for rank, part in enumerate(found):
        assert part["size"] == 4
        assert part["whole"] == [1111.0, 100.0 + (part["rank"] - 1) % 4]
        assert part["half"] == part["again"]
        assert part["half"][0] == (11.0 if rank < 2 else 1100.0)


def _shrink(excluded: list[int]) -> dict[str, Any]:
    dist.all_reduce(torch.ones(3))
    rank = dist.get_rank()
    if rank in excluded:
        return {}
    group = shrink_group(excluded)
    total = torch.tensor([10.0**rank])
    dist.all_reduce(total)
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, rank)
    return {
        "rank": dist.get_rank(),
        "size": dist.get_world_size(),
        "is the default": group is dist.group.WORLD,
        "total": total.item(),
        "before": everybody,
    }


# torch shrinks backends; the group in plain Python is a process group itself.
@pytest.mark.parametrize("excluded", [[0], [1, 3]])
def test_a_group_shrinks(compiled: RankPool, excluded: list[int]) -> None:
    found = compiled.run(4, _shrink, excluded)
    stay = [rank for rank in range(4) if rank not in excluded]
    for rank, part in enumerate(found):
        if rank in excluded:
            assert part == {}
            continue
        assert part == {
            "rank": stay.index(rank),
            "size": len(stay),
            "is the default": True,
            "total": sum(10.0**other for other in stay),
            "before": stay,
        }


def _shrink_after_death() -> list[Any]:
    dist.all_reduce(torch.ones(3))
    report("ready")
    if dist.get_rank() == 1:
        signal.pause()
    error = caught(lambda: dist.all_reduce(torch.ones(3)))
    shrink_group([1], shrink_flags=SHRINK_ABORT)
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    return [error, dist.get_rank(), total.item()]


def test_survivors_shrink_the_group_and_go_on(compiled: RankPool) -> None:
    call = compiled.start(3, _shrink_after_death)
    for _ in range(3):
        call.next_report()
    call.kill(1)
    outcomes = call.outcomes(timeout=20)
    for rank in (0, 2):
        assert outcomes[rank].failure is None, outcomes[rank].failure
        error, new_rank, total = outcomes[rank].value
        assert "PeerLostError" in error.classes
        assert error.peer == 1
        assert (new_rank, total) == (rank // 2, 3.0)


def _shrink_a_part() -> list[float]:
    group = dist.new_group([0, 1, 3])
    rank = dist.get_rank()
    if rank in (0, 3):
        dist.all_reduce(torch.ones(1), group=shrink_group([1], group=group))
    total = torch.tensor([10.0**rank])
    dist.all_reduce(total)  # the whole group is as it was
    return total.tolist()


def test_a_subgroup_shrinks_by_itself(compiled: RankPool) -> None:
    assert compiled.run(4, _shrink_a_part) == [[1111.0]] * 4


def _subgroups() -> list[list[float]]:
    rank = dist.get_rank()
    mine, _ = dist.new_subgroups(group_size=2)
    across, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    alone = dist.new_group([rank], use_local_synchronization=True)
    results = []
    for group in (mine, across, alone):
        total = torch.tensor([10.0**rank])
        dist.all_reduce(total, group=group)
        results.append(total.tolist())
    return results


def test_subgroups(pool: RankPool) -> None:
    for rank, results in enumerate(pool.run(4, _subgroups)):
        pair = 10.0 ** (rank // 2 * 2)
        assert results == [[pair * 11], [10.0 ** (rank % 2) * 101], [10.0**rank]]
