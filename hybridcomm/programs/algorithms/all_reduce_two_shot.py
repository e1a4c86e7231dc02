"""All-reduce in two exchanges: each rank reduces one piece for all, then hands it to all."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy, recv, recv_reduce_copy_send, send
from ..layout import Collective


def all_reduce_two_shot(world: int, channels: int = 1) -> Program:
    """Send piece j to rank j, reduce the own piece in one step, send the result to all.

    As many bytes per rank as a ring, in two hops instead of 2 (N - 1); every operand of a piece
    meets in one reduction, in rank order, rounded once.

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own pieces of the tensor.

    Returns:
        The program.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        if world == 1:
            yield copy(IN[channel], OUT[channel])
            return

        # From the next rank on, so that at any time the ranks serve different peers.
        others = [(rank + distance) % world for distance in range(1, world)]
        first = channel * world

        for peer in others:
            yield send(peer, IN[first + peer])
        yield recv_reduce_copy_send(
            others, others, IN[first + rank], OUT[first + rank], finish=True
        )
        for peer in others:
            yield recv(peer, OUT[first + peer])

    # Two slots: with one, two ranks that have sent each other their operands could neither reduce,
    # because the result has no slot until the peer has taken the operand.
    return Program(
        collective=Collective.ALL_REDUCE,
        algorithm="two_shot",
        world=world,
        channels=channels,
        deterministic=True,
        min_slots=1 if world == 1 else 2,
        symmetry="rotation",
        lane=lane,
    )
