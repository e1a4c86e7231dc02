"""One collective under way on this rank: agreeing with the other ranks, then its lanes."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from hybridcomm.programs.ir import RankProgram
from hybridcomm.programs.layout import Collective, Layout

from ..lane import Lane, Memory, Windows
from ..numerics import RedOp
from ..tables import chunk_table
from .dtypes import CODES, name_of_code
from .errors import FailedError, Identity, Kind, size_text
from .frames import Call, FrameError
from .links import LinkEnds
from .operation import Collect
from .peers import Peers
from .rendezvous import Shape

# Slots that one turn may move before other groups get theirs.
_BUDGET = 16


class Board:
    """What the other ranks have said they are about to do."""

    def __init__(self, identity: Identity) -> None:
        self._world = identity.world
        self._calls: dict[int, deque[Call]] = {rank: deque() for rank in identity.peers}
        self._latest: dict[int, Call] = {}

    def hear(self, rank: int, body: bytearray) -> None:
        """Notes a rank's next call.

        Raises:
            FrameError: It is not the next one.
        """
        call = Call.decode(body, self._world)
        last = self._latest.get(rank)
        # A rank is at most one collective ahead, because it needs everybody's call to go on.
        if call.sequence != (last.sequence if last else 0) + 1 or len(self._calls[rank]) > 1:
            raise FrameError(f"call #{call.sequence} out of order")
        self._calls[rank].append(call)
        self._latest[rank] = call

    def of(self, rank: int) -> Call | None:
        """What a rank has said about the collective that this rank is at."""
        calls = self._calls[rank]
        return calls[0] if calls else None

    def go_on(self) -> None:
        """Turns to the next collective."""
        for calls in self._calls.values():
            calls.popleft()

    def latest(self, rank: int) -> Call | None:
        """A rank's last call."""
        return self._latest.get(rank)

    def missing(self) -> list[int]:
        """Ranks that have not said what they are about to do."""
        return [rank for rank, calls in self._calls.items() if not calls]


def describe_call(call: Call | None) -> str:
    """A call in words."""
    if call is None:
        return "nothing yet"
    words = [f"{call.collective.word} #{call.sequence}"]
    if call.collective is not Collective.BARRIER:
        # Of an all-to-all, every pair of ranks has a size of its own.
        count = "" if call.collective is Collective.ALL_TO_ALL else f"{call.count} "
        uneven = ", unevenly split" if call.splits else ""
        words.append(f"of {count}{name_of_code(call.dtype)}{uneven}")
    if Layout(call.collective, 1, 1).reduces:
        known = call.redop in RedOp.__members__.values()
        words.append(f"with {RedOp(call.redop).name if known else call.redop}")
    if call.root is not None:
        words.append(f"from root {call.root}")
    return " ".join([*words, "by", call.algorithm])


def call_for(collect: Collect, sequence: int) -> Call:
    """What other ranks are told of a collective."""
    return Call(
        sequence,
        collect.collective,
        CODES[collect.dtype],
        collect.redop,
        collect.count,
        collect.root,
        collect.algorithm,
        collect.splits,
    )


class Run:
    """A collective on this rank.

    Args:
        collect: What is asked for.
        program: This rank's part of its program.
        sequence: Its number among the group's collectives, counted alike on all ranks.
        identity: Who this is.
        shape: The group's links.
        peers: The other ranks.
        board: What they have said.
        links: The ends of links on this rank.
    """

    def __init__(
        self,
        collect: Collect,
        program: RankProgram,
        sequence: int,
        identity: Identity,
        shape: Shape,
        peers: Peers,
        board: Board,
        links: LinkEnds,
    ) -> None:
        self._collect = collect
        self._program = program
        self._identity = identity
        self._shape = shape
        self._peers = peers
        self._board = board
        self._links = links
        self._published = False
        self._lanes: list[Lane] | None = None
        self.call = call_for(collect, sequence)

    @property
    def agreed(self) -> bool:
        """Whether all ranks are at it."""
        return self._lanes is not None

    def advance(self) -> tuple[bool, bool]:
        """Goes as far as it can, but not longer than a turn.

        Returns:
            Whether it is done, and whether it could go on at once.

        Raises:
            FailedError: The ranks disagree.
        """
        if not self._published:
            self._publish()
        if self._lanes is None:
            self._compare()
            if self._board.missing():
                return False, False
            self._prepare()
        lanes = self._lanes
        assert lanes is not None
        for _ in range(_BUDGET):
            able = [lane for lane in lanes if lane.able()]
            if not able:
                break
            for lane in able:
                lane.do_slot()
        else:
            return False, True
        done = all(lane.step is None for lane in lanes) and self._peers.flushed
        if done:
            self._board.go_on()
        return done, False

    def _publish(self) -> None:
        self._published = True
        sends, expects = self._collect.sends, self._collect.expects
        for rank in self._identity.peers:
            told = (
                replace(self.call, sends=sends[rank], expects=expects[rank]) if sends else self.call
            )
            self._peers.send(rank, told.encode())

    def _compare(self) -> None:
        for rank in self._identity.peers:
            theirs = self._board.of(rank)
            if theirs is None:
                continue
            if not self.call.agrees(theirs):
                raise FailedError(Kind.MISMATCH, rank, self.explain(self._identity.rank, rank))
            self._compare_sizes(rank, theirs)

    def _compare_sizes(self, rank: int, theirs: Call) -> None:
        if not self._collect.sends:
            return
        own, name = self._identity.rank, self._identity.name
        sent, expected = self._collect.sends[rank], self._collect.expects[rank]
        for giver, gives, taker, takes in (
            (own, sent, rank, theirs.expects),
            (rank, theirs.sends, own, expected),
        ):
            if gives != takes:
                raise FailedError(
                    Kind.MISMATCH,
                    rank,
                    f"the ranks disagree: {name(giver)} sends {size_text(gives)} to {name(taker)}, "
                    f"which expects {size_text(takes)}. What one rank's input_split_sizes say of "
                    "another, that rank's output_split_sizes must say too",
                )

    def explain(self, one: int, other: int) -> str:
        """Says how the calls of two ranks differ."""
        name = self._identity.name

        def called(rank: int) -> str:
            call = self.call if rank == self._identity.rank else self._board.of(rank)
            return f"{name(rank)} called {describe_call(call)}"

        return (
            f"the ranks disagree: {called(one)}, {called(other)}. All ranks of a group must make "
            "the same calls in the same order, with the same dtype, number of elements, "
            "operation, root and algorithm (HYBRIDCOMM_ALGORITHM)"
        )

    def _prepare(self) -> None:
        collect, program, shape = self._collect, self._program, self._shape
        table = chunk_table(program, collect.inputs, collect.outputs)
        slot = shape.slot_bytes // collect.dtype.itemsize
        window = slot * max(1, shape.slots // program.min_slots)
        longest = max((chunk.numel() for chunk in table.all_chunks()), default=0)
        windows = Windows(slot, window, max(1, -(-longest // window)))
        rank = self._identity.rank
        memory = Memory({rank: table}, collect.redop, False, self._identity.world)
        self._links.dtype = collect.dtype
        self._lanes = [
            Lane(rank, channel, steps, windows, self._links, memory)
            for channel, steps in enumerate(program.lanes)
        ]

    def awaited(self) -> list[tuple[int, bool]]:
        """The ranks that lanes wait for now, each with whether it is to send."""
        return [peer for lane in self._lanes or [] for peer in lane.awaited()]
