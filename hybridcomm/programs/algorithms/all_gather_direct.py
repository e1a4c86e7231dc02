"""All-gather from every rank to every rank: one hop."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy, recv, send
from ..layout import Collective


def all_gather_direct(world: int, channels: int = 1) -> Program:
    """Send the own tensor to all, receive each other rank's.

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own piece of every rank's tensor.

    Returns:
        The program.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        # Served from the next rank on, so that the ranks serve different peers at any time; hence
        # the previous rank's message comes first, and so on backwards.
        following = [(rank + distance) % world for distance in range(1, world)]
        if following:
            yield send(following, IN[channel])
        yield copy(IN[channel], OUT[channel * world + rank])
        for peer in reversed(following):
            yield recv(peer, OUT[channel * world + peer])

    return Program(
        collective=Collective.ALL_GATHER,
        algorithm="direct",
        world=world,
        channels=channels,
        deterministic=True,
        symmetry="rotation",
        lane=lane,
    )
