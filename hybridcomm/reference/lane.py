"""What a lane does: the steps of one rank on one channel, slot by slot, as far as it can.

The oracle (``executor.py``) runs all lanes of all ranks in one process; a process group runs those
of its own rank, over sockets. Neither waits here: a lane says what it lacks, and its owner comes
back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from hybridcomm.programs.ir import REDUCING, TOKENS, Op, Step
from hybridcomm.programs.layout import Chunk
from hybridcomm.programs.network import LinkId

from .numerics import RedOp, reduce
from .tables import ChunkTable


class Links(Protocol):
    """The links of a rank or of all: FIFOs of slots. A slot of a signal holds None."""

    def empty(self, link: LinkId) -> bool:
        """Whether there is nothing to take."""

    def full(self, link: LinkId) -> bool:
        """Whether there is no free slot."""

    def put(self, link: LinkId, payload: Tensor | None) -> None:
        """Fills a slot."""

    def take(self, link: LinkId) -> Tensor | None:
        """Empties the oldest slot."""


class Memory:
    """Chunks of ranks, and what steps do to them.

    Args:
        tables: By rank. Only those of ranks whose lanes run are needed, unless a step reaches into
            a peer's memory.
        op: The reduction.
        by_reference: What a step has stored is handed on as it lies there, instead of a copy.
        world: Number of ranks; as many as there are tables by default.
    """

    def __init__(
        self,
        tables: Sequence[ChunkTable] | Mapping[int, ChunkTable],
        op: RedOp,
        by_reference: bool,
        world: int | None = None,
    ) -> None:
        self._tables = tables
        self._op = op
        self._world = len(tables) if world is None else world
        self._by_reference = by_reference

    def length(self, rank: int, chunk: Chunk) -> int:
        """Elements of a chunk."""
        return self._tables[rank].chunk(chunk).numel()

    def act(
        self, step: Step, rank: int, received: Sequence[Tensor], begin: int, elements: int
    ) -> Tensor:
        """Do one slot of a data step; returns what it hands on."""

        def part(owner: int, chunk: Chunk) -> Tensor:
            return self._tables[owner].chunk(chunk).narrow(0, begin, elements)

        if step.op in REDUCING:
            operands = dict(zip(step.received, received, strict=True))
            if step.op is Op.READ_REDUCE:
                assert step.remote is not None
                operands = {peer: part(peer, step.remote) for peer in step.frm}
            if step.src is not None:
                operands[rank] = part(rank, step.src)
            divisor = self._world if step.finish and self._op is RedOp.AVG else None
            if len(operands) == 1 and divisor is None:
                (value,) = operands.values()  # a plain read reduces, and so changes, nothing
            else:
                value = reduce([operands[r] for r in sorted(operands)], self._op, divisor)
            stored = False
        elif received:
            value, stored = received[0], False
        else:
            assert step.src is not None
            value, stored = part(rank, step.src), True
        if step.dst is not None:
            target = part(rank, step.dst)
            if target.data_ptr() != value.data_ptr():
                target.copy_(value)
            value, stored = target, True
        if step.op is Op.WRITE:
            assert step.remote is not None
            for peer in step.to:
                part(peer, step.remote).copy_(value)
        return value if self._by_reference and stored else value.clone()


@dataclass(frozen=True)
class Windows:
    """How every chunk is cut, in elements.

    Attributes:
        slot: Elements of a slot.
        window: Elements of each chunk that one pass over the program covers.
        segments: Passes over the program.
    """

    slot: int
    window: int
    segments: int


class Lane:
    """One rank's steps on one channel, and where it stands in them.

    Args:
        rank: The rank.
        channel: The channel.
        steps: Its steps.
        windows: How chunks are cut.
        links: The links of the rank.
        memory: The chunks of the rank.
    """

    def __init__(
        self,
        rank: int,
        channel: int,
        steps: Sequence[Step],
        windows: Windows,
        links: Links,
        memory: Memory,
    ) -> None:
        self._rank = rank
        self._channel = channel
        self._steps = steps
        self._windows = windows
        self._links = links
        self._memory = memory
        self._segment = 0
        self._at = 0
        self._done = 0  # elements of the current step's window
        self._skip()

    @property
    def step(self) -> Step | None:
        """The step to do next; None at the end."""
        return self._steps[self._at] if self._at < len(self._steps) else None

    def able(self) -> bool:
        """Whether the lane can do a slot now."""
        return self.step is not None and not self.awaited()

    def do_slot(self) -> tuple[int, ...]:
        """Do one slot of the next step; returns the peers whose links it touched."""
        step = self.step
        assert step is not None
        received = [self._links.take(self._incoming(peer)) for peer in step.received]
        payload = None
        if step.op not in TOKENS:
            elements = min(self._windows.slot, self._window(step) - self._done)
            begin = self._segment * self._windows.window + self._done
            data = [slot for slot in received if slot is not None]
            if len(data) != len(received) or any(slot.numel() != elements for slot in data):
                raise ValueError(f"{self._place()} takes a message that is not its own")
            payload = self._memory.act(step, self._rank, data, begin, elements)
            self._done += elements
        for peer in step.sent:
            self._links.put(self._outgoing(peer), payload)
        if step.op in TOKENS or self._done == self._window(step):
            self._at += 1
            self._done = 0
            self._skip()
        return step.received + step.sent

    def predicament(self) -> str:
        """Where the lane stands and what it waits for."""
        lacks = [
            f"a message of rank {peer}" if sends else f"a free slot to rank {peer}"
            for peer, sends in self.awaited()
        ]
        return f"{self._place()} waits for {' and '.join(lacks)}"

    def _place(self) -> str:
        return (
            f"rank {self._rank} channel {self._channel} step {self._at} (`{self.step}`) "
            f"in segment {self._segment}"
        )

    def awaited(self) -> list[tuple[int, bool]]:
        """What the lane lacks to do its next slot.

        Returns:
            Peers, each with whether it is to send, rather than to take a slot off a full link.
        """
        step = self.step
        if step is None:
            return []
        senders = [
            (peer, True) for peer in step.received if self._links.empty(self._incoming(peer))
        ]
        takers = [(peer, False) for peer in step.sent if self._links.full(self._outgoing(peer))]
        return senders + takers

    def _incoming(self, peer: int) -> LinkId:
        return (peer, self._rank, self._channel)

    def _outgoing(self, peer: int) -> LinkId:
        return (self._rank, peer, self._channel)

    def _window(self, step: Step) -> int:
        """Elements that the step moves in this segment."""
        chunk = step.src or step.dst
        assert chunk is not None
        left = self._memory.length(self._rank, chunk) - self._segment * self._windows.window
        return max(0, min(self._windows.window, left))

    def _skip(self) -> None:
        """Go on to the next step with something to do, in this segment or a later one."""
        while True:
            step = self.step
            if step is None:
                if not self._steps or self._segment + 1 == self._windows.segments:
                    return
                self._segment += 1
                self._at = 0
            elif step.op in TOKENS or self._window(step):
                return
            else:
                self._at += 1
