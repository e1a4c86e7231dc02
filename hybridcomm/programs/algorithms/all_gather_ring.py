"""All-gather around a ring: each rank talks to its neighbours only, N - 1 hops."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy, recv, recv_copy_send, send
from ..layout import Collective


def all_gather_ring(world: int, channels: int = 1) -> Program:
    """Pass every rank's tensor once around the ring.

    Args:
        world: Number of ranks.
        channels: Number of independent rings; each carries its own piece of every rank's tensor.

    Returns:
        The program.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        following = (rank + 1) % world
        previous = (rank - 1) % world

        def origin(source: int) -> int:
            return channel * world + source % world

        # Hop h brings rank r what rank r - h gave. The last is h = N - 1, from rank r + 1, the rank
        # that follows: it goes no further.
        if world > 1:
            yield send(following, IN[channel])
        yield copy(IN[channel], OUT[origin(rank)])
        for hop in range(1, world - 1):
            yield recv_copy_send(previous, following, OUT[origin(rank - hop)])
        if world > 1:
            yield recv(previous, OUT[origin(rank + 1)])

    # Two slots as soon as there is a step that passes on: with one, every link could hold a message
    # while every rank waits to send before it takes.
    return Program(
        collective=Collective.ALL_GATHER,
        algorithm="ring",
        world=world,
        channels=channels,
        deterministic=True,
        min_slots=2 if world > 2 else 1,
        symmetry="rotation",
        lane=lane,
    )
