"""Reduce-scatter from every rank to every rank: one hop, one reduction in rank order."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy, recv_reduce, send
from ..layout import Collective


def reduce_scatter_direct(world: int, channels: int = 1) -> Program:
    """Send each rank its piece, reduce the own piece in one step.

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own part of every rank's piece.

    Returns:
        The program.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        first = channel * world
        # From the next rank on, so that at any time the ranks serve different peers.
        others = [(rank + distance) % world for distance in range(1, world)]
        for peer in others:
            yield send(peer, IN[first + peer])
        if others:
            yield recv_reduce(others, IN[first + rank], OUT[channel], finish=True)
        else:
            yield copy(IN[first], OUT[channel])

    return Program(
        collective=Collective.REDUCE_SCATTER,
        algorithm="direct",
        world=world,
        channels=channels,
        deterministic=True,
        symmetry="rotation",
        lane=lane,
    )
