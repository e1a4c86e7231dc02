"""Gather up a binomial tree: the root takes messages of ceil(log2 N) ranks only."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, TMP, Program, Step, copy, recv, recv_copy_send, send
from ..layout import Collective
from .binomial import node


def gather_binomial(world: int, channels: int = 1) -> Program:
    """Gather to rank 0; another root is had by renaming (``Program.rerooted``).

    Ranks pass on what lies below them, so they must know how long it is: this is for calls in which
    all tensors are equally long.

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own part of every rank's tensor.

    Returns:
        The program, with root 0.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        parent, subtrees = node(rank, world)
        first = channel * world
        # A rank gives its own tensor, then those below it in ascending order: the smallest subtree,
        # r + 1, first. So the subtree of each child arrives in ascending order too.
        if parent is None:
            yield copy(IN[channel], OUT[first])
        else:
            yield send(parent, IN[channel])
        for subtree in reversed(subtrees):
            child = subtree[0]
            for origin in subtree:
                if parent is None:
                    yield recv(child, OUT[first + origin])
                else:
                    yield recv_copy_send(child, parent, TMP[first + origin])

    return Program(
        collective=Collective.GATHER,
        algorithm="binomial",
        world=world,
        channels=channels,
        root=0,
        n_tmp=channels * world if world > 3 else 0,  # up to three ranks, nobody passes on
        deterministic=True,
        lane=lane,
    )
