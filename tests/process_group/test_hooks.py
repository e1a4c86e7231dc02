"""The completion hook, waiting for all that is pending, memory, and results as numbers."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
import torch.distributed as dist

from tests.support.caught import caught
from tests.support.ranks import RankPool


def _group() -> Any:
    group = dist.group.WORLD
    assert group is not None
    return group


def _backend() -> Any:
    return _group()._get_backend(torch.device("cpu"))


def _hooked() -> tuple[list[tuple[str, int, bool, bool]], set[str], bool, str]:
    seen: list[tuple[str, int, bool, bool]] = []
    threads: set[str] = set()

    def hook(info: Any) -> None:
        time.sleep(0.01)  # waiting must take it into account
        threads.add(threading.current_thread().name)
        took = info.time_finished - info.time_started
        matches = abs(took.total_seconds() - info.active_duration.total_seconds()) < 1e-3
        seen.append((info.op_type.name, info.seq, took.total_seconds() >= 0, matches))

    assert not _group()._has_hooks()
    dist.barrier()  # is not seen
    _group()._register_on_completion_hook(hook)
    has = _group()._has_hooks()
    refused = caught(lambda: _group()._register_on_completion_hook(hook)).message
    dist.all_reduce(torch.ones(3))
    work = dist.all_gather_into_tensor(torch.zeros(2), torch.ones(1), async_op=True)
    assert work is not None
    if dist.get_rank() == 0:
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.zeros(1), 0)
    _group()._wait_for_pending_works()
    assert work.is_completed()
    return sorted(seen, key=lambda one: (one[1], one[0])), threads, has, refused


def test_the_hook_sees_each_operation(compiled: RankPool) -> None:
    for rank, (seen, threads, has, refused) in enumerate(compiled.run(2, _hooked)):
        assert has
        assert "already" in refused
        assert [(name, sequence) for name, sequence, _, _ in seen] == [
            ("SEND" if rank == 0 else "RECV", 1),
            ("ALLREDUCE", 2),
            ("_ALLGATHER_BASE", 3),
        ]
        assert all(forward and matches for _, _, forward, matches in seen)
        assert "MainThread" not in threads


def _throwing() -> tuple[int, float]:
    calls = 0

    def hook(_: Any) -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError("from the hook")

    _group()._register_on_completion_hook(hook)
    values = torch.ones(3)
    for _ in range(3):
        dist.all_reduce(values)
    _group()._wait_for_pending_works()
    return calls, values[0].item()


def test_a_hook_that_throws_ends_nothing(compiled: RankPool) -> None:
    assert compiled.run(2, _throwing) == [(3, 8.0)] * 2


def _waiting_in_a_callback() -> str:
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert work is not None
    future = work.get_future().then(lambda _: _group()._wait_for_pending_works())
    return caught(future.wait).message


def test_a_callback_cannot_wait_for_itself(compiled: RankPool) -> None:
    for message in compiled.run(2, _waiting_in_a_callback):
        assert "in a callback" in message


def _results() -> tuple[int, int]:
    good = dist.all_reduce(torch.ones(1), async_op=True)
    assert good is not None
    first: int = good.get_future_result().wait()
    if dist.get_rank() == 1:
        time.sleep(1)
        return first, 1
    bad = dist.all_reduce(torch.ones(1), async_op=True)
    assert bad is not None
    return first, bad.get_future_result().wait()


def test_results_are_numbers(compiled: RankPool) -> None:
    # torch's WorkResult: 0 success, 1 time-out.
    assert compiled.run(2, _results, group_timeout=0.3) == [(0, 1)] * 2


def _memory() -> tuple[dict[str, int], dict[str, int], list[int], str]:
    before = _backend().memory_stats()
    assert _backend().supports_tensor_alloc(torch.device("cpu"))
    tensor = _backend().allocate_tensor(5, dtype=torch.float64, device=torch.device("cpu"))
    tensor.fill_(dist.get_rank() + 1)
    dist.all_reduce(tensor)
    peer = 1 - dist.get_rank()
    for request in (dist.isend(torch.ones(1), peer), dist.irecv(torch.ones(1), peer)):
        assert request is not None
        request.wait()
    refused = caught(
        lambda: _backend().allocate_tensor(5, dtype=torch.float, device=torch.device("meta"))
    )
    return before, _backend().memory_stats(), tensor.tolist(), refused.message


def test_memory_is_counted(compiled: RankPool) -> None:
    for before, after, values, refused in compiled.run(2, _memory):
        assert set(before.values()) == {0}
        assert after["message_pairs"] == 1
        # Both are of the same shape here: two ranks, four slots each way.
        assert after["collectives_mapped_bytes"] == after["messages_mapped_bytes"] > 1 << 20
        assert values == [3.0] * 5
        assert "meta; this backend's tensors lie in host memory" in refused
