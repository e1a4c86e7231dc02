"""Scatter from the root to every rank: one hop."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy, recv, send
from ..layout import Collective


def scatter_direct(world: int, channels: int = 1) -> Program:
    """Scatter from rank 0; another root is had by renaming (``Program.rerooted``).

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own part of every rank's piece.

    Returns:
        The program, with root 0.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        if rank != 0:
            yield recv(0, OUT[channel])
            return
        for peer in range(1, world):
            yield send(peer, IN[channel * world + peer])
        yield copy(IN[channel * world], OUT[channel])

    return Program(
        collective=Collective.SCATTER,
        algorithm="direct",
        world=world,
        channels=channels,
        root=0,
        deterministic=True,
        lane=lane,
    )
