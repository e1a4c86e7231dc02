"""Futures: their values, their errors, and callbacks that go on communicating."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from tests.support.caught import Caught, caught
from tests.support.ranks import RankPool
from tests.support.worker import report

# Large enough that everything a rank queues behind its sum is queued before it is done.
_LONG = 1 << 25


def _future(values: torch.Tensor) -> torch.futures.Future[list[torch.Tensor]]:
    work = dist.all_reduce(values, async_op=True)
    assert work is not None
    future: torch.futures.Future[list[torch.Tensor]] = work.get_future()
    return future


def _strided_value() -> tuple[list[float], bool]:
    memory = torch.arange(12.0).reshape(3, 4)
    column = memory[:, 1]
    (value,) = _future(column).wait()
    return memory[:, 1].tolist(), value.data_ptr() == column.data_ptr()


def test_a_future_holds_the_caller_s_tensor_with_the_result_in_it(pool: RankPool) -> None:
    assert pool.run(2, _strided_value) == [([2.0, 10.0, 18.0], True)] * 2


def _dropped() -> list[float]:
    values = [torch.full((1000,), float(number)) for number in range(20)]
    for value in values:
        dist.all_reduce(value, async_op=True)
    dist.all_reduce(torch.zeros(3, 5).T, async_op=True)  # even its tensor is gone
    gc.collect()
    dist.barrier()
    return [value[0].item() for value in values]


def test_work_that_is_dropped_is_done_all_the_same(pool: RankPool) -> None:
    assert pool.run(2, _dropped) == [[2.0 * number for number in range(20)]] * 2


def _sum_again(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    """Waits, inside a callback, for a further collective's future, as torch's PowerSGD does."""
    (value,) = _future(future.value()[0]).wait()
    return value


def _sum_thrice(waits_for_the_work: bool) -> float:
    work = dist.all_reduce(torch.ones(3), async_op=True)
    assert work is not None
    again = work.get_future().then(_sum_again)
    if waits_for_the_work:
        work.wait()
    thrice = again.then(lambda future: dist.all_reduce(future.value()) or future.value())
    return float(thrice.wait()[0])


def test_a_callback_may_wait_for_another_collective(ours: RankPool) -> None:
    for waits_for_the_work in (False, True):
        assert ours.run(2, _sum_thrice, waits_for_the_work, timeout=20) == [8.0] * 2


def _in_turn(count: int) -> list[float]:
    begun: list[int] = []

    def then(number: int) -> Callable[[torch.futures.Future[list[torch.Tensor]]], float]:
        def callback(future: torch.futures.Future[list[torch.Tensor]]) -> float:
            begun.append(number)
            value = future.value()[0]
            if dist.get_rank() == number % 2:
                time.sleep(0.01)
            (total,) = _future(value + 1).wait()
            dist.all_reduce(total)
            return float(total[0])

        return callback

    dist.all_reduce(torch.zeros(_LONG), async_op=True)
    numbers = range(count)
    futures = [_future(torch.tensor([float(number)])).then(then(number)) for number in numbers]
    results = [future.wait() for future in futures]
    assert begun == list(numbers)
    return results


def test_callbacks_run_in_the_order_of_their_operations(ours: RankPool) -> None:
    expected = [4.0 * (2 * number + 1) for number in range(6)]
    assert ours.run(2, _in_turn, 6, timeout=30) == [expected] * 2


def _die_or_see(survivor: int) -> list[Caught]:
    dist.barrier()
    report("joined")
    if dist.get_rank() != survivor:
        signal.pause()
    work = dist.all_reduce(torch.ones(4), async_op=True)
    assert work is not None
    future = work.get_future()
    return [caught(future.wait), caught(future.wait), caught(work.wait), caught(work.wait)]


def test_an_error_keeps_its_class_in_a_future_and_may_be_raised_twice(ours: RankPool) -> None:
    call = ours.start(2, _die_or_see, 0)
    for _ in range(2):
        call.next_report()
    call.kill(1)
    outcome = call.outcomes(timeout=15)[0]
    assert outcome.value is not None, outcome.failure
    for error in outcome.value:
        assert "PeerLostError" in error.classes, error
        assert (error.rank, error.peer, error.operation) == (0, 1, "all_reduce")


def _busy_callback() -> bool:
    other = dist.new_group()
    release = threading.Event()
    dist.all_reduce(torch.zeros(_LONG), async_op=True)
    slow: torch.futures.Future[bool] = _future(torch.ones(1)).then(lambda _: release.wait(20))
    for _ in range(5):
        dist.all_reduce(torch.ones(1))
        work = dist.all_reduce(torch.ones(1), group=other, async_op=True)
        assert work is not None
        work.get_future().then(lambda future: future.value()).wait()
    release.set()
    return slow.wait()


def test_a_slow_callback_holds_up_nothing_but_its_group_s_callbacks(ours: RankPool) -> None:
    assert ours.run(2, _busy_callback, timeout=60) == [True] * 2
