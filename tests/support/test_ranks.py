"""The pool itself: what it must notice, and that nothing outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.support import leftovers
from tests.support.ranks import RankFailure, RankPool
from tests.support.worker import report

_ROOT = Path(__file__).resolve().parents[2]


def _sum_of_ranks(offset: int) -> list[int]:
    values = torch.tensor([dist.get_rank() + offset])
    dist.all_reduce(values)
    return values.tolist()


def _process_id() -> int:
    return os.getpid()


def _fail_on(rank: int) -> None:
    if dist.get_rank() == rank:
        raise KeyError("the reason")
    dist.barrier()


def _sleep_on(rank: int) -> int:
    if dist.get_rank() == rank:
        time.sleep(600)
    return dist.get_rank()


def _say_and_wait() -> None:
    report("started")
    time.sleep(600)


def _leave_a_child() -> int:
    return subprocess.Popen(["sleep", "600"]).pid


def _environment(name: str) -> str | None:
    return os.environ.get(name)


@pytest.fixture(scope="module")
def gloo() -> Iterator[RankPool]:
    """A pool whose groups need nothing of ours."""
    with RankPool("gloo", most=4) as pool:
        yield pool


def test_every_rank_returns_its_result(gloo: RankPool) -> None:
    for world in (1, 2, 4):
        expected = [sum(range(world)) + 10 * world]
        assert gloo.run(world, _sum_of_ranks, 10) == [expected] * world


def test_processes_are_used_again(gloo: RankPool) -> None:
    first = set(gloo.run(4, _process_id))
    assert set(gloo.run(4, _process_id)) == first
    assert os.getpid() not in first


def test_environment_lasts_for_the_call(gloo: RankPool) -> None:
    name = "HYBRIDCOMM_TEST_VARIABLE"
    assert gloo.run(2, _environment, name, environment={name: "7"}) == ["7", "7"]
    assert gloo.run(2, _environment, name) == [None, None]


def test_an_exception_comes_back_with_its_traceback(gloo: RankPool) -> None:
    with pytest.raises(RankFailure, match=r"(?s)rank 1 .*in _fail_on.*KeyError: 'the reason'"):
        gloo.run(2, _fail_on, 1)
    assert gloo.run(2, _sum_of_ranks, 0) == [[1], [1]]


def test_a_stuck_rank_is_ended_and_shows_where_it_stands(gloo: RankPool) -> None:
    start = time.monotonic()
    call = gloo.start(2, _sleep_on, 1)
    pids = call.pids
    outcomes = call.outcomes(timeout=1.0)
    assert time.monotonic() - start < 5
    assert outcomes[0].value == 0
    assert "stuck in _sleep_on" in (outcomes[1].failure or "")
    assert "in _sleep_on" in (outcomes[1].failure or "").partition("\n")[2]
    assert not leftovers.is_running(pids[1])


def test_a_killed_rank_is_told_from_one_that_failed(gloo: RankPool) -> None:
    call = gloo.start(2, _say_and_wait)
    assert {call.next_report()[0] for _ in range(2)} == {0, 1}
    call.kill(1)
    call.kill(0, signal.SIGTERM)
    outcomes = call.outcomes(timeout=10)
    assert [outcome.status for outcome in outcomes] == [-signal.SIGTERM, -signal.SIGKILL]


def test_what_a_rank_leaves_running_is_found() -> None:
    pool = RankPool("gloo", most=1)
    (child,) = pool.run(1, _leave_a_child)
    try:
        assert pool.close() == [f"process {child} sleep"]
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_file_left_in_shared_memory_is_found() -> None:
    before = leftovers.system()
    path = Path(f"/dev/shm/left-behind-{os.getpid()}")
    path.touch()
    try:
        assert leftovers.new_in_system(before) == [str(path)]
    finally:
        path.unlink()


_OWNER = """
import time
from tests.support.ranks import RankPool
from tests.support.test_ranks import _say_and_wait
call = RankPool("gloo").start(2, _say_and_wait)
call.next_report(), call.next_report()
print(*call.pids, flush=True)
time.sleep(600)
"""


def test_ranks_die_with_the_process_that_owns_the_pool() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER], cwd=_ROOT, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    pids = owner.stdout.readline().split()
    assert len(pids) == 2
    owner.kill()
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 5
    while any(map(leftovers.is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in pids if leftovers.is_running(pid)]
