"""Barrier by dissemination: every rank knows of all others after ceil(log2 N) rounds.

Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import Program, Step, signal, wait
from ..layout import Collective


def barrier_dissemination(world: int, channels: int = 1) -> Program:
    """In round i, signal rank r + 2^i and wait for rank r - 2^i.

    Args:
        world: Number of ranks.
        channels: Number of channels; a barrier has nothing to share out, so all but channel 0 are
            empty.

    Returns:
        The program.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        if channel != 0:
            return
        # Before the round of distance d, rank r has heard of the d ranks r - d + 1 to r; rank r -
        # d has heard of d more, so that afterwards it is 2 d. All N are known once d >= N.
        distance = 1
        while distance < world:
            yield signal((rank + distance) % world)
            yield wait((rank - distance) % world)
            distance *= 2

    return Program(
        collective=Collective.BARRIER,
        algorithm="dissemination",
        world=world,
        channels=channels,
        deterministic=True,
        symmetry="rotation",
        lane=lane,
    )
