"""Reduce-scatter by recursive halving: ceil(log2 N) rounds, for any world size.

Träff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy
from ..layout import Collective
from .halving import halve


def reduce_scatter_recursive_halving(world: int, channels: int = 1) -> Program:
    """Hand on half of the pieces, reduced as far as they are, in each round.

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own part of every rank's piece.

    Returns:
        The program.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        if world == 1:
            yield copy(IN[channel], OUT[channel])
        else:
            yield from halve(rank, world, channel * world, OUT[channel])

    return Program(
        collective=Collective.REDUCE_SCATTER,
        algorithm="recursive_halving",
        world=world,
        channels=channels,
        n_tmp=channels * world if world > 2 else 0,
        deterministic=world <= 2,  # a reduction of two operands is in rank order and rounds once
        min_slots=2 if world > 3 else 1,  # rounds of one message need no second slot
        symmetry="rotation",
        lane=lane,
    )
