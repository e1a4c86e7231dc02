"""Broadcast from the root to every rank: one hop."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy, recv, send
from ..layout import Collective


def broadcast_direct(world: int, channels: int = 1) -> Program:
    """Broadcast from rank 0; another root is had by renaming (``Program.rerooted``).

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own pieces of the tensor.

    Returns:
        The program, with root 0.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        if rank == 0:
            if world > 1:
                yield send(range(1, world), IN[channel])
            yield copy(IN[channel], OUT[channel])
        else:
            yield recv(0, OUT[channel])

    return Program(
        collective=Collective.BROADCAST,
        algorithm="direct",
        world=world,
        channels=channels,
        root=0,
        deterministic=True,
        lane=lane,
    )
