"""Reduce-scatter around a ring: each rank talks to its neighbours only, N - 1 hops.

The first half of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", 2009.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy, recv_reduce, recv_reduce_send, send
from ..layout import Collective


def reduce_scatter_ring(world: int, channels: int = 1) -> Program:
    """Reduce each piece on its way once around the ring; it ends on the rank that it is for.

    Args:
        world: Number of ranks.
        channels: Number of independent rings; each carries its own part of every rank's piece.

    Returns:
        The program. A piece is finished after N - 1 reductions of two operands each.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        if world == 1:
            yield copy(IN[channel], OUT[channel])
            return

        following = (rank + 1) % world
        previous = (rank - 1) % world

        def piece(number: int) -> int:
            return channel * world + number % world

        # Piece j starts on rank j + 1, moves one rank per hop, and after N - 1 hops has passed
        # every rank and is on rank j. So hop h brings rank r the piece j for which j + 1 + h = r,
        # that is piece r - 1 - h: hop 0 is the start, hops 1 to N - 2 pass on, hop N - 1 brings
        # piece r - N = r.
        yield send(following, IN[piece(rank - 1)])
        for hop in range(1, world - 1):
            yield recv_reduce_send(previous, following, IN[piece(rank - 1 - hop)])
        yield recv_reduce(previous, IN[piece(rank)], OUT[channel], finish=True)

    # Two slots as soon as there is a step that passes on: with one, every link could hold a message
    # while every rank waits to send before it takes.
    return Program(
        collective=Collective.REDUCE_SCATTER,
        algorithm="ring",
        world=world,
        channels=channels,
        deterministic=world <= 2,  # a reduction of two operands is in rank order and rounds once
        min_slots=2 if world > 2 else 1,
        symmetry="rotation",
        lane=lane,
    )
