"""Many ranks, and many groups that come and go with everything in them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist

from tests.process_group import mixed
from tests.process_group.begun import begun, wait_all
from tests.process_group.mixed import Call, Calls, NewGroup, Plan, Step
from tests.support.leftovers import Footprint, footprint, settled_footprint
from tests.support.ranks import RankPool

_MANY = 16
_REST = 0.2  # seconds; what had to be done only once ends meanwhile


@pytest.fixture(scope="module")
def many(pool: RankPool) -> Iterator[RankPool]:
    """Sixteen processes, gone after these tests."""
    with RankPool(pool.backend, _MANY, pool.implementation) as ranks:
        yield ranks


def _play(plan: Plan) -> list[str]:
    return mixed.Player().play(plan)


def _every_call(groups: int) -> Iterator[Step]:
    """Every collective, each reduction of some type, and messages; in each group."""
    number = 0
    for name in mixed.NAMES:
        for group in range(groups):
            reduces = name in mixed.REDUCING
            for dtype, op in (("float32", "SUM"), ("int32", "AVG"), ("bfloat16", "MAX")):
                count = 700 if group == 0 else 41
                uneven = name in mixed.MAY_BE_UNEVEN and op == "AVG"
                root = (number * 7) % (_MANY if group == 0 else 3)
                call = Call(
                    number,
                    group,
                    name,
                    dtype,
                    op if reduces else "",
                    count,
                    root,
                    uneven,
                    "contiguous",
                )
                number += 1
                yield Calls("in turn" if group == 0 else "later", (call,))


@pytest.mark.parametrize(
    "setting", [None, *range(7)], ids=lambda setting: "default" if setting is None else str(setting)
)
def test_sixteen_ranks_are_exact(ours: RankPool, many: RankPool, setting: int | None) -> None:
    """With the default options and with every algorithm, beside a group of three."""
    assert ours.backend == many.backend
    if setting is None:
        plan = list(_every_call(1))
    else:
        # Calls of group 1 are the plan's default group's, with other options.
        first: list[Step] = [NewGroup(tuple(range(_MANY)), setting), NewGroup((15, 0, 8), setting)]
        plan = first + [_shifted(step) for step in _every_call(2)]
    found = many.run(_MANY, _play, plan, timeout=60)
    assert [line for of_rank in found for line in of_rank] == []


def _shifted(step: Step) -> Step:
    assert isinstance(step, Calls)
    return replace(step, calls=tuple(replace(c, group=c.group + 1) for c in step.calls))


# ---- groups -------------------------------------------------------------------------------------


def _use(group: dist.ProcessGroup, number: int) -> None:
    """Collectives and messages, some of them on the engine's thread."""
    rank, world = dist.get_rank(), dist.get_world_size()
    total = torch.full((1000,), float(rank + number))
    work = dist.all_reduce(total, group=group, async_op=True)
    received = torch.zeros(100)
    peer, source = (rank + 1) % world, (rank - 1) % world
    wait_all(
        [
            dist.isend(torch.full((100,), float(rank)), peer, group=group),
            dist.irecv(received, source, group=group),
        ]
    )
    begun(work).wait()
    outputs = [torch.zeros(2) for _ in range(world)]
    dist.all_to_all(outputs, [torch.full((2,), float(rank)) for _ in range(world)], group=group)
    assert total[0].item() == sum(range(world)) + world * number
    assert received[0].item() == source
    assert [output[0].item() for output in outputs] == [*range(world)]


def _come_and_go(times: int, idle: int) -> tuple[Footprint, Footprint]:
    """Footprints after a tenth of the groups, when caches are filled, and after all."""
    early = None
    held = [dist.new_group() for _ in range(idle)]
    for number in range(times):
        group = dist.new_group()
        assert group is not None
        _use(group, number)
        dist.destroy_process_group(group)
        del group
        if number == times // 10:
            time.sleep(_REST)
            early = footprint()
    assert early is not None
    late = settled_footprint(early)
    del held
    return early, late


def test_two_hundred_groups_with_messages_leave_nothing(ours: RankPool) -> None:
    """Descriptors, threads and mapped memory stay the same (pytorch#129868, #40400)."""
    for early, late in ours.run(3, _come_and_go, 200, 20, timeout=60):
        assert late.descriptors == early.descriptors
        assert late.threads == early.threads
        assert late.shared_bytes == early.shared_bytes
        # The reference maps nothing itself, but its threads have malloc reserve address space.
        if ours.implementation == "compiled":
            assert late.virtual_bytes - early.virtual_bytes < 1 << 20


def _all_at_once(times: int) -> tuple[Footprint, Footprint, Footprint, Footprint]:
    """Before there are groups; with groups that nobody has used; all used; all destroyed."""
    world = dist.group.WORLD
    assert world is not None
    _use(world, 0)
    warm = dist.new_group()
    assert warm is not None
    _use(warm, 0)
    dist.destroy_process_group(warm)
    del warm, world
    time.sleep(_REST)
    before = footprint()
    groups = [dist.new_group() for _ in range(times)]
    idle = footprint()
    for number, group in enumerate(groups):
        assert group is not None
        _use(group, number)
    time.sleep(_REST)
    used = footprint()
    for group in groups:
        dist.destroy_process_group(group)
    groups.clear()
    del group
    after = settled_footprint(before)
    dist.barrier()  # the other rank ends what WORLD holds when it is through
    return before, idle, used, after


def test_two_hundred_groups_at_once(ours: RankPool) -> None:
    """Unused they hold nothing, used no thread of their own, destroyed nothing again."""
    for before, idle, used, after in ours.run(2, _all_at_once, 200, timeout=60):
        assert idle[:3] == before[:3]
        assert used.threads == before.threads
        if ours.implementation == "compiled":
            assert used.shared_bytes > before.shared_bytes
        assert after[:3] == before[:3]


# ---- overlapping --------------------------------------------------------------------------------


def _first_the_pair(threads: bool) -> list[str]:
    """Group {0, 1}, then WORLD; ranks 0 and 1 in different order, or each in two threads."""
    rank, world = dist.get_rank(), dist.get_world_size()
    pair = dist.new_group([0, 1])
    wrong: list[str] = []

    def sums(group: dist.ProcessGroup | None, members: int, step: int) -> None:
        values = torch.full((2000,), rank + step)
        work = begun(dist.all_reduce(values, group=group, async_op=True))
        if threads:
            work.wait()
        checks.append((work, values, sum(range(members)) + members * step))

    for step in range(60):
        checks: list[tuple[dist.Work, torch.Tensor, int]] = []
        calls = [partial(sums, None, world, step)]
        if rank < 2:
            calls.insert(0, partial(sums, pair, 2, step))
        if (rank + step) % 2:
            calls.reverse()
        if threads:
            workers = [threading.Thread(target=call) for call in calls]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        else:
            for call in calls:
                call()
        for work, values, expected in checks:
            work.wait()
            if not bool((values == expected).all()):
                wrong.append(f"step {step}: {values[0]}, expected {expected}")
    return wrong


@pytest.mark.parametrize("threads", [False, True], ids=["in another order", "in two threads"])
def test_a_pair_and_the_world_do_not_disturb_each_other(pool: RankPool, threads: bool) -> None:
    """pytorch#192581."""
    assert pool.run(4, _first_the_pair, threads, timeout=30) == [[]] * 4
