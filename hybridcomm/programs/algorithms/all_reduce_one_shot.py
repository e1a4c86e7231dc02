"""All-reduce in one exchange: every rank sends all it has to all, and reduces everything itself."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy, recv_reduce, send
from ..layout import Collective
from .halving import one_ahead


def all_reduce_one_shot(world: int, channels: int = 1) -> Program:
    """Send every piece to all, reduce every piece in one step.

    One hop, the least there is, for N / 2 times the bytes of a two-shot: for small tensors. Every
    operand of a piece meets in one reduction, in rank order, rounded once.

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own pieces of the tensor.

    Returns:
        The program.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        pieces = range(channel * world, (channel + 1) * world)
        if world == 1:
            yield copy(IN[channel], OUT[channel])
            return

        # All ranks take the pieces in one order, since each message goes to all.
        others = [(rank + distance) % world for distance in range(1, world)]
        sends = [send(others, IN[piece]) for piece in pieces]
        receives = [recv_reduce(others, IN[piece], OUT[piece], finish=True) for piece in pieces]
        yield from one_ahead(sends, receives)

    return Program(
        collective=Collective.ALL_REDUCE,
        algorithm="one_shot",
        world=world,
        channels=channels,
        deterministic=True,
        min_slots=1 if world == 1 else 2,
        lane=lane,
    )
