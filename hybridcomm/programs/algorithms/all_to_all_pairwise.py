"""All-to-all in N - 1 rounds: each rank sends to one and receives from one at a time.

Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
2005: the algorithm for long messages.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy, recv, send
from ..layout import Collective


def all_to_all_pairwise(world: int, channels: int = 1) -> Program:
    """In round d, send to rank r + d and receive from rank r - d.

    No rank is sent to by two at a time, and none is more than a round ahead of whom it receives
    from.

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own part of every piece.

    Returns:
        The program.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        first = channel * world
        yield copy(IN[first + rank], OUT[first + rank])
        for distance in range(1, world):
            following = (rank + distance) % world
            previous = (rank - distance) % world
            yield send(following, IN[first + following])
            yield recv(previous, OUT[first + previous])

    return Program(
        collective=Collective.ALL_TO_ALL,
        algorithm="pairwise",
        world=world,
        channels=channels,
        deterministic=True,
        symmetry="rotation",
        lane=lane,
    )
