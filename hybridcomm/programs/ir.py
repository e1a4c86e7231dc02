"""Programs: a collective algorithm as data.

An algorithm is a function ``lane(rank, channel)`` that yields the steps of one rank on one
channel, in order. This module gives it its words: chunks (``IN[i]``, ``OUT[i]``, ``TMP[i]``), one
verb per step, and ``Program``, which carries the lane function and what is declared of it. See
``algorithms/`` for examples and ``docs/program-format.md`` for the written forms.

**Execution model.** A *lane* (rank, channel) does its steps one after the other; lanes run at
any speed. A *link* (from, to, channel) is a FIFO of k slots. A step that takes messages waits
until each input link has one, a step that sends waits until each output link has a free slot; a
step that does both waits for all of them, then acts at once. ``signal`` and ``wait`` send and
take messages without bytes on the same links. ``read_reduce`` and ``write`` touch a peer's chunks
directly and wait for nothing.

**Segments.** A call of any size is the whole program run over and over: pass s moves bytes
``[s*W, (s+1)*W)`` of every chunk. A step whose window is empty is skipped, ``signal`` and
``wait`` never are. A step's chunks all hold one piece (``layout.py``), so both ends of a link
skip the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import Literal, NamedTuple

from .layout import Chunk, Collective, Layout, Space


class Op(IntEnum):
    """What a step does, with its code in the flat form."""

    SEND = 1
    RECV = 2
    COPY = 3
    RECV_REDUCE = 4
    RECV_COPY_SEND = 5
    RECV_REDUCE_SEND = 6
    RECV_REDUCE_COPY_SEND = 7
    READ_REDUCE = 8
    WRITE = 9
    SIGNAL = 10
    WAIT = 11

    @property
    def word(self) -> str:
        """The name people write: ``recv_reduce_send``."""
        return self.name.lower()


# Steps whose result is a reduction; only these may carry ``finish``.
REDUCING = frozenset(
    {Op.RECV_REDUCE, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND, Op.READ_REDUCE}
)
# Steps that touch a peer's memory instead of a link.
ONE_SIDED = frozenset({Op.READ_REDUCE, Op.WRITE})
# Steps that move no bytes: never skipped, and they order others of any piece.
TOKENS = frozenset({Op.SIGNAL, Op.WAIT})


class Step(NamedTuple):
    """One action of one rank on one channel.

    Attributes:
        op: What it does.
        frm: Peers it takes from. Ascending in a reducing step, because operands are taken in rank
            order.
        to: Peers it gives to, in the order in which they are served.
        src: Local chunk it reads, if any.
        dst: Local chunk it writes, if any.
        remote: Chunk in the peers' tables, for ``read_reduce`` and ``write``.
        finish: This reduction completes the value; AVG divides by the world size here.
    """

    op: Op
    frm: tuple[int, ...] = ()
    to: tuple[int, ...] = ()
    src: Chunk | None = None
    dst: Chunk | None = None
    remote: Chunk | None = None
    finish: bool = False

    @property
    def received(self) -> tuple[int, ...]:
        """Peers whose links the step takes a message from."""
        return () if self.op is Op.READ_REDUCE else self.frm

    @property
    def sent(self) -> tuple[int, ...]:
        """Peers whose links the step puts a message on."""
        return () if self.op is Op.WRITE else self.to

    def __str__(self) -> str:
        words = [self.op.word]
        if self.frm:
            words += ["from", ",".join(map(str, self.frm))]
        if self.to:
            words += ["to", ",".join(map(str, self.to))]
        for name, chunk in (("src", self.src), ("dst", self.dst), ("remote", self.remote)):
            if chunk is not None:
                words += [name, str(chunk)]
        if self.finish:
            words.append("finish")
        return " ".join(words)


class _Chunks:
    """``IN[3]`` is chunk 3 of the ``in`` part of the table."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def __getitem__(self, index: int) -> Chunk:
        return Chunk(self._space, index)


IN = _Chunks(Space.IN)
OUT = _Chunks(Space.OUT)
TMP = _Chunks(Space.TMP)

Peers = int | Iterable[int]


def _peers(peers: Peers) -> tuple[int, ...]:
    return (peers,) if isinstance(peers, int) else tuple(peers)


def _in_rank_order(peers: Peers) -> tuple[int, ...]:
    return tuple(sorted(_peers(peers)))


def send(to: Peers, src: Chunk) -> Step:
    """Send a chunk.

    Args:
        to: To whom, in the order in which they are served.
        src: What.

    Returns:
        The step.
    """
    return Step(Op.SEND, to=_peers(to), src=src)


def recv(frm: int, dst: Chunk) -> Step:
    """Receive a chunk.

    Args:
        frm: From whom.
        dst: Into which chunk.

    Returns:
        The step.
    """
    return Step(Op.RECV, frm=(frm,), dst=dst)


def copy(src: Chunk, dst: Chunk) -> Step:
    """Copy within the rank; nothing happens where both are the same memory.

    Args:
        src: From which chunk.
        dst: Into which chunk.

    Returns:
        The step.
    """
    return Step(Op.COPY, src=src, dst=dst)


def recv_reduce(frm: Peers, src: Chunk, dst: Chunk, *, finish: bool = False) -> Step:
    """Reduce what is received and an own chunk, in rank order.

    Args:
        frm: From whom.
        src: The own chunk.
        dst: Into which chunk.
        finish: Whether this completes the value.

    Returns:
        The step.
    """
    return Step(Op.RECV_REDUCE, frm=_in_rank_order(frm), src=src, dst=dst, finish=finish)


def recv_copy_send(frm: int, to: Peers, dst: Chunk) -> Step:
    """Receive a chunk and pass the same bytes on.

    Args:
        frm: From whom.
        to: To whom, in the order in which they are served.
        dst: Into which chunk.

    Returns:
        The step.
    """
    return Step(Op.RECV_COPY_SEND, frm=(frm,), to=_peers(to), dst=dst)


def recv_reduce_send(frm: Peers, to: Peers, src: Chunk, *, finish: bool = False) -> Step:
    """Reduce what is received and an own chunk, in rank order, and send the result.

    Args:
        frm: From whom.
        to: To whom, in the order in which they are served.
        src: The own chunk.
        finish: Whether this completes the value.

    Returns:
        The step.
    """
    return Step(Op.RECV_REDUCE_SEND, frm=_in_rank_order(frm), to=_peers(to), src=src, finish=finish)


def recv_reduce_copy_send(
    frm: Peers, to: Peers, src: Chunk, dst: Chunk, *, finish: bool = False
) -> Step:
    """Reduce as ``recv_reduce`` and send the very bytes that were stored.

    Args:
        frm: From whom.
        to: To whom, in the order in which they are served.
        src: The own chunk.
        dst: Into which chunk.
        finish: Whether this completes the value.

    Returns:
        The step.
    """
    return Step(
        Op.RECV_REDUCE_COPY_SEND,
        frm=_in_rank_order(frm),
        to=_peers(to),
        src=src,
        dst=dst,
        finish=finish,
    )


def read_reduce(
    frm: Peers, remote: Chunk, src: Chunk | None, dst: Chunk, *, finish: bool = False
) -> Step:
    """Reduce chunks of peers, read in place, in rank order.

    Args:
        frm: Whose.
        remote: Which of theirs.
        src: An own chunk that is reduced with them, if any.
        dst: Into which chunk.
        finish: Whether this completes the value.

    Returns:
        The step.
    """
    return Step(
        Op.READ_REDUCE, frm=_in_rank_order(frm), src=src, dst=dst, remote=remote, finish=finish
    )


def write(to: Peers, src: Chunk, remote: Chunk) -> Step:
    """Write a chunk into peers' memory.

    Args:
        to: Whose, in the order in which they are served.
        src: What.
        remote: Into which chunk of theirs.

    Returns:
        The step.
    """
    return Step(Op.WRITE, to=_peers(to), src=src, remote=remote)


def signal(to: Peers) -> Step:
    """Tell peers that everything before this step is done.

    Args:
        to: Whom.

    Returns:
        The step.
    """
    return Step(Op.SIGNAL, to=_peers(to))


def wait(frm: Peers) -> Step:
    """Wait for one signal of each peer.

    Args:
        frm: Of whom.

    Returns:
        The step.
    """
    return Step(Op.WAIT, frm=_peers(frm))


Lane = tuple[Step, ...]
Symmetry = Literal["none", "rotation"]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Declared:
    """What a program and one rank's part have in common: the call's shape, what is declared.

    Attributes:
        collective: What the program computes.
        world: Number of ranks, at least 1.
        channels: Number of channels, at least 1.
        root: Root rank, or None for a collective without one.
        n_tmp: Number of ``tmp`` chunks.
        deterministic: Every output is one reduction of all ranks in ascending order, rounded
            once. True also where nothing is reduced.
        min_slots: Least k at which the program runs without deadlock when a message takes one slot.
    """

    collective: Collective
    world: int
    channels: int = 1
    root: int | None = None
    n_tmp: int = 0
    deterministic: bool = False
    min_slots: int = 1

    def __post_init__(self) -> None:
        for name, value, least in (
            ("world", self.world, 1),
            ("channels", self.channels, 1),
            ("n_tmp", self.n_tmp, 0),
            ("min_slots", self.min_slots, 1),
        ):
            if value < least:
                raise ValueError(f"{name}: {value} is too small; at least {least}")
        if self.layout.rooted:
            if self.root is None:
                raise ValueError(f"root: {self.collective.word} needs a root rank")
            if not 0 <= self.root < self.world:
                raise ValueError(f"root: {self.root} is not a rank; 0 to {self.world - 1}")
        elif self.root is not None:
            raise ValueError(f"root: {self.collective.word} has no root; leave it out")
        if self.n_tmp and (not self.n_out or self.collective is Collective.ALL_TO_ALL):
            raise ValueError(f"n_tmp: {self.collective.word} has no temporaries; it must be 0")

    @cached_property
    def layout(self) -> Layout:
        """The chunk table of the call."""
        return Layout(self.collective, self.world, self.channels, self.root)

    @property
    def n_in(self) -> int:
        """Number of ``in`` chunks."""
        return self.layout.n_in

    @property
    def n_out(self) -> int:
        """Number of ``out`` chunks."""
        return self.layout.n_out


@dataclass(frozen=True, kw_only=True)
class RankProgram(_Declared):
    """One rank's part of a program: what the flat form holds and an executor runs.

    Attributes:
        rank: Whose part it is.
        lanes: Per channel, the steps in order.
    """

    rank: int
    lanes: tuple[Lane, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank: {self.rank} is not a rank; 0 to {self.world - 1}")
        if len(self.lanes) != self.channels:
            raise ValueError(f"lanes: {len(self.lanes)} given for {self.channels} channels")


@dataclass(frozen=True, kw_only=True, eq=False)
class Program(_Declared):
    """An algorithm for one world size. Lazy: a rank's steps are made when asked for.

    Attributes:
        algorithm: The algorithm's name, for people.
        symmetry: ``"rotation"`` if rank r's steps are rank 0's with every rank p renamed p + r
            (and so the chunks that are counted by rank), else ``"none"``.
        lane: The steps of (rank, channel), in order.
    """

    algorithm: str
    symmetry: Symmetry = "none"
    lane: Callable[[int, int], Iterable[Step]] = field(repr=False)

    def lanes(self, rank: int) -> tuple[Lane, ...]:
        """The steps of one rank: per channel, in order.

        Args:
            rank: Which rank, 0 to world - 1.

        Returns:
            One tuple of steps per channel.
        """
        return tuple(tuple(self.lane(rank, channel)) for channel in range(self.channels))

    def rank_program(self, rank: int) -> RankProgram:
        """The part of one rank, made without making any other's.

        Args:
            rank: Which rank, 0 to world - 1.

        Returns:
            The rank's steps with what is declared of the program.

        Raises:
            ValueError: There is no such rank.
        """
        if not 0 <= rank < self.world:
            raise ValueError(f"rank: {rank} is not a rank; 0 to {self.world - 1}")
        return RankProgram(
            collective=self.collective,
            world=self.world,
            channels=self.channels,
            root=self.root,
            n_tmp=self.n_tmp,
            deterministic=self.deterministic,
            min_slots=self.min_slots,
            rank=rank,
            lanes=self.lanes(rank),
        )

    def rerooted(self, root: int) -> Program:
        """The same program with its ranks renamed so that another is the root.

        An algorithm is written for root 0 only; what was proved of its messages and memory holds
        for all roots, since a program is blind to the names of its ranks. Reductions are not: each
        takes its operands in the order of the new names. A step that takes all ranks' inputs at
        once is in rank order for every root; a tree of steps nests differently for each.

        Args:
            root: The new root.

        Returns:
            The renamed program.

        Raises:
            ValueError: There is no such rank, or the collective has no root.
        """
        renamed = replace(self, root=root)
        shift = root - (self.root or 0)
        if shift == 0:
            return renamed

        def lane(rank: int, channel: int) -> Iterator[Step]:
            for step in self.lane((rank - shift) % self.world, channel):
                yield rotated(step, shift, self.layout)

        return replace(renamed, lane=lane)


def rotated(step: Step, shift: int, layout: Layout) -> Step:
    """Rename every rank ``p`` in a step to ``p + shift``.

    Args:
        step: The step.
        shift: By how much, any sign.
        layout: The call's chunk table: which chunks are counted by rank.

    Returns:
        The renamed step.
    """

    def chunk(old: Chunk | None) -> Chunk | None:
        return None if old is None else layout.rotated(old, shift)

    def peers(old: tuple[int, ...]) -> tuple[int, ...]:
        return tuple((peer + shift) % layout.world for peer in old)

    frm = peers(step.frm)
    return Step(
        step.op,
        frm=tuple(sorted(frm)) if step.op in REDUCING else frm,
        to=peers(step.to),
        src=chunk(step.src),
        dst=chunk(step.dst),
        remote=chunk(step.remote),
        finish=step.finish,
    )
