"""Reduce from every rank to the root: one hop, one reduction in rank order."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy, recv_reduce, send
from ..layout import Collective


def reduce_direct(world: int, channels: int = 1) -> Program:
    """Reduce to rank 0; another root is had by renaming (``Program.rerooted``).

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own pieces of the tensor.

    Returns:
        The program, with root 0.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        if rank != 0:
            yield send(0, IN[channel])
        elif world > 1:
            yield recv_reduce(range(1, world), IN[channel], OUT[channel], finish=True)
        else:
            yield copy(IN[channel], OUT[channel])

    return Program(
        collective=Collective.REDUCE,
        algorithm="direct",
        world=world,
        channels=channels,
        root=0,
        deterministic=True,
        lane=lane,
    )
