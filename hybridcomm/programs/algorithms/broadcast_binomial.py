"""Broadcast down a binomial tree: no more hops than N - 1 has bits."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy, recv, recv_copy_send, send
from ..layout import Collective


def broadcast_binomial(world: int, channels: int = 1) -> Program:
    """Broadcast from rank 0; another root is had by renaming (``Program.rerooted``).

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own pieces of the tensor.

    Returns:
        The program, with root 0.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        # The subtree of rank r is the ranks r + d with d below r's lowest set bit (for the root:
        # below any power of two that is at least N). So the parent is r without that bit, the
        # children are r + 2^i for 2^i below it, and the largest subtree is served first: it has
        # the longest way to go.
        span = rank & -rank if rank else 1 << (world - 1).bit_length()
        steps_out = [1 << i for i in reversed(range(span.bit_length() - 1))]
        children = [rank + distance for distance in steps_out if rank + distance < world]

        if rank == 0:
            if children:
                yield send(children, IN[channel])
            yield copy(IN[channel], OUT[channel])
        elif children:
            yield recv_copy_send(rank - span, children, OUT[channel])
        else:
            yield recv(rank - span, OUT[channel])

    return Program(
        collective=Collective.BROADCAST,
        algorithm="binomial",
        world=world,
        channels=channels,
        root=0,
        deterministic=True,
        lane=lane,
    )
