"""Broadcast down a binomial tree: no more hops than N - 1 has bits."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy, recv, recv_copy_send, send
from ..layout import Collective
from .binomial import node


def broadcast_binomial(world: int, channels: int = 1) -> Program:
    """Broadcast from rank 0; another root is had by renaming (``Program.rerooted``).

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own pieces of the tensor.

    Returns:
        The program, with root 0.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        # The largest subtree is served first: it has the longest way to go.
        parent, children = node(rank, world).parent, node(rank, world).children
        if parent is None:
            if children:
                yield send(children, IN[channel])
            yield copy(IN[channel], OUT[channel])
        elif children:
            yield recv_copy_send(parent, children, OUT[channel])
        else:
            yield recv(parent, OUT[channel])

    return Program(
        collective=Collective.BROADCAST,
        algorithm="binomial",
        world=world,
        channels=channels,
        root=0,
        deterministic=True,
        lane=lane,
    )
