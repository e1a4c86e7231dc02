"""All-reduce by recursive halving and doubling: 2 ceil(log2 N) rounds, for any world size.

Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
2005, after Rabenseifner; for world sizes that are no powers of two Träff, "Optimal, non-pipelined
reduce-scatter and allreduce algorithms", 2024.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy, recv, send
from ..layout import Collective
from .halving import halve, one_ahead, rounds


def all_reduce_halving_doubling(world: int, channels: int = 1) -> Program:
    """Reduce each piece to its rank in rounds of halving, then play the rounds backwards.

    As many bytes per rank as a ring, in 2 ceil(log2 N) rounds instead of 2 (N - 1) hops.

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own pieces of the tensor.

    Returns:
        The program.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        first = channel * world
        if world == 1:
            yield copy(IN[first], OUT[first])
            return

        def piece(ahead: int) -> int:
            return first + (rank + ahead) % world

        yield from halve(rank, world, first, OUT[piece(0)])
        # Before a round of halving played backwards, rank r has the results of the pieces 0 to
        # kept - 1 ahead. Whom it gave pieces from `kept` on, rank r + kept, has them as 0 to held -
        # kept - 1 ahead, and gives them back.
        for held, kept in reversed(rounds(world)):
            moved = range(held - kept)
            sends = [send((rank - kept) % world, OUT[piece(i)]) for i in moved]
            receives = [recv((rank + kept) % world, OUT[piece(kept + i)]) for i in moved]
            yield from one_ahead(sends, receives)

    return Program(
        collective=Collective.ALL_REDUCE,
        algorithm="halving_doubling",
        world=world,
        channels=channels,
        n_tmp=channels * world if world > 2 else 0,
        deterministic=world <= 2,  # a reduction of two operands is in rank order and rounds once
        min_slots=2 if world > 3 else 1,  # rounds of one message need no second slot
        symmetry="rotation",
        lane=lane,
    )
