"""Barriers with torch's extra arguments, and time-outs that are set later."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.support.caught import Caught, caught
from tests.support.ranks import RankPool


def _world() -> Any:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def _barriers() -> list[float]:
    rank = dist.get_rank()
    left = []
    for late in range(dist.get_world_size()):
        if rank == late:
            time.sleep(0.1)
        came = time.monotonic()
        if late == 0:
            dist.barrier(device_ids=[0])
        else:
            _world().monitored_barrier(timedelta(seconds=20), wait_all_ranks=late == 1)
        left.append(came if rank == late else time.monotonic())
    return left


def test_nobody_leaves_early(pool: RankPool) -> None:
    of_ranks = pool.run(3, _barriers)
    for late in range(3):
        assert min(of_ranks[rank][late] for rank in range(3)) >= of_ranks[late][late]


def _one_is_missing(wait_all_ranks: bool) -> list[Caught]:
    group = _world()
    if dist.get_rank() in (1, 2):
        time.sleep(1.5)
        return []
    error = caught(lambda: group.monitored_barrier(timedelta(seconds=0.5), wait_all_ranks))
    return [error]


def test_a_monitored_barrier_names_who_is_missing(pool: RankPool) -> None:
    (error,) = pool.run(4, _one_is_missing, True)[0]
    assert "Ranks 1, 2 failed to pass monitoredBarrier in 500 ms" in error.message
    (error,) = pool.run(4, _one_is_missing, False)[0]
    assert "Rank 1 failed to pass monitoredBarrier in 500 ms" in error.message


def _goes_on_after_a_barrier() -> list[float]:
    """A rank that comes late to one barrier disturbs neither the next one nor a collective."""
    group = _world()
    rank = dist.get_rank()
    if rank == 1:
        time.sleep(0.6)
    caught(lambda: group.monitored_barrier(timedelta(seconds=0.3)))
    group.monitored_barrier(timedelta(seconds=20))
    total = torch.tensor([10.0**rank])
    dist.all_reduce(total)
    return total.tolist()


def test_a_group_goes_on_after_a_barrier_that_failed(ours: RankPool) -> None:
    assert ours.run(2, _goes_on_after_a_barrier) == [[11.0]] * 2


def _set_timeout(how: str) -> list[Caught]:
    dist.all_reduce(torch.ones(1))
    group = _world()
    if how == "set_timeout":
        group.set_timeout(timedelta(seconds=0.5))
    else:
        group._get_backend(torch.device("cpu"))._set_default_timeout(timedelta(seconds=0.5))
    if dist.get_rank() == 1:
        time.sleep(1.5)
        return []
    return [caught(lambda: dist.all_reduce(torch.ones(1)))]


def test_a_timeout_may_be_set_later(ours: RankPool) -> None:
    for how in ("set_timeout", "_set_default_timeout"):
        (error,) = ours.run(2, _set_timeout, how)[0]
        assert "CommTimeoutError" in error.classes
        assert 0.4 < error.seconds < 1.0
