"""A rank is killed, or ends, in any collective: all others name it within a second."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.process_group.begun import begun, wait_all
from tests.support import leftovers
from tests.support.caught import Caught, caught
from tests.support.ranks import RankPool
from tests.support.worker import rank_of_call, regroup, report

_WORLD = 4
_COUNT = 60_000


def _parts(count: int = _COUNT) -> list[torch.Tensor]:
    return [torch.ones(count) for _ in range(dist.get_world_size())]


def _one(count: int = _COUNT) -> torch.Tensor:
    return torch.ones(count)


def _at(root: int, parts: list[torch.Tensor]) -> list[torch.Tensor] | None:
    return parts if dist.get_rank() == root else None


def _uneven_exchange() -> object:
    rank, world = dist.get_rank(), dist.get_world_size()
    given = [_COUNT * ((rank + to) % 3) for to in range(world)]
    taken = [_COUNT * ((of + rank) % 3) for of in range(world)]
    return dist.all_to_all_single(_one(sum(taken)), _one(sum(given)), taken, given)


def _batch() -> object:
    with dist.distributed_c10d._coalescing_manager():
        for count in (5, _COUNT, 7):
            dist.all_reduce(_one(count))
    return None


def _later() -> object:
    wait_all(
        [
            dist.reduce(_one(), 1, async_op=True),
            dist.all_gather(_parts(), _one(), async_op=True),
            dist.barrier(async_op=True),
        ]
    )
    return None


_LOADS: dict[str, Callable[[], object]] = {
    "reduce": lambda: dist.reduce(_one(), 1),
    "uneven all_gather": lambda: dist.all_gather(
        [_one(_COUNT + 9 * rank) for rank in range(dist.get_world_size())],
        _one(_COUNT + 9 * dist.get_rank()),
    ),
    "reduce_scatter": lambda: dist.reduce_scatter(_one(), _parts()),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(_one(), torch.cat(_parts())),
    "gather": lambda: dist.gather(_one(), _at(2, _parts()), 2),
    "scatter": lambda: dist.scatter(_one(), _at(1, _parts()), 1),
    "all_to_all": lambda: dist.all_to_all(_parts(), _parts()),
    "uneven all_to_all_single": _uneven_exchange,
    "batch": _batch,
    "asynchronous": _later,
    "broadcast": lambda: dist.broadcast(_one(), 3),
    "all_reduce": lambda: dist.all_reduce(_one()),
    "barrier": lambda: dist.barrier(),
}


def _lose_a_rank(load: str, joined: bool) -> Caught:
    regroup(range(_WORLD), "all")
    if joined:
        _LOADS[load]()
    report("working")

    def work() -> None:
        while True:
            _LOADS[load]()

    return caught(work)


@pytest.mark.parametrize("joined", [False, True], ids=["joining", "running"])
@pytest.mark.parametrize("load", _LOADS)
def test_all_name_the_rank_that_was_killed(ours: RankPool, load: str, joined: bool) -> None:
    """In each collective, whatever it was at (nccl#863, pytorch#113281)."""
    chance = random.Random(f"{load} {joined}")
    victim = chance.randrange(_WORLD)
    call = ours.start(_WORLD, _lose_a_rank, load, joined, group=False, group_timeout=20)
    for _ in range(_WORLD):
        call.next_report()
    time.sleep(chance.uniform(0, 0.03))
    killed_at = call.kill(victim)
    outcomes = call.outcomes(timeout=15)
    assert outcomes[victim].status == -signal.SIGKILL
    for rank in {*range(_WORLD)} - {victim}:
        error = outcomes[rank].value
        assert error is not None, outcomes[rank].failure
        assert "PeerLostError" in error.classes, error.message
        assert (error.rank, error.peer) == (rank, victim), error.message
        assert f"rank {victim}" in error.message
        assert error.raised_at - killed_at < 1.0, error


# ---- leaving nothing ----------------------------------------------------------------------------


def _work_for_ever(load: str, joined: bool) -> None:
    regroup(range(_WORLD), "all")
    rank, world = dist.get_rank(), dist.get_world_size()

    def work() -> None:
        if load == "messages":
            received = dist.irecv(_one(1 << 20), (rank - 1) % world)
            dist.send(_one(1 << 20), (rank + 1) % world)
            begun(received).wait()
        else:
            _LOADS[load]()

    if joined:
        work()
    report("working")
    while True:
        work()


def _sum_of_ranks() -> float:
    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total)
    return total.item()


@pytest.mark.parametrize("joined", [False, True], ids=["joining", "running"])
@pytest.mark.parametrize("load", ["all_reduce", "all_to_all", "messages"])
def test_nothing_is_left_when_all_are_killed(ours: RankPool, load: str, joined: bool) -> None:
    """No file, no socket, no process; and the next job starts at once (vllm#51317)."""
    before = leftovers.system()
    call = ours.start(_WORLD, _work_for_ever, load, joined, group=False)
    for _ in range(_WORLD):
        call.next_report()
    for rank in range(_WORLD):
        call.kill(rank)
    assert [outcome.status for outcome in call.outcomes(10)] == [-signal.SIGKILL] * _WORLD
    began_at = time.monotonic()
    assert ours.run(_WORLD, _sum_of_ranks) == [6.0] * _WORLD
    assert time.monotonic() - began_at < 5
    assert leftovers.new_in_system(before) == []


# ---- ending without a goodbye -------------------------------------------------------------------


def _end(how: str, code: int) -> None:
    rank = dist.get_rank()
    group = dist.new_group()
    dist.all_reduce(_one(3), group=group)
    wait_all([dist.isend(_one(5), 1 - rank), dist.irecv(_one(5), 1 - rank)])
    if how == "receives never met":
        dist.irecv(_one(5), 1 - rank, tag=8)
        dist.irecv(_one(5), tag=9)
    elif how == "sends never met" and rank == 0:
        dist.isend(_one(1 << 20), 1, tag=8)
        dist.isend(_one(1), 1, tag=9)
    elif how == "a call of each kind never met" and rank == 1:
        dist.all_to_all(_parts(), _parts(), async_op=True)
        dist.gather(_one(), _at(1, _parts()), 1, group=group, async_op=True)
    time.sleep(0.2)  # nobody is gone while the other still calls
    if how == "an exception":
        raise SystemExit(code + rank)
    sys.exit(code + rank)


@pytest.mark.parametrize(
    "how",
    [
        "all is done",
        "receives never met",
        "sends never met",
        "a call of each kind never met",
        "an exception",
    ],
)
def test_a_program_ends_without_destroying_its_groups(ours: RankPool, how: str) -> None:
    """No abort, no hang, the exit status kept (pytorch#179291)."""
    began_at = time.monotonic()
    outcomes = ours.start(2, _end, how, 7).outcomes(timeout=10)
    assert time.monotonic() - began_at < 5
    assert [outcome.status for outcome in outcomes] == [7, 8], outcomes
    for outcome in outcomes:
        text = (outcome.failure or "").lower()
        assert not any(word in text for word in ("terminate", "fatal", "segmentation", "traceback"))


# ---- never coming -------------------------------------------------------------------------------


def _leave_before_the_first_call(load: str, leaver: int, polite: bool) -> Caught | None:
    group = dist.new_group(timeout=timedelta(seconds=2))
    rank = rank_of_call()
    if rank == leaver and not polite:
        signal.raise_signal(signal.SIGKILL)
    if rank == leaver:
        dist.destroy_process_group(group)
        return None
    calls: dict[str, Callable[[], object]] = {
        "gather": lambda: dist.gather(_one(), _at(0, _parts()), 0, group=group),
        "all_to_all": lambda: dist.all_to_all(_parts(), _parts(), group=group),
        "recv": lambda: dist.recv(_one(), leaver, group=group),
        "send": lambda: dist.send(_one(1 << 20), leaver, group=group),
    }
    return caught(calls[load])


@pytest.mark.parametrize("polite", [False, True], ids=["killed", "destroys it"])
@pytest.mark.parametrize("load", ["gather", "all_to_all", "recv", "send"])
def test_a_member_that_never_makes_its_first_call_is_named(
    ours: RankPool, load: str, polite: bool
) -> None:
    """Within the new group's time-out (gloo#520)."""
    outcomes = ours.start(3, _leave_before_the_first_call, load, 2, polite).outcomes(20)
    for rank in (0, 1):
        error = outcomes[rank].value
        assert error is not None, outcomes[rank].failure
        assert {"PeerLostError", "CommTimeoutError"} & set(error.classes), error.message
        assert error.peer == 2, error.message
        assert error.seconds <= 2.2


def _with_other_limits(by_call: float | None, load: str) -> Caught | None:
    """The group's time-out is set to 1 s after it was used; a call may have another."""
    group = dist.group.WORLD
    assert group is not None
    dist.all_reduce(_one(3))
    group.set_timeout(timedelta(seconds=1))
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["done"], timedelta(seconds=20))
        return None
    limit = timedelta(seconds=by_call) if by_call is not None else None
    try:
        if load == "recv":
            return caught(lambda: dist.recv(_one(), 1))
        options = dist.ReduceScatterOptions()
        if limit is not None:
            options.timeout = limit
        return caught(lambda: group.reduce_scatter([_one()], [_parts()], options).wait())
    finally:
        store.set("done", "")


@pytest.mark.parametrize(
    ("load", "by_call", "seconds"),
    [("recv", None, 1), ("reduce_scatter", None, 1), ("reduce_scatter", 2, 2)],
)
def test_a_limit_set_after_creation_holds_unless_a_call_has_its_own(
    ours: RankPool, load: str, by_call: float | None, seconds: float
) -> None:
    """pytorch#165422."""
    error = ours.run(2, _with_other_limits, by_call, load, group_timeout=60, timeout=20)[0]
    assert error is not None
    assert "CommTimeoutError" in error.classes, error.message
    assert 0.9 * seconds <= error.seconds <= 1.1 * seconds, error
    assert error.peer == 1


def _monitored(missing: int) -> Caught | None:
    group: Any = dist.group.WORLD
    store = dist.distributed_c10d._get_default_store()
    rank = dist.get_rank()
    if rank == missing:
        store.wait([str(r) for r in range(_WORLD) if r != missing], timedelta(seconds=20))
        return None
    error = caught(lambda: group.monitored_barrier(timedelta(seconds=1)))
    store.set(str(rank), "")
    return error


def test_a_monitored_barrier_blames_nobody_but_the_missing(ours: RankPool) -> None:
    """All ranks name rank 2, none another, in time (pytorch#83289)."""
    errors = ours.run(_WORLD, _monitored, 2, timeout=20)
    for rank in (0, 1, 3):
        error = errors[rank]
        assert error is not None
        assert (error.rank, error.peer) == (rank, 2), error.message
        assert "ank 2 " in error.message
        assert error.seconds < 1.5
