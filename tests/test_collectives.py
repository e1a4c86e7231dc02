"""The public functions: torch tensors, NumPy arrays and DLPack; every option; wrong arguments."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import hybridcomm
from tests.support.caught import caught
from tests.support.ranks import RankPool

_WORLD = 3


def error_of(kind: type[Exception], action: Callable[[], object]) -> str:
    """The text of the exception that must come."""
    error = caught(action)
    assert kind.__name__ in error.classes, error
    return error.message


class Lent:
    """An array that speaks DLPack and nothing else."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, *, stream: Any = None) -> Any:
        """Lends the memory."""
        return self._tensor.__dlpack__()

    def __dlpack_device__(self) -> tuple[Any, Any]:
        """Says where it is."""
        return self._tensor.__dlpack_device__()


def _every_function(make: Callable[[Any], Any], read: Callable[[Any], Any]) -> list[str]:
    """Calls every collective with arrays that `make` makes; names those with a wrong result."""
    rank, world = dist.get_rank(), dist.get_world_size()
    ranks = range(world)
    wrong = []

    def check(name: str, array: Any, right: list[int]) -> None:
        if read(array) != right:
            wrong.append(f"{name}: {read(array)}, not {right}")

    one = make([rank + 1, 10 * rank])
    hybridcomm.all_reduce(one)
    check("all_reduce", one, [sum(r + 1 for r in ranks), sum(10 * r for r in ranks)])
    one = make([rank + 5])
    hybridcomm.broadcast(one, src=1)
    check("broadcast", one, [6])
    one = make([rank + 7])
    hybridcomm.reduce(one, dst=2, op="max")
    check("reduce", one, [world + 6] if rank == 2 else [rank + 7])
    many = [make([0] * (r + 1)) for r in ranks]
    hybridcomm.all_gather(many, make([rank] * (rank + 1)))
    for r in ranks:
        check("all_gather", many[r], [r] * (r + 1))
    one = make([0] * world)
    hybridcomm.all_gather_into_tensor(one, make([rank * rank]))
    check("all_gather_into_tensor", one, [r * r for r in ranks])
    one = make([0])
    hybridcomm.reduce_scatter(one, [make([r + rank]) for r in ranks])
    check("reduce_scatter", one, [sum(rank + r for r in ranks)])
    hybridcomm.reduce_scatter_tensor(one, make([r * 2 + rank for r in ranks]), op="MIN")
    check("reduce_scatter_tensor", one, [2 * rank])
    many = [make([0]) for _ in ranks]
    hybridcomm.gather(make([rank + 3]), many if rank == 0 else None)
    if rank == 0:
        for r in ranks:
            check("gather", many[r], [r + 3])
    hybridcomm.scatter(one, [make([r + 8]) for r in ranks] if rank == 1 else None, src=1)
    check("scatter", one, [rank + 8])
    hybridcomm.all_to_all(many, [make([10 * rank + r]) for r in ranks])
    for r in ranks:
        check("all_to_all", many[r], [10 * r + rank])
    one = make([0] * world)
    hybridcomm.all_to_all_single(one, make([10 * rank + r for r in ranks]))
    check("all_to_all_single", one, [10 * r + rank for r in ranks])
    one = make([0] * rank * world)
    splits = [rank] * world
    hybridcomm.all_to_all_single(one, make([r for r in ranks for _ in range(r)]), splits, [*ranks])
    check("all_to_all_single uneven", one, [rank] * (rank * world))
    hybridcomm.barrier()
    hybridcomm.monitored_barrier(timeout=20)
    if rank == 0:
        hybridcomm.send(make([42]), dst=2, tag=3)
    elif rank == 2:
        one = make([0])
        if hybridcomm.recv(one, tag=3) != 0:
            wrong.append("recv: wrong source")
        check("recv", one, [42])
    return wrong


def _integers(data: Any) -> torch.Tensor:
    return torch.tensor(data, dtype=torch.int64)


def _tensors() -> list[str]:
    return _every_function(_integers, lambda t: t.tolist())


def _numpy() -> list[str]:
    return _every_function(lambda data: np.array(data, dtype=np.int64), lambda a: a.tolist())


def _dlpack() -> list[str]:
    return _every_function(lambda d: Lent(_integers(d)), lambda lent: lent._tensor.tolist())


@pytest.mark.parametrize("function", [_tensors, _numpy, _dlpack])
def test_every_function(ours: RankPool, function: Callable[[], list[str]]) -> None:
    assert ours.run(_WORLD, function, timeout=60) == [[]] * _WORLD


def _planted() -> list[str]:
    # An array whose memory is not the one that is looked at.
    return _every_function(_integers, lambda t: [-1] * t.numel())


def test_a_planted_fault_is_found(ours: RankPool) -> None:
    for wrong in ours.run(_WORLD, _planted, timeout=60):
        named = {line.partition(":")[0] for line in wrong}
        assert {"all_reduce", "broadcast", "reduce", "all_gather", "scatter"} <= named


def _options() -> None:
    group = dist.new_group([0, 2])
    rank = dist.get_rank()
    for algorithm in ("ring", "one_shot", "halving_doubling", "double_binary_tree"):
        one = np.arange(100, dtype=np.float32) * (rank + 1)
        hybridcomm.all_reduce(one, algorithm=algorithm, timeout=timedelta(seconds=20))
        assert one.tolist() == [6.0 * i for i in range(100)]
    # Which algorithm it was is what the ranks compare.
    text = error_of(
        hybridcomm.MismatchError,
        lambda: hybridcomm.all_reduce(one, algorithm="ring" if rank else "one_shot"),
    )
    assert "by ring" in text
    assert "by one_shot" in text
    if rank != 1:
        one = np.array([float(rank)])
        work = hybridcomm.broadcast(one, src=2, group=group, async_op=True)
        assert work is not None
        work.wait()
        assert one.tolist() == [2.0]
        # An option is for one call only.
        hybridcomm.all_reduce(one, op="avg", deterministic=True, algorithm="two_shot", group=group)
        hybridcomm.all_reduce(one, group=group)
        assert one.tolist() == [4.0]


def test_options(ours: RankPool) -> None:
    ours.run(_WORLD, _options, timeout=60)


def _deterministic() -> list[bytes]:
    rank = dist.get_rank()
    data = torch.randn(1000, generator=torch.Generator().manual_seed(rank))
    results = []
    for algorithm in (None, "one_shot", "two_shot"):
        one = data.clone()
        hybridcomm.all_reduce(one, deterministic=True, algorithm=algorithm)
        results.append(one.numpy().tobytes())
    text = error_of(
        ValueError, lambda: hybridcomm.all_reduce(one, deterministic=True, algorithm="ring")
    )
    assert "algorithm" in text
    assert "ring" in text
    assert "two_shot" in text
    part = torch.empty(500)
    hybridcomm.reduce_scatter_tensor(part, data.repeat(3)[: 500 * 3], deterministic=True)
    return results


def test_deterministic_results_do_not_depend_on_the_algorithm(ours: RankPool) -> None:
    first, *others = [
        digest for rank in ours.run(_WORLD, _deterministic, timeout=60) for digest in rank
    ]
    assert set(others) == {first}


def _late() -> float:
    rank = dist.get_rank()
    begin = time.monotonic()
    if rank == 0:
        text = error_of(hybridcomm.CommTimeoutError, lambda: hybridcomm.barrier(timeout=0.5))
        assert "500 ms" in text
    elif rank == 1:
        # Nothing has met the receive: the group stays usable.
        one = np.zeros(1)
        text = error_of(
            hybridcomm.CommTimeoutError, lambda: hybridcomm.recv(one, 2, timeout=0.5, tag=9)
        )
        assert "rank 2" in text
        assert "tag 9" in text
        return time.monotonic() - begin
    time.sleep(1)  # not gone, only late
    return 0.5


def test_a_time_out_of_one_call(ours: RankPool) -> None:
    assert all(0.45 < seconds < 0.8 for seconds in ours.run(_WORLD, _late, timeout=60))


def _refusals() -> None:
    read_only = np.arange(3)
    read_only.flags.writeable = False
    refused: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (ValueError, "array: the array is read-only", lambda: hybridcomm.all_reduce(read_only)),
        (ValueError, "negative strides", lambda: hybridcomm.all_reduce(np.arange(3)[::-1])),
        (TypeError, "argument array: list", lambda: hybridcomm.all_reduce([1, 2])),  # type: ignore[arg-type]
        (TypeError, "argument array", lambda: hybridcomm.all_reduce(np.array(["text"]))),
        (ValueError, "one of sum", lambda: hybridcomm.all_reduce(np.arange(3), op="add")),
        (ValueError, "timeout: 0", lambda: hybridcomm.all_reduce(np.arange(3), timeout=0)),
        (ValueError, "src: rank 7", lambda: hybridcomm.broadcast(np.arange(3), src=7)),
        (ValueError, "algorithm", lambda: hybridcomm.barrier(timeout=-1) or None),
        (
            ValueError,
            "all_reduce has no 'best'",
            lambda: hybridcomm.all_reduce(np.arange(3), algorithm="best"),
        ),
    ]
    refused[7] = (ValueError, "timeout: -1", refused[7][2])
    for kind, text, call in refused:
        assert text in error_of(kind, call)
    # Nothing was sent, and what is read only may be read only.
    many = [np.zeros(3, dtype=np.int64) for _ in range(_WORLD)]
    hybridcomm.all_gather(many, read_only)
    assert all(m.tolist() == [0, 1, 2] for m in many)


def test_wrong_arguments(ours: RankPool) -> None:
    ours.run(_WORLD, _refusals, timeout=60)


def _other_backend() -> None:
    one = np.ones(2)
    hybridcomm.all_reduce(one)
    assert one.tolist() == [2.0, 2.0]
    text = error_of(ValueError, lambda: hybridcomm.all_reduce(one, algorithm="ring"))
    assert "gloo" in text


def test_groups_of_other_backends_have_no_such_options() -> None:
    with RankPool("gloo") as gloo:
        gloo.run(2, _other_backend, timeout=60)


def test_no_default_group() -> None:
    with pytest.raises(ValueError, match="init_process_group"):
        hybridcomm.all_reduce(np.ones(1))
