"""A peer that does not come is waited for as long as was said, and then named."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from tests.support.caught import Caught, caught
from tests.support.ranks import RankPool
from tests.support.worker import rank_of_call, report

# A time-out may be this much off.
_SLACK = 0.1


def _store() -> Store:
    store: Store = dist.distributed_c10d._get_default_store()
    return store


def _world_group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def _unless_absent(absent: int, action: Callable[[], object]) -> Caught | None:
    """Lets the absent rank wait until all others have caught what `action` raises."""
    others = [str(rank) for rank in range(dist.get_world_size()) if rank != absent]
    if rank_of_call() == absent:
        _store().wait(others, timedelta(seconds=30))
        return None
    try:
        return caught(action)
    finally:
        _store().set(str(rank_of_call()), "")


_OPERATIONS: dict[str, Callable[[], object]] = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(1000)),
    "broadcast": lambda: dist.broadcast(torch.ones(1000), 0),
    "all_gather": lambda: dist.all_gather_into_tensor(
        torch.zeros(1000 * dist.get_world_size()), torch.ones(1000)
    ),
    "barrier": lambda: dist.barrier(),
}


def _check(error: Caught | None, seconds: float, rank: int, absent: int) -> None:
    assert error is not None
    assert "CommTimeoutError" in error.classes, error.message
    assert "DistBackendError" in error.classes
    assert seconds * (1 - _SLACK) <= error.seconds <= seconds * (1 + _SLACK), error
    assert (error.rank, error.peer) == (rank, absent), error.message
    assert f"rank {rank}" in error.message
    assert f"rank {absent}" in error.message


def _absent_from_the_second(absent: int, operation: str, asynchronously: bool) -> Caught | None:
    dist.all_reduce(torch.ones(1))
    action = _OPERATIONS[operation]
    if asynchronously:
        return _unless_absent(
            absent, lambda: dist.all_reduce(torch.ones(1000), async_op=True).wait()
        )
    return _unless_absent(absent, action)


@pytest.mark.parametrize("operation", _OPERATIONS)
def test_an_absent_rank_is_named_by_all(ours: RankPool, operation: str) -> None:
    world, absent = 3, 2
    results = ours.run(
        world, _absent_from_the_second, absent, operation, False, group_timeout=2, timeout=20
    )
    for rank in (0, 1):
        _check(results[rank], 2.0, rank, absent)
        assert results[rank].operation == operation
        assert results[rank].sequence == 2
        assert f"{operation} #2" in results[rank].message


def test_an_absent_rank_is_named_by_an_asynchronous_call(ours: RankPool) -> None:
    results = ours.run(
        2, _absent_from_the_second, 1, "all_reduce", True, group_timeout=1, timeout=20
    )
    _check(results[0], 1.0, rank=0, absent=1)


def _absent_from_the_first(absent: int) -> Caught | None:
    return _unless_absent(absent, _OPERATIONS["all_reduce"])


@pytest.mark.parametrize("absent", [0, 1])
def test_a_rank_that_never_calls_anything_is_named(ours: RankPool, absent: int) -> None:
    results = ours.run(3, _absent_from_the_first, absent, group_timeout=1, timeout=20)
    for rank in {0, 1, 2} - {absent}:
        _check(results[rank], 1.0, rank, absent)


def _with_its_own_timeout(absent: int, seconds: float) -> Caught | None:
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=seconds)

    def action() -> None:
        _world_group().allreduce([torch.ones(10)], options).wait()

    return _unless_absent(absent, action)


@pytest.mark.parametrize(("of_group", "of_call"), [(20, 1), (1, 2)])
def test_the_call_s_timeout_overrides_the_group_s(
    ours: RankPool, of_group: float, of_call: float
) -> None:
    results = ours.run(2, _with_its_own_timeout, 1, of_call, group_timeout=of_group, timeout=20)
    _check(results[0], of_call, rank=0, absent=1)


def _with_a_new_timeout(absent: int, seconds: float) -> Caught | None:
    _world_group().set_timeout(timedelta(seconds=seconds))
    return _unless_absent(absent, _OPERATIONS["all_reduce"])


def test_a_timeout_set_after_creation_holds(ours: RankPool) -> None:
    results = ours.run(2, _with_a_new_timeout, 1, 1.0, group_timeout=20, timeout=20)
    _check(results[0], 1.0, rank=0, absent=1)


def _late(seconds: float) -> tuple[Caught | None, float]:
    values = torch.ones(100)
    error = None
    if dist.get_rank() == 1:
        time.sleep(seconds * 1.5)
        dist.all_reduce(values)
    else:
        work = dist.all_reduce(values, async_op=True)
        assert work is not None
        error = caught(lambda: work.wait(timedelta(seconds=seconds)))
        work.wait()
    return error, values.sum().item()


def test_a_wait_that_gives_up_leaves_the_call_alone(ours: RankPool) -> None:
    (error, total), (_, total_of_the_late) = ours.run(2, _late, 1.0, timeout=20)
    _check(error, 1.0, rank=0, absent=1)
    assert total == total_of_the_late == 200


def _leave_a_new_group(leaver: int) -> Caught | None:
    group = dist.new_group(timeout=timedelta(seconds=2))
    if dist.get_rank() == leaver:
        os._exit(0)
    return caught(lambda: dist.all_reduce(torch.ones(1), group=group))


@pytest.mark.parametrize("leaver", [0, 2])
def test_a_member_that_exits_before_its_first_call_is_named(ours: RankPool, leaver: int) -> None:
    outcomes = ours.start(3, _leave_a_new_group, leaver).outcomes(20)
    assert outcomes[leaver].status == 0
    for rank in {0, 1, 2} - {leaver}:
        error = outcomes[rank].value
        assert error is not None, outcomes[rank].failure
        assert {"CommTimeoutError", "PeerLostError"} & set(error.classes), error.message
        assert error.peer == leaver, error.message
        assert error.seconds <= 2 * (1 + _SLACK)


def _repeat_until_it_fails() -> Caught:
    values = torch.ones(1 << 20)
    dist.all_reduce(values)
    report("started")
    last = time.monotonic()

    def repeat() -> None:
        nonlocal last
        while True:
            last = time.monotonic()
            dist.all_reduce(values.fill_(1))

    error = caught(repeat)
    report(error.raised_at - last)
    return error


def test_a_rank_that_stops_in_the_middle_is_named(ours: RankPool) -> None:
    call = ours.start(2, _repeat_until_it_fails, group_timeout=1)
    assert {call.next_report()[0] for _ in range(2)} == {0, 1}
    call.kill(1, signal.SIGSTOP)
    rank, seconds = call.next_report()
    assert rank == 0
    assert 1 - _SLACK <= seconds <= 1 + _SLACK
    call.kill(1, signal.SIGCONT)
    outcomes = call.outcomes(20)
    for outcome in outcomes:
        assert outcome.value is not None, outcome.failure
        assert "CommTimeoutError" in outcome.value.classes, outcome.value.message
        assert "rank 1" in outcome.value.message
    assert outcomes[0].value.peer == 1
