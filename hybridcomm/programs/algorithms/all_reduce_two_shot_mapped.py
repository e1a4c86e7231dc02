"""Two-shot all-reduce over tensors that every rank can read and write: nothing is staged."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import IN, OUT, Program, Step, copy, read_reduce, signal, wait, write
from ..layout import Collective


def all_reduce_two_shot_mapped(world: int, channels: int = 1) -> Program:
    """Read the own piece from every rank's input, write its reduction into every rank's output.

    Each operand is read once and each result written once per rank, where it lies. Needs the peers'
    ``in`` and ``out`` chunks mapped.

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own pieces of the tensor.

    Returns:
        The program.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        own = channel * world + rank
        if world == 1:
            yield copy(IN[own], OUT[own])
            return

        others = [(rank + distance) % world for distance in range(1, world)]

        # A rank that has entered the call has its input ready, and its output is ours to write.
        yield signal(others)
        yield wait(others)
        yield read_reduce(others, IN[own], IN[own], OUT[own], finish=True)
        # In place, out[own] of a peer is its in[own], which only this rank reads: no signal
        # between.
        yield write(others, OUT[own], OUT[own])
        # No rank returns before its peers have read its input and written its output.
        yield signal(others)
        yield wait(others)

    return Program(
        collective=Collective.ALL_REDUCE,
        algorithm="two_shot_mapped",
        world=world,
        channels=channels,
        deterministic=True,
        symmetry="rotation",
        lane=lane,
    )
