"""A rank dies: the others say so within a second, name it, leave nothing, and go on without it."""

from __future__ import annotations

import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.support import leftovers
from tests.support.caught import Caught, caught
from tests.support.ranks import RankPool
from tests.support.worker import rank_of_call, regroup, report

_WORLD = 3


def _asynchronous() -> None:
    works = [dist.all_reduce(torch.ones(1 << 16), async_op=True) for _ in range(4)]
    for work in works:
        assert work is not None
        work.wait()


# What the ranks are at when one is killed.
_LOADS: dict[str, Callable[[], object]] = {
    "small all_reduce": lambda: dist.all_reduce(torch.ones(4)),
    "large all_reduce": lambda: dist.all_reduce(torch.ones(1 << 20)),
    "asynchronous all_reduce": _asynchronous,
    "broadcast": lambda: dist.broadcast(torch.ones(1 << 18), 1),
    "all_gather": lambda: dist.all_gather_into_tensor(
        torch.zeros(dist.get_world_size() << 16), torch.ones(1 << 16)
    ),
    "barrier": lambda: dist.barrier(),
}


@dataclass(frozen=True)
class Survival:
    """What a rank that was not killed went through.

    Args:
        error: What it caught.
        sums: Results of the survivors' all_reduces in their new group.
        before: What its process held before there was a group.
        after: What it held after the last group was destroyed.
    """

    error: Caught
    sums: list[float]
    before: leftovers.Footprint
    after: leftovers.Footprint


def _fill_caches() -> None:
    """Makes what a process makes once and keeps: its progress thread, its own pidfd."""
    regroup(range(_WORLD), "first")
    _asynchronous()
    dist.destroy_process_group()
    time.sleep(0.1)  # the thread goes to sleep


def _lose_a_rank(load: str, join_first: bool) -> Survival:
    rank = rank_of_call()
    _fill_caches()
    before = leftovers.footprint()
    regroup(range(_WORLD), "all")
    step = _LOADS[load]
    if join_first:
        step()
    report("working")

    def work() -> None:
        while True:
            step()

    error = caught(work)
    group = dist.group.WORLD
    assert group is not None
    group.abort()
    # The new group's members follow from the error alone, as they would in a user's script.
    regroup([member for member in range(_WORLD) if member != error.peer], "survivors")
    sums = []
    for step_number in range(3):
        values = torch.full((100_000,), float(rank + step_number))
        dist.all_reduce(values)
        assert bool((values == values[0]).all())
        sums.append(values[0].item())
    dist.destroy_process_group()
    del group
    return Survival(error, sums, before, leftovers.settled_footprint(before))


def _check_survivors(ours: RankPool, load: str, victim: int, delay: float, joined: bool) -> None:
    call = ours.start(_WORLD, _lose_a_rank, load, joined, group=False, group_timeout=20)
    for _ in range(_WORLD):
        call.next_report()
    time.sleep(delay)
    killed_at = call.kill(victim)
    outcomes = call.outcomes(timeout=15)
    assert outcomes[victim].status == -signal.SIGKILL
    survivors = [rank for rank in range(_WORLD) if rank != victim]
    for rank in survivors:
        survival = outcomes[rank].value
        assert survival is not None, outcomes[rank].failure
        error = survival.error
        assert "PeerLostError" in error.classes, error.message
        assert "DistBackendError" in error.classes
        assert (error.rank, error.peer) == (rank, victim), error.message
        assert f"rank {victim} died" in error.message
        assert error.raised_at - killed_at < 1.0, error
        assert survival.sums == [sum(survivors) + 2.0 * step for step in range(3)]
        assert survival.after.shared_bytes == survival.before.shared_bytes
        assert survival.after.descriptors == survival.before.descriptors


@pytest.mark.parametrize("trial", range(20))
def test_survivors_name_the_dead_rank_and_go_on(ours: RankPool, trial: int) -> None:
    chance = random.Random(trial)
    load = list(_LOADS)[trial % len(_LOADS)]
    victim = chance.randrange(_WORLD)
    _check_survivors(ours, load, victim, delay=chance.uniform(0, 0.05), joined=True)


@pytest.mark.parametrize("victim", range(_WORLD))
def test_a_death_while_the_group_forms_is_an_error_in_time(ours: RankPool, victim: int) -> None:
    call = ours.start(_WORLD, _form_a_group, victim, group_timeout=2)
    outcomes = call.outcomes(timeout=15)
    assert outcomes[victim].status == -signal.SIGKILL
    for rank in {0, 1, 2} - {victim}:
        error = outcomes[rank].value
        assert error is not None, outcomes[rank].failure
        assert {"CommTimeoutError", "PeerLostError"} & set(error.classes), error.message
        assert error.peer == victim, error.message
        assert error.seconds < 2.5


def _form_a_group(victim: int) -> Caught:
    if dist.get_rank() == victim:
        # Asynchronous, so that the death comes in the midst of joining.
        dist.all_reduce(torch.ones(1), async_op=True)
        signal.raise_signal(signal.SIGKILL)
    return caught(lambda: [dist.all_reduce(torch.ones(1)) for _ in range(1000)])


def _serve_the_store_and_die() -> Caught:
    """The usual set-up: rank 0 serves the store through which all ranks meet."""
    rank = rank_of_call()
    dist.init_process_group("hybridcomm", rank=rank, world_size=2, timeout=timedelta(seconds=20))
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        signal.raise_signal(signal.SIGKILL)
    return caught(lambda: dist.all_reduce(torch.ones(1)))


def test_the_death_of_the_rank_that_serves_the_store_is_named(ours: RankPool) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    call = ours.start(2, _serve_the_store_and_die, group=False, environment=address)
    outcomes = call.outcomes(timeout=15)
    error = outcomes[1].value
    assert error is not None, outcomes[1].failure
    assert "PeerLostError" in error.classes, error.message
    assert error.peer == 0
    assert error.seconds < 1


def _reduce_for_ever() -> None:
    dist.all_reduce(torch.ones(1 << 20))
    report("working")
    while True:
        dist.all_reduce(torch.ones(1 << 20))


def _sum_of_ranks() -> float:
    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total)
    return total.item()


def test_nothing_is_left_when_all_are_killed_and_a_new_run_starts_at_once(ours: RankPool) -> None:
    before = leftovers.system()
    call = ours.start(4, _reduce_for_ever)
    for _ in range(4):
        call.next_report()
    for rank in range(4):
        call.kill(rank)
    assert [outcome.status for outcome in call.outcomes(10)] == [-signal.SIGKILL] * 4
    assert leftovers.new_in_system(before) == []
    assert ours.run(4, _sum_of_ranks) == [6.0] * 4


def _leave_without_goodbye(code: int, unfinished: bool) -> None:
    dist.all_reduce(torch.ones(1000))
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    if not unfinished:
        assert work is not None
        work.wait()
    elif dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1000), async_op=True)  # which the other never joins
    sys.exit(code + dist.get_rank())


@pytest.mark.parametrize("unfinished", [False, True])
def test_a_script_that_ends_without_destroying_the_group_ends_well(
    ours: RankPool, unfinished: bool
) -> None:
    outcomes = ours.start(2, _leave_without_goodbye, 7, unfinished).outcomes(timeout=10)
    assert [outcome.status for outcome in outcomes] == [7, 8], outcomes
    for outcome in outcomes:
        text = (outcome.failure or "").lower()
        assert not any(word in text for word in ("terminate", "fatal", "segmentation", "traceback"))
