"""Reduce up a binomial tree: no more hops than N - 1 has bits."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy, recv_reduce, recv_reduce_send, send
from ..layout import Collective
from .binomial import node


def reduce_binomial(world: int, channels: int = 1) -> Program:
    """Reduce to rank 0; another root is had by renaming (``Program.rerooted``).

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own pieces of the tensor.

    Returns:
        The program, with root 0. Each rank reduces its children's results and its own input in one
        step, so the nesting follows the tree, which every root lays over the ranks anew.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        parent, children = node(rank, world).parent, node(rank, world).children
        if parent is None:
            if children:
                yield recv_reduce(children, IN[channel], OUT[channel], finish=True)
            else:
                yield copy(IN[channel], OUT[channel])
        elif children:
            yield recv_reduce_send(children, parent, IN[channel])
        else:
            yield send(parent, IN[channel])

    return Program(
        collective=Collective.REDUCE,
        algorithm="binomial",
        world=world,
        channels=channels,
        root=0,
        deterministic=world <= 3,  # up to three ranks, all others are the root's children
        lane=lane,
    )
