"""Collectives on arrays: torch tensors, NumPy arrays, and what else speaks DLPack.

The functions of torch.distributed with the options that only hybridcomm has: an algorithm, a
time-out and determinism for each call. They take the groups that torch makes:

    torch.distributed.init_process_group("hybridcomm")
    hybridcomm.all_reduce(array, op="avg", deterministic=True, timeout=5)

Results are written where the arrays lie. All ranks of the group make the same calls in the same
order, with the same options. ``src`` and ``dst`` are ranks of the job, as in torch.distributed.

All of them raise ``ValueError`` for a wrong argument, before anything is sent, and otherwise:
``PeerLostError`` (a rank died or left), ``CommTimeoutError``, ``MismatchError`` (the ranks made
different calls) or ``CommAbortedError``, each with the rank to blame (``hybridcomm.errors``).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from hybridcomm.arrays import Array, as_tensor
from hybridcomm.calling import backend_of, calling, duration, group_or_default, rank_in, reduction

Timeout = float | timedelta
Op = str | dist.ReduceOp | dist.ReduceOp.RedOpType


def all_reduce(
    array: Array,
    *,
    op: Op = "sum",
    group: dist.ProcessGroup | None = None,
    algorithm: str | None = None,
    timeout: Timeout | None = None,
    async_op: bool = False,
    deterministic: bool = False,
) -> dist.Work | None:
    """Reduces the ranks' arrays; every rank gets the result in its array.

    Args:
        array: Any shape and strides; of one size and type on all ranks.
        op: "sum", "avg", "product", "min", "max", "band", "bor" or "bxor", or torch's object.
        group: The group; the default one if None.
        algorithm: For instance "ring"; chosen if None.
        timeout: Seconds, or a timedelta; the group's if None.
        async_op: Return at once; the array must not be used before the work is done.
        deterministic: One reduction in rank order, rounded once: the same bits for any size and
            algorithm.

    Returns:
        The work if ``async_op``, else None.
    """
    pg = group_or_default(group)
    options = dist.AllreduceOptions()
    options.reduceOp = reduction(op)
    tensor = as_tensor(array, "array", written=True)
    with calling(pg, algorithm=algorithm, timeout=timeout, deterministic=deterministic):
        return _finish(pg.allreduce([tensor], _with(options, async_op)), async_op)


def broadcast(
    array: Array,
    src: int = 0,
    *,
    group: dist.ProcessGroup | None = None,
    algorithm: str | None = None,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Copies one rank's array into those of all.

    Args:
        array: Any shape and strides; of one size and type on all ranks.
        src: Whose array.
        group: The group; the default one if None.
        algorithm: For instance "binomial"; chosen if None.
        timeout: Seconds, or a timedelta; the group's if None.
        async_op: Return at once; the array must not be used before the work is done.

    Returns:
        The work if ``async_op``, else None.
    """
    pg = group_or_default(group)
    options = dist.BroadcastOptions()
    options.rootRank = rank_in(pg, src, "src")
    tensor = as_tensor(array, "array", written=dist.get_rank() != src)
    with calling(pg, algorithm=algorithm, timeout=timeout):
        return _finish(pg.broadcast([tensor], _with(options, async_op)), async_op)


def reduce(
    array: Array,
    dst: int = 0,
    *,
    op: Op = "sum",
    group: dist.ProcessGroup | None = None,
    algorithm: str | None = None,
    timeout: Timeout | None = None,
    async_op: bool = False,
    deterministic: bool = False,
) -> dist.Work | None:
    """Reduces the ranks' arrays into one rank's; the others stay as they are.

    Args:
        array: Any shape and strides; of one size and type on all ranks.
        dst: Who gets the result.
        op: As in `all_reduce`.
        group: The group; the default one if None.
        algorithm: For instance "binomial"; chosen if None.
        timeout: Seconds, or a timedelta; the group's if None.
        async_op: Return at once; the array must not be used before the work is done.
        deterministic: As in `all_reduce`.

    Returns:
        The work if ``async_op``, else None.
    """
    pg = group_or_default(group)
    options = dist.ReduceOptions()
    options.reduceOp = reduction(op)
    options.rootRank = rank_in(pg, dst, "dst")
    tensor = as_tensor(array, "array", written=dist.get_rank() == dst)
    with calling(pg, algorithm=algorithm, timeout=timeout, deterministic=deterministic):
        return _finish(pg.reduce([tensor], _with(options, async_op)), async_op)


def all_gather(
    output_list: Sequence[Array],
    array: Array,
    *,
    group: dist.ProcessGroup | None = None,
    algorithm: str | None = None,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Gathers every rank's array on every rank.

    Args:
        output_list: One array for each rank; they may differ in size, alike on all ranks.
        array: This rank's, as long as its entry of the list.
        group: The group; the default one if None.
        algorithm: For instance "ring"; chosen if None.
        timeout: Seconds, or a timedelta; the group's if None.
        async_op: Return at once; the arrays must not be used before the work is done.

    Returns:
        The work if ``async_op``, else None.
    """
    pg = group_or_default(group)
    outputs = _tensors(output_list, "output_list", written=True)
    tensor = as_tensor(array, "array", written=False)
    options = _with(AllgatherOptions(), async_op)
    with calling(pg, algorithm=algorithm, timeout=timeout):
        return _finish(pg.allgather([outputs], [tensor], options), async_op)


def all_gather_into_tensor(
    output: Array,
    array: Array,
    *,
    group: dist.ProcessGroup | None = None,
    algorithm: str | None = None,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Gathers every rank's array, one after the other, in one array on every rank.

    Args:
        output: World size times as many elements as ``array``.
        array: This rank's; of one size and type on all ranks.
        group: The group; the default one if None.
        algorithm: For instance "ring"; chosen if None.
        timeout: Seconds, or a timedelta; the group's if None.
        async_op: Return at once; the arrays must not be used before the work is done.

    Returns:
        The work if ``async_op``, else None.
    """
    pg = group_or_default(group)
    into = as_tensor(output, "output", written=True)
    tensor = as_tensor(array, "array", written=False)
    options = _with(AllgatherOptions(), async_op)
    with calling(pg, algorithm=algorithm, timeout=timeout):
        return _finish(pg._allgather_base(into, tensor, options), async_op)


def reduce_scatter(
    output: Array,
    input_list: Sequence[Array],
    *,
    op: Op = "sum",
    group: dist.ProcessGroup | None = None,
    algorithm: str | None = None,
    timeout: Timeout | None = None,
    async_op: bool = False,
    deterministic: bool = False,
) -> dist.Work | None:
    """Reduces, for each rank, what all ranks have for it.

    Args:
        output: This rank's result, as long as its entry of the list.
        input_list: One array for each rank; they may differ in size, alike on all ranks.
        op: As in `all_reduce`.
        group: The group; the default one if None.
        algorithm: For instance "ring"; chosen if None.
        timeout: Seconds, or a timedelta; the group's if None.
        async_op: Return at once; the arrays must not be used before the work is done.
        deterministic: As in `all_reduce`.

    Returns:
        The work if ``async_op``, else None.
    """
    pg = group_or_default(group)
    options = dist.ReduceScatterOptions()
    options.reduceOp = reduction(op)
    into = as_tensor(output, "output", written=True)
    inputs = _tensors(input_list, "input_list", written=False)
    with calling(pg, algorithm=algorithm, timeout=timeout, deterministic=deterministic):
        return _finish(pg.reduce_scatter([into], [inputs], _with(options, async_op)), async_op)


def reduce_scatter_tensor(
    output: Array,
    array: Array,
    *,
    op: Op = "sum",
    group: dist.ProcessGroup | None = None,
    algorithm: str | None = None,
    timeout: Timeout | None = None,
    async_op: bool = False,
    deterministic: bool = False,
) -> dist.Work | None:
    """Reduces the ranks' arrays; rank r gets the r-th of as many equal parts of the result.

    Args:
        output: This rank's part.
        array: World size times as many elements as ``output``.
        op: As in `all_reduce`.
        group: The group; the default one if None.
        algorithm: For instance "ring"; chosen if None.
        timeout: Seconds, or a timedelta; the group's if None.
        async_op: Return at once; the arrays must not be used before the work is done.
        deterministic: As in `all_reduce`.

    Returns:
        The work if ``async_op``, else None.
    """
    pg = group_or_default(group)
    options = dist.ReduceScatterOptions()
    options.reduceOp = reduction(op)
    into = as_tensor(output, "output", written=True)
    tensor = as_tensor(array, "array", written=False)
    with calling(pg, algorithm=algorithm, timeout=timeout, deterministic=deterministic):
        work = pg._reduce_scatter_base(into, tensor, _with(options, async_op))
        return _finish(work, async_op)


def gather(
    array: Array,
    output_list: Sequence[Array] | None = None,
    dst: int = 0,
    *,
    group: dist.ProcessGroup | None = None,
    algorithm: str | None = None,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Gathers every rank's array on one rank.

    Args:
        array: This rank's; of one size and type on all ranks.
        output_list: On ``dst``, one array for each rank; elsewhere None.
        dst: Who gets them.
        group: The group; the default one if None.
        algorithm: For instance "binomial"; chosen if None.
        timeout: Seconds, or a timedelta; the group's if None.
        async_op: Return at once; the arrays must not be used before the work is done.

    Returns:
        The work if ``async_op``, else None.
    """
    pg = group_or_default(group)
    options = dist.GatherOptions()
    options.rootRank = rank_in(pg, dst, "dst")
    outputs = [] if output_list is None else [_tensors(output_list, "output_list", written=True)]
    tensor = as_tensor(array, "array", written=False)
    with calling(pg, algorithm=algorithm, timeout=timeout):
        return _finish(pg.gather(outputs, [tensor], _with(options, async_op)), async_op)


def scatter(
    array: Array,
    input_list: Sequence[Array] | None = None,
    src: int = 0,
    *,
    group: dist.ProcessGroup | None = None,
    algorithm: str | None = None,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Gives every rank its own of one rank's arrays.

    Args:
        array: This rank's result; of one size and type on all ranks.
        input_list: On ``src``, one array for each rank; elsewhere None.
        src: Who gives them.
        group: The group; the default one if None.
        algorithm: For instance "binomial"; chosen if None.
        timeout: Seconds, or a timedelta; the group's if None.
        async_op: Return at once; the arrays must not be used before the work is done.

    Returns:
        The work if ``async_op``, else None.
    """
    pg = group_or_default(group)
    options = dist.ScatterOptions()
    options.rootRank = rank_in(pg, src, "src")
    into = as_tensor(array, "array", written=True)
    inputs = [] if input_list is None else [_tensors(input_list, "input_list", written=False)]
    with calling(pg, algorithm=algorithm, timeout=timeout):
        return _finish(pg.scatter([into], inputs, _with(options, async_op)), async_op)


def all_to_all(
    output_list: Sequence[Array],
    input_list: Sequence[Array],
    *,
    group: dist.ProcessGroup | None = None,
    algorithm: str | None = None,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Sends every rank an array, and gets one from every rank.

    Args:
        output_list: What comes from each rank.
        input_list: What goes to each rank; as long as that rank's entry for this one.
        group: The group; the default one if None.
        algorithm: For instance "pairwise"; chosen if None.
        timeout: Seconds, or a timedelta; the group's if None.
        async_op: Return at once; the arrays must not be used before the work is done.

    Returns:
        The work if ``async_op``, else None.
    """
    pg = group_or_default(group)
    outputs = _tensors(output_list, "output_list", written=True)
    inputs = _tensors(input_list, "input_list", written=False)
    options = _with(dist.AllToAllOptions(), async_op)
    with calling(pg, algorithm=algorithm, timeout=timeout):
        return _finish(pg.alltoall(outputs, inputs, options), async_op)


def all_to_all_single(
    output: Array,
    array: Array,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    *,
    group: dist.ProcessGroup | None = None,
    algorithm: str | None = None,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Sends every rank a part of one array, and gets a part of another from every rank.

    Args:
        output: What comes, from rank 0 first.
        array: What goes, to rank 0 first.
        output_split_sizes: Rows of ``output`` that come from each rank; equal parts if None.
        input_split_sizes: Rows of ``array`` that go to each rank; equal parts if None.
        group: The group; the default one if None.
        algorithm: For instance "pairwise"; chosen if None.
        timeout: Seconds, or a timedelta; the group's if None.
        async_op: Return at once; the arrays must not be used before the work is done.

    Returns:
        The work if ``async_op``, else None.
    """
    pg = group_or_default(group)
    into = as_tensor(output, "output", written=True)
    tensor = as_tensor(array, "array", written=False)
    splits = [list(output_split_sizes or ()), list(input_split_sizes or ())]
    options = _with(dist.AllToAllOptions(), async_op)
    with calling(pg, algorithm=algorithm, timeout=timeout):
        return _finish(pg.alltoall_base(into, tensor, *splits, options), async_op)


def barrier(
    *,
    group: dist.ProcessGroup | None = None,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Waits until every rank has come here.

    Args:
        group: The group; the default one if None.
        timeout: Seconds, or a timedelta; the group's if None.
        async_op: Return at once; the work is done when every rank has come.

    Returns:
        The work if ``async_op``, else None.
    """
    pg = group_or_default(group)
    with calling(pg, timeout=timeout):
        return _finish(pg.barrier(_with(dist.BarrierOptions(), async_op)), async_op)


def monitored_barrier(
    *,
    group: dist.ProcessGroup | None = None,
    timeout: Timeout | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Waits until every rank has come here, or says which did not. The group can be used after.

    Args:
        group: The group; the default one if None.
        timeout: Seconds, or a timedelta; the group's if None.
        wait_all_ranks: Name all ranks that did not come, not only the first.
    """
    pg = group_or_default(group)
    # torch takes None for the group's.
    pg.monitored_barrier(duration(timeout) or None, wait_all_ranks)


def set_timeout(timeout: Timeout, *, group: dist.ProcessGroup | None = None) -> None:
    """Sets how long the calls that follow may wait.

    Args:
        timeout: Seconds, or a timedelta.
        group: The group; the default one if None.
    """
    backend_of(group_or_default(group))._set_default_timeout(duration(timeout))


def abort(*, group: dist.ProcessGroup | None = None) -> None:
    """Ends every call of the group that is under way, on every rank, with `CommAbortedError`.

    The group cannot be used after; make a new one.

    Args:
        group: The group; the default one if None.
    """
    group_or_default(group).abort()


def _tensors(arrays: Sequence[Array], argument: str, *, written: bool) -> list[Any]:
    return [as_tensor(a, f"{argument}[{i}]", written=written) for i, a in enumerate(arrays)]


def _with(options: Any, async_op: bool) -> Any:
    options.asyncOp = async_op
    return options


def _finish(work: dist.Work | None, async_op: bool) -> dist.Work | None:
    """Waits for a work that a synchronous call returned all the same."""
    if async_op or work is None:
        return work
    work.wait()
    return None
