"""Many groups: what they cost, and that operations of several do not disturb each other."""

from __future__ import annotations

import gc
import random
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from tests.support.leftovers import Footprint, footprint, settled_footprint
from tests.support.ranks import RankPool

_REST = 0.2  # seconds; what had to be done only once ends meanwhile


def _make_and_destroy(times: int) -> tuple[Footprint, Footprint]:
    """Footprints after a tenth of the groups, when caches are filled, and after all."""
    early = None
    for number in range(times):
        group = dist.new_group()
        values = torch.full((1000,), float(number))
        dist.all_reduce(values, group=group)
        assert values[0].item() == number * dist.get_world_size()
        dist.destroy_process_group(group)
        del group
        if number == times // 10:
            time.sleep(_REST)
            early = footprint()
    assert early is not None
    return early, settled_footprint(early)


def test_two_hundred_groups_leave_nothing(ours: RankPool) -> None:
    for early, late in ours.run(2, _make_and_destroy, 200, timeout=60):
        assert late.descriptors == early.descriptors
        assert late.threads == early.threads
        assert late.shared_bytes == early.shared_bytes
        # The reference maps nothing itself, but its threads have malloc reserve address space.
        if ours.implementation == "compiled":
            assert late.virtual_bytes - early.virtual_bytes < 1 << 20


def _begin_anew(times: int) -> tuple[list[Footprint], Footprint]:
    """The whole job over, each time with a store of its own; nothing waits for the collector."""
    rank, footprints = dist.get_rank(), []
    gc.collect()
    gc.disable()
    try:
        for _ in range(times):
            serving = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            ports = torch.tensor([serving.port if rank == 0 else 0])
            dist.all_reduce(ports)
            store = serving if rank == 0 else TCPStore("127.0.0.1", int(ports), is_master=False)
            dist.destroy_process_group()
            dist.init_process_group("hybridcomm", store=store, rank=rank, world_size=2)
            del store, serving
            footprints.append(footprint())
        dist.barrier()  # rank 0 serves the last store until the other has begun, too
        return footprints[:3], settled_footprint(footprints[2])
    finally:
        gc.enable()


def test_a_job_begun_anew_leaves_no_store_behind(ours: RankPool) -> None:
    for early, late in ours.run(2, _begin_anew, 12, timeout=60):
        # Those of the last one or two are still being closed; one that stays holds a descriptor.
        assert late.descriptors <= max(few.descriptors for few in early) + 4


def _make_idle(times: int) -> tuple[Footprint, Footprint]:
    dist.all_reduce(torch.ones(1))
    time.sleep(_REST)
    before = footprint()
    groups = [dist.new_group() for _ in range(times)]
    after = footprint()
    del groups
    dist.barrier()  # the other rank ends what WORLD holds when it is through
    return before, after


def test_an_idle_group_has_no_thread_and_no_memory(ours: RankPool) -> None:
    for before, after in ours.run(2, _make_idle, 100, timeout=60):
        assert after.threads == before.threads
        assert after.shared_bytes == before.shared_bytes
        assert after.descriptors == before.descriptors


_MEMBERS = ((0, 1, 2), (0, 1), (1, 2))


def _overlap(order_differs: bool) -> int:
    """Sums in all groups of this rank at once; returns how many sums were right."""
    rank = dist.get_rank()
    groups = [dist.new_group(members) for members in _MEMBERS]
    right = 0
    for step in range(50):
        mine = [which for which, members in enumerate(_MEMBERS) if rank in members]
        if order_differs and (step + rank) % 2:
            mine.reverse()
        values = {which: torch.full((3000,), float(10**rank + step + which)) for which in mine}
        works = [dist.all_reduce(values[i], group=groups[i], async_op=True) for i in mine]
        for work in reversed(works):
            assert work is not None
            work.wait()
        for which in mine:
            expected = sum(10**member + step + which for member in _MEMBERS[which])
            right += bool((values[which] == expected).all())
    return right


@pytest.mark.parametrize("differs", [False, True], ids=["same order", "another order"])
def test_overlapping_groups_are_exact(pool: RankPool, differs: bool) -> None:
    assert pool.run(3, _overlap, differs) == [100, 150, 100]


def _two_threads() -> list[str]:
    """One thread per group, each calling synchronously and as fast as it can."""
    groups = [dist.new_group(), dist.new_group()]
    rank, world = dist.get_rank(), dist.get_world_size()
    wrong = []

    def work(which: int) -> None:
        for step in range(200):
            values = torch.full((100 + 5000 * which,), float(rank + step + 1000 * which))
            dist.all_reduce(values, group=groups[which])
            expected = sum(range(world)) + world * (step + 1000 * which)
            if not bool((values == expected).all()):
                wrong.append(f"group {which}, step {step}")

    threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def test_two_threads_with_a_group_each_are_exact(pool: RankPool) -> None:
    assert pool.run(3, _two_threads) == [[], [], []]


def _barriers(asynchronously: bool) -> list[tuple[float, float]]:
    """When this rank came to each barrier, and when it left."""
    chance = random.Random(dist.get_rank())
    times = []
    for _ in range(20):
        time.sleep(chance.uniform(0, 0.01))
        came = time.monotonic()
        if asynchronously:
            work = dist.barrier(async_op=True)
            assert work is not None
            work.wait()
        else:
            dist.barrier()
        times.append((came, time.monotonic()))
    return times


@pytest.mark.parametrize("asynchronously", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
def test_nobody_leaves_a_barrier_before_the_last_has_come(
    pool: RankPool, world: int, asynchronously: bool
) -> None:
    of_ranks = pool.run(world, _barriers, asynchronously)
    for times in zip(*of_ranks, strict=True):
        assert max(came for came, _ in times) <= min(left for _, left in times)
