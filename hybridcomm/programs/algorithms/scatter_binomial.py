"""Scatter down a binomial tree: the root sends to ceil(log2 N) ranks only."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, TMP, Program, Step, copy, recv, recv_copy_send, send
from ..layout import Collective
from .binomial import node


def scatter_binomial(world: int, channels: int = 1) -> Program:
    """Scatter from rank 0; another root is had by renaming (``Program.rerooted``).

    Ranks pass on what lies below them, so they must know how long it is: this is for calls in which
    all pieces are equally long.

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own part of every rank's piece.

    Returns:
        The program, with root 0.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        parent, subtrees = node(rank, world)
        first = channel * world
        # Descending: the largest subtree first, and in it that of its largest child; what has the
        # longest way goes first, and the own piece comes last. A child's subtree arrives there in
        # descending order too.
        for subtree in subtrees:
            child = subtree[0]
            for destination in reversed(subtree):
                if parent is None:
                    yield send(child, IN[first + destination])
                else:
                    yield recv_copy_send(parent, child, TMP[first + destination])
        if parent is None:
            yield copy(IN[first], OUT[channel])
        else:
            yield recv(parent, OUT[channel])

    return Program(
        collective=Collective.SCATTER,
        algorithm="binomial",
        world=world,
        channels=channels,
        root=0,
        n_tmp=channels * world if world > 3 else 0,  # up to three ranks, nobody passes on
        deterministic=True,
        lane=lane,
    )
