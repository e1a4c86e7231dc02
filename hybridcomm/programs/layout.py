"""What each collective's chunk table looks like: the facts every reader of a program shares.

A program names chunks ``in[i]``, ``out[i]`` and ``tmp[i]``. How many there are, which of them are
the same memory when the call is in place, and which of them are equally long follows from the
collective, its root, the number of channels C and the world size N, and from nothing else:

==============  ==========  ==========  ======================  =============================
collective      in          out         in place                holds
==============  ==========  ==========  ======================  =============================
all_reduce      C * N       C * N       in[i] is out[i]         part i of the tensor
broadcast       C           C           in[c] is out[c]         part c of the tensor
all_gather      C           C * N       in[c] is out[c*N+rank]  out[c*N+r]: part c of rank r's
barrier         0           0
reduce_scatter  C * N       C           out[c] is in[c*N+rank]  in[c*N+r]: part c, for rank r
all_to_all      C * N       C * N       never                   in[c*N+d]: part c, for rank d;
                                                                out[c*N+s]: part c, of rank s
reduce          C           C, root's   in[c] is out[c]         part c of the tensor
gather          C           C*N, ditto  in[c] is out[c*N+root]  out[c*N+r]: part c of rank r's
scatter         C*N, ditto  C           out[c] is in[c*N+root]  in[c*N+r]: part c, for rank r
==============  ==========  ==========  ======================  =============================

The last three are in place at the root only, which alone has the space marked so: the others'
tables have the entries, but no memory behind them, and no step may name them.

**Piece.** ``piece(rank, chunk)`` numbers what a chunk holds. Chunks of one piece have one length,
on all ranks; pieces may differ in length, some may be empty. An all-to-all has a piece for each
channel and pair of ranks, (c*N + source)*N + destination. The others have as many pieces as the
larger of their two spaces has chunks, and number them as it does: chunk c of the other space holds
piece c, or c*N + rank where the larger one has N times as many. ``tmp[i]`` is as long as piece i,
modulo their number; an all-to-all has none.
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
    """The facts of a collective that do not depend on N, C and the root."""

    inputs: _Extent
    outputs: _Extent
    rooted: bool = False
    reduces: bool = False
    roots_alone: Space | None = None  # the space that no other rank has


_KINDS = {
    Collective.ALL_REDUCE: _Kind(_Extent.PER_RANK, _Extent.PER_RANK, reduces=True),
    Collective.BROADCAST: _Kind(_Extent.ONE, _Extent.ONE, rooted=True),
    Collective.ALL_GATHER: _Kind(_Extent.ONE, _Extent.PER_RANK),
    Collective.BARRIER: _Kind(_Extent.NONE, _Extent.NONE),
    Collective.REDUCE_SCATTER: _Kind(_Extent.PER_RANK, _Extent.ONE, reduces=True),
    Collective.ALL_TO_ALL: _Kind(_Extent.PER_RANK, _Extent.PER_RANK),
    Collective.REDUCE: _Kind(
        _Extent.ONE, _Extent.ONE, rooted=True, reduces=True, roots_alone=Space.OUT
    ),
    Collective.GATHER: _Kind(_Extent.ONE, _Extent.PER_RANK, rooted=True, roots_alone=Space.OUT),
    Collective.SCATTER: _Kind(_Extent.PER_RANK, _Extent.ONE, rooted=True, roots_alone=Space.IN),
}


@dataclass(frozen=True)
class Layout:
    """The chunk table of one collective over ``world`` ranks and ``channels`` channels.

    Args:
        collective: Which collective; one of this module's table.
        world: Number of ranks N, at least 1.
        channels: Number of channels C, at least 1.
        root: Root rank, for a collective that has one.

    Raises:
        ValueError: The collective has no programs.
    """

    collective: Collective
    world: int
    channels: int
    root: int | None = None

    def __post_init__(self) -> None:
        if self.collective not in _KINDS:
            known = ", ".join(collective.word for collective in _KINDS)
            raise ValueError(
                f"collective: no programs are defined for {self.collective.word}; one of {known}"
            )

    @property
    def rooted(self) -> bool:
        """Whether the collective has a root rank."""
        return self._kind.rooted

    @property
    def reduces(self) -> bool:
        """Whether outputs are reductions of all ranks' inputs."""
        return self._kind.reduces

    @property
    def n_in(self) -> int:
        """Number of ``in`` chunks."""
        return self._count(self._kind.inputs)

    @property
    def n_out(self) -> int:
        """Number of ``out`` chunks."""
        return self._count(self._kind.outputs)

    @property
    def n_pieces(self) -> int:
        """Number of different pieces (see the module's docstring)."""
        if self.collective is Collective.ALL_TO_ALL:
            return self.n_in * self.world
        return max(self.n_in, self.n_out)

    @property
    def _kind(self) -> _Kind:
        return _KINDS[self.collective]

    def _count(self, extent: _Extent) -> int:
        return self.channels * (0, 1, self.world)[extent]

    def has(self, rank: int, space: Space) -> bool:
        """Whether ``rank`` has memory for the chunks of ``space``; steps may name no others."""
        return space is not self._kind.roots_alone or rank == self.root

    def piece(self, rank: int, chunk: Chunk) -> int:
        """Number of the piece that ``chunk`` of ``rank`` holds (see the module's docstring)."""
        if chunk.space is Space.TMP:
            return chunk.number % self.n_pieces
        if self.collective is Collective.ALL_TO_ALL:
            channel, peer = divmod(chunk.number, self.world)
            source, destination = (rank, peer) if chunk.space is Space.IN else (peer, rank)
            return (channel * self.world + source) * self.world + destination
        kind = self._kind
        own, other = kind.inputs, kind.outputs
        if chunk.space is Space.OUT:
            own, other = other, own
        return chunk.number * self.world + rank if own < other else chunk.number

    def in_place(self, rank: int, chunk: Chunk) -> Chunk:
        """The chunk whose memory ``chunk`` is when the call is in place.

        Args:
            rank: Whose chunk.
            chunk: The chunk.

        Returns:
            The ``out`` chunk for an ``in`` chunk that shares its memory with one, else ``chunk``.
        """
        kind = self._kind
        if chunk.space is not Space.IN or self.collective is Collective.ALL_TO_ALL:
            return chunk
        if kind.roots_alone is not None and rank != self.root:
            return chunk
        if kind.outputs < kind.inputs:
            channel, owner = divmod(chunk.number, self.world)
            return Chunk(Space.OUT, channel) if owner == rank else chunk
        return Chunk(Space.OUT, self.piece(rank, chunk))

    def rotated(self, chunk: Chunk, shift: int) -> Chunk:
        """The chunk that plays ``chunk``'s part when every rank ``r`` is renamed ``r + shift``."""
        kind = self._kind
        extent = (kind.inputs, kind.outputs, max(kind.inputs, kind.outputs))[chunk.space]
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
