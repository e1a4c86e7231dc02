"""A program's end: by Ctrl-C, in a forked child, with threads and callbacks still under way."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from tests.support.caught import Caught, caught
from tests.support.ranks import RankPool
from tests.support.worker import report


def _end_with_a_thread_waiting() -> None:
    dist.barrier()
    if dist.get_rank() == 0:
        # Rank 1 never makes this call.
        threading.Thread(target=lambda: dist.all_reduce(torch.ones(3)), daemon=True).start()
        time.sleep(0.3)
    else:
        time.sleep(0.6)


def _end_with_callbacks_under_way() -> None:
    def slow(future: torch.futures.Future[list[torch.Tensor]]) -> None:
        for _ in range(20):
            time.sleep(0.01)
            torch.ones(10).add_(1)
        dist.all_reduce(future.value()[0])

    dist.all_reduce(torch.zeros(1 << 22), async_op=True)
    for _ in range(3):
        work = dist.all_reduce(torch.ones(3), async_op=True)
        assert work is not None
        work.get_future().then(slow)
    dist.barrier()


def _end_with_work_held() -> None:
    # Freed when the interpreter clears its modules.
    builtins = sys.modules["builtins"]
    work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
    assert work is not None
    builtins.__dict__["held"] = (work, work.get_future(), dist.new_group())
    dist.barrier()


_ENDS: dict[str, Callable[[], None]] = {
    "a thread waiting": _end_with_a_thread_waiting,
    "callbacks under way": _end_with_callbacks_under_way,
    "work held": _end_with_work_held,
}


def _end(how: str) -> None:
    _ENDS[how]()
    sys.exit(7)


@pytest.mark.parametrize("how", _ENDS)
def test_the_exit_status_of_a_program_is_kept(ours: RankPool, how: str) -> None:
    outcomes = ours.start(2, _end, how).outcomes(timeout=20)
    assert [outcome.status for outcome in outcomes] == [7, 7], outcomes
    for outcome in outcomes:
        assert "terminate called" not in (outcome.failure or "")


def _interrupted(asynchronously: bool) -> tuple[bool, Caught]:
    # What a shell runs in the background ignores this signal, and so does all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    dist.barrier()
    interrupted = False
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True) if asynchronously else None
        report("ready")
        try:
            _ = work.wait() if work is not None else dist.all_reduce(torch.ones(3))
        except KeyboardInterrupt:
            interrupted = True
    else:
        report("ready")
        time.sleep(1.0)
    return interrupted, caught(lambda: dist.all_reduce(torch.ones(3)))


@pytest.mark.parametrize("asynchronously", [False, True])
def test_ctrl_c_ends_a_wait_and_the_others_are_told(ours: RankPool, asynchronously: bool) -> None:
    call = ours.start(2, _interrupted, asynchronously)
    for _ in range(2):
        call.next_report()
    time.sleep(0.2)
    call.kill(0, signal.SIGINT)
    outcomes = call.outcomes(timeout=15)
    for rank, outcome in enumerate(outcomes):
        assert outcome.value is not None, outcome.failure
        interrupted, later = outcome.value
        assert interrupted == (rank == 0)
        assert "CommAbortedError" in later.classes, later
        assert later.peer == 0


def _handle_a_signal() -> tuple[list[int], float]:
    handled: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, _: handled.append(number))
    total = torch.ones(1)
    if dist.get_rank() == 0:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
    else:
        time.sleep(0.6)
    dist.all_reduce(total)
    return handled, total.item()


def test_a_handler_that_returns_leaves_the_wait_alone(ours: RankPool) -> None:
    assert ours.run(2, _handle_a_signal) == [([signal.SIGALRM], 2.0), ([], 2.0)]


def _fork() -> tuple[int, float]:
    dist.all_reduce(torch.ones(1))
    child = os.fork()
    if child == 0:
        error = caught(lambda: dist.all_reduce(torch.ones(1)))
        right = "ValueError" in error.classes and "fork" in error.message
        dist.destroy_process_group()
        sys.exit(3 if right else 4)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    total = torch.ones(1)
    dist.all_reduce(total)
    return status, total.item()


def test_a_forked_child_is_refused_and_ends_well(ours: RankPool) -> None:
    assert ours.run(2, _fork) == [(3, 2.0)] * 2
