"""All-reduce around a ring: the least bytes per link, N - 1 hops twice.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import (
    IN,
    OUT,
    Program,
    Step,
    copy,
    recv,
    recv_copy_send,
    recv_reduce_copy_send,
    recv_reduce_send,
    send,
)
from ..layout import Collective


def all_reduce_ring(world: int, channels: int = 1) -> Program:
    """Reduce each piece on its way once around the ring, then pass the result around once more.

    Args:
        world: Number of ranks.
        channels: Number of independent rings; each carries its own pieces of the tensor.

    Returns:
        The program. Piece j is finished on rank j, after N - 1 reductions of two operands each.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        if world == 1:
            yield copy(IN[channel], OUT[channel])
            return

        following = (rank + 1) % world
        previous = (rank - 1) % world

        def piece(number: int) -> int:
            return channel * world + number % world

        # Reduce-scatter. Piece j starts on rank j + 1, moves one rank per hop, and after N - 1
        # hops has passed every rank and is on rank j. So hop h brings rank r the piece j for which
        # j + 1 + h = r, that is piece r - 1 - h: hop 0 is the start, hops 1 to N - 2 pass on, hop
        # N - 1 brings piece r - N = r.
        yield send(following, IN[piece(rank - 1)])
        for hop in range(1, world - 1):
            yield recv_reduce_send(previous, following, IN[piece(rank - 1 - hop)])
        yield recv_reduce_copy_send(
            previous, following, IN[piece(rank)], OUT[piece(rank)], finish=True
        )

        # All-gather. Piece j is complete on rank j, so hop h brings rank r piece r - h. The last
        # hop is N - 1, since piece j reaches rank j - 1 then; what it brings, piece r + 1, goes
        # no further.
        for hop in range(1, world - 1):
            yield recv_copy_send(previous, following, OUT[piece(rank - hop)])
        yield recv(previous, OUT[piece(rank + 1)])

    # Two slots: with one, every link could hold a message while every rank waits to send before
    # it takes.
    return Program(
        collective=Collective.ALL_REDUCE,
        algorithm="ring",
        world=world,
        channels=channels,
        deterministic=world <= 2,  # a reduction of two operands is in rank order and rounds once
        min_slots=1 if world == 1 else 2,
        symmetry="rotation",
        lane=lane,
    )
