"""All-gather by doubling: ceil(log2 N) rounds, for any world size.

Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in
multiport message-passing systems", 1997.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy, recv, send
from ..layout import Collective
from .halving import one_ahead


def all_gather_bruck(world: int, channels: int = 1) -> Program:
    """In each round, hand all that is known to the rank that has as much of what comes before it.

    The original gathers into a rotated copy and turns it at the end; here each tensor has a place
    of its own from the start.

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own piece of every rank's tensor.

    Returns:
        The program.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        def piece(ahead: int) -> int:
            return channel * world + (rank + ahead) % world

        yield copy(IN[channel], OUT[piece(0)])
        # Rank r has the tensors of ranks r to r + held - 1. Rank r + held has as many from there
        # on; the last round takes only what is still missing.
        held = 1
        while held < world:
            moved = range(min(held, world - held))
            to, frm = (rank - held) % world, (rank + held) % world
            sends = [send(to, OUT[piece(i)] if i else IN[channel]) for i in moved]
            receives = [recv(frm, OUT[piece(held + i)]) for i in moved]
            yield from one_ahead(sends, receives)
            held += len(moved)

    return Program(
        collective=Collective.ALL_GATHER,
        algorithm="bruck",
        world=world,
        channels=channels,
        deterministic=True,
        min_slots=2 if world > 3 else 1,  # rounds of one message need no second slot
        symmetry="rotation",
        lane=lane,
    )
