"""What the public functions have in common: their options, and the group they call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

# Of the call under way.
_NO_TIMEOUT = timedelta(0)


def group_or_default(group: dist.ProcessGroup | None) -> Any:
    """Finds the group of a call.

    Args:
        group: The caller's, or None.

    Returns:
        The group.

    Raises:
        ValueError: There is no default group, or this rank is not in the group.
    """
    if group is None:
        if not dist.is_initialized():
            raise ValueError(
                "argument group: there is no default group; call "
                "torch.distributed.init_process_group first"
            )
        return dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError("argument group: this rank is not a member of the group")
    return group


def rank_in(group: Any, rank: int, argument: str) -> int:
    """Translates a global rank into a group's.

    Args:
        group: The group.
        rank: The rank in the job.
        argument: Its name in the call, for errors.

    Returns:
        The rank in the group.

    Raises:
        ValueError: It is not a member.
    """
    members = dist.get_process_group_ranks(group)
    if rank not in members:
        named = ", ".join(map(str, members[:16])) + (", …" if len(members) > 16 else "")
        raise ValueError(f"argument {argument}: rank {rank} is not in the group of ranks {named}")
    return members.index(rank)


def reduction(op: str | dist.ReduceOp | dist.ReduceOp.RedOpType) -> dist.ReduceOp:
    """Finds a reduction.

    Args:
        op: Its name, in upper or lower case, or torch's object.

    Returns:
        torch's object.

    Raises:
        ValueError: There is no reduction of that name.
    """
    if isinstance(op, dist.ReduceOp):
        return op
    if not isinstance(op, str):
        return dist.ReduceOp(op)
    known = dist.ReduceOp.RedOpType.__members__
    if op.upper() not in known or op.upper() == "PREMUL_SUM":
        names = ", ".join(name.lower() for name in known if name != "PREMUL_SUM")
        raise ValueError(f"argument op: there is no {op!r}; one of {names}")
    return dist.ReduceOp(known[op.upper()])


def duration(timeout: float | timedelta | None) -> timedelta:
    """Reads a time-out.

    Args:
        timeout: Seconds, a timedelta, or None for the group's.

    Returns:
        It; zero if there is none.

    Raises:
        ValueError: It is not positive.
    """
    if timeout is None:
        return _NO_TIMEOUT
    length = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    if length <= _NO_TIMEOUT:
        raise ValueError(f"argument timeout: {timeout} is not positive")
    return max(length, timedelta(milliseconds=1))


@contextmanager
def calling(
    group: Any,
    *,
    algorithm: str | None = None,
    timeout: float | timedelta | None = None,
    deterministic: bool = False,
) -> Iterator[None]:
    """Gives options to the calls that this thread makes within the block.

    Args:
        group: The group that is called.
        algorithm: The algorithm, if it is not to be chosen.
        timeout: Seconds, or a timedelta, if not the group's.
        deterministic: Whether a reduction must be the canonical one.

    Yields:
        Nothing.

    Raises:
        ValueError: An option is wrong, or the group is another backend's, which has no such option.
    """
    length = duration(timeout)
    if algorithm is None and not deterministic and not length:
        yield
        return
    exchange = getattr(backend_of(group), "exchange_call_preferences", None)
    if exchange is None:
        given = "algorithm" if algorithm else "deterministic" if deterministic else "timeout"
        raise ValueError(
            f"argument {given}: the group is of backend {group.name()!r}; only groups of "
            f"hybridcomm have this option"
        )
    before = exchange(algorithm or "", deterministic, length)
    try:
        yield
    finally:
        exchange(*before)


def backend_of(group: Any) -> Any:
    """Finds what carries out a group's calls on host memory.

    Args:
        group: The group.

    Returns:
        Its backend, or the group itself if it is one.
    """
    if hasattr(group, "exchange_call_preferences"):
        return group
    return group._get_backend(torch.device("cpu"))
