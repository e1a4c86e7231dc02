"""All-to-all from every rank to every rank: all is sent before anything is received."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy, recv, send
from ..layout import Collective


def all_to_all_direct(world: int, channels: int = 1) -> Program:
    """Send every rank its piece, then receive every rank's.

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own part of every piece.

    Returns:
        The program.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        first = channel * world
        # From the next rank on, so that the ranks serve different peers at any time; hence the
        # previous rank's message comes first, and so on backwards.
        following = [(rank + distance) % world for distance in range(1, world)]
        for peer in following:
            yield send(peer, IN[first + peer])
        yield copy(IN[first + rank], OUT[first + rank])
        for peer in reversed(following):
            yield recv(peer, OUT[first + peer])

    return Program(
        collective=Collective.ALL_TO_ALL,
        algorithm="direct",
        world=world,
        channels=channels,
        deterministic=True,
        symmetry="rotation",
        lane=lane,
    )
