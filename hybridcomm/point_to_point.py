"""Messages between two ranks, on arrays: `send` and `recv` with options of their own.

They never wait for a collective, nor a collective for them. A message is matched by its sender and
its tag; see `hybridcomm.collectives` for what all functions raise.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hybridcomm.arrays import Array, as_tensor
from hybridcomm.calling import calling, group_or_default, rank_in

Timeout = float | timedelta


def send(
    array: Array,
    dst: int,
    *,
    tag: int = 0,
    group: dist.ProcessGroup | None = None,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Sends an array to one rank.

    It is done when the array may be used again, which does not mean that it was received.

    Args:
        array: Any shape and strides.
        dst: The rank of the job that gets it.
        tag: Which `recv` of that rank may take it; not negative.
        group: The group; the default one if None.
        timeout: Seconds, or a timedelta; the group's if None.
        async_op: Return at once; the array must not be changed before the work is done.

    Returns:
        The work if ``async_op``, else None.
    """
    pg = group_or_default(group)
    to = rank_in(pg, dst, "dst")
    tensor = as_tensor(array, "array", written=False)
    with calling(pg, timeout=timeout):
        work: dist.Work = pg.send([tensor], to, tag)
    if async_op:
        return work
    work.wait()
    return None


def recv(
    array: Array,
    src: int | None = None,
    *,
    tag: int = 0,
    group: dist.ProcessGroup | None = None,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Any:
    """Receives an array from one rank, or from any.

    A time-out leaves the group usable if no part of a message has arrived.

    Args:
        array: Where to; as many elements of the same type as are sent.
        src: The rank of the job that sends it; any if None.
        tag: The tag with which it is sent.
        group: The group; the default one if None.
        timeout: Seconds, or a timedelta; the group's if None.
        async_op: Return at once; the array must not be used before the work is done.

    Returns:
        The work if ``async_op``, else the rank of the job that sent it.
    """
    pg = group_or_default(group)
    tensor = as_tensor(array, "array", written=True)
    with calling(pg, timeout=timeout):
        if src is None:
            work = pg.recv_anysource([tensor], tag)
        else:
            work = pg.recv([tensor], rank_in(pg, src, "src"), tag)
    if async_op:
        return work
    work.wait()
    return src if src is not None else dist.get_global_rank(pg, work._source_rank())
