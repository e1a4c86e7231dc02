"""Gather from every rank to the root: one hop."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy, recv, send
from ..layout import Collective


def gather_direct(world: int, channels: int = 1) -> Program:
    """Gather to rank 0; another root is had by renaming (``Program.rerooted``).

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own part of every rank's tensor.

    Returns:
        The program, with root 0.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        if rank != 0:
            yield send(0, IN[channel])
            return
        yield copy(IN[channel], OUT[channel * world])
        for peer in range(1, world):
            yield recv(peer, OUT[channel * world + peer])

    return Program(
        collective=Collective.GATHER,
        algorithm="direct",
        world=world,
        channels=channels,
        root=0,
        deterministic=True,
        lane=lane,
    )
