"""Broadcast along a chain: each byte leaves every rank once at most, slot after slot."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy, recv, recv_copy_send, send
from ..layout import Collective


def broadcast_chain(world: int, channels: int = 1) -> Program:
    """Broadcast from rank 0; another root is had by renaming (``Program.rerooted``).

    A step that receives and sends goes on slot by slot, so a long tensor is on all links of the
    chain at once: N - 1 hops for the first slot, one more for each that follows.

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own pieces of the tensor.

    Returns:
        The program, with root 0.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        last = rank == world - 1
        if rank == 0:
            if not last:
                yield send(1, IN[channel])
            yield copy(IN[channel], OUT[channel])
        elif last:
            yield recv(rank - 1, OUT[channel])
        else:
            yield recv_copy_send(rank - 1, rank + 1, OUT[channel])

    return Program(
        collective=Collective.BROADCAST,
        algorithm="chain",
        world=world,
        channels=channels,
        root=0,
        deterministic=True,
        lane=lane,
    )
