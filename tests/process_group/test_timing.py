"""How long work took, if somebody asked for it before."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from tests.support.caught import caught
from tests.support.ranks import RankPool

# torch declares neither timing nor the coalescing manager.
_dist: Any = dist


def _group() -> Any:
    group = dist.group.WORLD
    assert group is not None
    return group


def _work() -> Any:
    work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
    assert work is not None
    return work


def _durations(late_by: float) -> tuple[str, float, float, float, float]:
    untimed = _work()
    untimed.wait()
    _group()._enable_collectives_timing()
    refused = caught(untimed._get_duration).message
    if dist.get_rank() == 1:
        time.sleep(late_by)
    began_at = time.monotonic()
    timed = _work()
    timed.wait()
    took = 1e3 * (time.monotonic() - began_at)
    if dist.get_rank() == 0:
        message = _dist.isend(torch.ones(1000), 1)
    else:
        message = _dist.irecv(torch.zeros(1000), 0)
    assert message is not None
    message.wait()
    with _dist._coalescing_manager(async_ops=True) as several:
        for _ in range(2):
            dist.all_reduce(torch.ones(1000))
    several.wait()
    (all_of_them,) = several.works
    return (
        refused,
        timed._get_duration(),
        took,
        message._get_duration(),
        all_of_them._get_duration(),
    )


def test_a_duration_begins_when_all_ranks_have_called(compiled: RankPool) -> None:
    late_by = 0.3
    for refused, duration, took, message, several in compiled.run(2, _durations, late_by):
        assert "timing was enabled" in refused
        # Rank 0 waits for rank 1, which does not count.
        assert 0 < duration <= took
        assert duration < 1e3 * late_by
        assert 0 <= message < 1e3 * late_by
        assert 0 < several < 1e3 * late_by


def _not_done() -> str:
    _group()._enable_collectives_timing()
    if dist.get_rank() == 1:
        dist.barrier()
        dist.recv(torch.zeros(1), 0)
        return ""
    message = _dist.irecv(torch.zeros(1), 1)
    assert message is not None
    refused = caught(message._get_duration).message
    dist.barrier()
    dist.send(torch.ones(1), 1)
    return refused


def test_work_under_way_has_no_duration_yet(compiled: RankPool) -> None:
    outcomes = compiled.start(2, _not_done, group_timeout=1.0).outcomes()
    assert outcomes[0].failure is None, outcomes[0].failure
    assert "once the work is done" in outcomes[0].value
