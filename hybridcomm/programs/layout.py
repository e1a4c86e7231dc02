"""What each collective's chunk table looks like: the facts every reader of a program shares.

A program names chunks ``in[i]``, ``out[i]`` and ``tmp[i]``. How many there are, which of them are
the same memory when the call is in place, and which of them are equally long follows from the
collective, the number of channels C and the world size N, and from nothing else:

==========  =====  =====  =======================  =========================================
collective  in     out    in place                 holds
==========  =====  =====  =======================  =========================================
all_reduce  C * N  C * N  in[i] is out[i]          part i of the tensor
broadcast   C      C      in[c] is out[c]          part c of the tensor
all_gather  C      C * N  in[c] is out[c*N+rank]   out[c*N+r]: part c of rank r's tensor
barrier     0      0
==========  =====  =====  =======================  =========================================

**Piece.** ``piece(rank, chunk)`` numbers what a chunk holds: ``out[i]`` holds piece ``i``, an
``in`` chunk the piece of the ``out`` chunk it lies on in place, ``tmp[i]`` is as long as ``out[i
mod n_out]``. Chunks of one piece have one length, on all ranks; pieces may differ in length, some
may be empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class Collective(IntEnum):
    """The collectives, with the code they have in the flat form."""

    ALL_REDUCE = 1
    BROADCAST = 2
    ALL_GATHER = 3
    BARRIER = 4
    REDUCE_SCATTER = 5
    ALL_TO_ALL = 6
    REDUCE = 7
    GATHER = 8
    SCATTER = 9
    SEND_RECV = 10

    @property
    def word(self) -> str:
        """The name people write: ``all_reduce``."""
        return self.name.lower()


class Space(IntEnum):
    """The three parts of a chunk table, in the order of the flat index."""

    IN = 0
    OUT = 1
    TMP = 2


class Chunk(NamedTuple):
    """One entry of the call's (pointer, bytes) table, written ``in[3]``.

    Attributes:
        space: Which part of the table.
        number: The entry's place in that part, from 0.
    """

    space: Space
    number: int

    def __str__(self) -> str:
        return f"{self.space.name.lower()}[{self.number}]"


class _Extent(IntEnum):
    """How many chunks of a space one channel has."""

    NONE = 0
    ONE = 1
    PER_RANK = 2  # index = channel * world + rank


@dataclass(frozen=True)
class _Kind:
    """The facts of a collective that do not depend on N and C."""

    inputs: _Extent
    outputs: _Extent
    rooted: bool = False
    reduces: bool = False


_KINDS = {
    Collective.ALL_REDUCE: _Kind(_Extent.PER_RANK, _Extent.PER_RANK, reduces=True),
    Collective.BROADCAST: _Kind(_Extent.ONE, _Extent.ONE, rooted=True),
    Collective.ALL_GATHER: _Kind(_Extent.ONE, _Extent.PER_RANK),
    Collective.BARRIER: _Kind(_Extent.NONE, _Extent.NONE),
}


@dataclass(frozen=True)
class Layout:
    """The chunk table of one collective over ``world`` ranks and ``channels`` channels.

    Args:
        collective: Which collective; one of the four in this module's table.
        world: Number of ranks N, at least 1.
        channels: Number of channels C, at least 1.

    Raises:
        ValueError: The collective has no layout yet.
    """

    collective: Collective
    world: int
    channels: int

    def __post_init__(self) -> None:
        if self.collective not in _KINDS:
            known = ", ".join(collective.word for collective in _KINDS)
            raise ValueError(
                f"collective: no programs are defined for {self.collective.word}; one of {known}"
            )

    @property
    def rooted(self) -> bool:
        """Whether the collective has a root rank."""
        return _KINDS[self.collective].rooted

    @property
    def reduces(self) -> bool:
        """Whether outputs are reductions of all ranks' inputs."""
        return _KINDS[self.collective].reduces

    @property
    def n_in(self) -> int:
        """Number of ``in`` chunks."""
        return self._count(_KINDS[self.collective].inputs)

    @property
    def n_out(self) -> int:
        """Number of ``out`` chunks."""
        return self._count(_KINDS[self.collective].outputs)

    def _count(self, extent: _Extent) -> int:
        return self.channels * (0, 1, self.world)[extent]

    def piece(self, rank: int, chunk: Chunk) -> int:
        """Number of the piece that ``chunk`` of ``rank`` holds (see the module's docstring)."""
        kind = _KINDS[self.collective]
        if chunk.space is Space.TMP:
            return chunk.number % self.n_out
        if chunk.space is Space.IN and kind.inputs < kind.outputs:
            return chunk.number * self.world + rank
        return chunk.number

    def in_place(self, rank: int, chunk: Chunk) -> Chunk:
        """The chunk whose memory ``chunk`` is when the call is in place."""
        if chunk.space is Space.IN:
            return Chunk(Space.OUT, self.piece(rank, chunk))
        return chunk

    def rotated(self, chunk: Chunk, shift: int) -> Chunk:
        """The chunk that plays ``chunk``'s part when every rank ``r`` is renamed ``r + shift``."""
        kind = _KINDS[self.collective]
        extent = kind.inputs if chunk.space is Space.IN else kind.outputs
        if extent is not _Extent.PER_RANK:
            return chunk
        channel, rank = divmod(chunk.number, self.world)
        return Chunk(chunk.space, channel * self.world + (rank + shift) % self.world)


def collective_named(name: str) -> Collective:
    """Find a collective by the name people write.

    Args:
        name: For instance ``"all_reduce"``.

    Returns:
        The collective.

    Raises:
        ValueError: There is no collective of that name.
    """
    for collective in Collective:
        if collective.word == name:
            return collective
    known = ", ".join(collective.word for collective in _KINDS)
    raise ValueError(f"collective: {name!r} is not known; one of {known}")
