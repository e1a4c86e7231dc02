"""Runs all ranks of a program in one process, over tensors: the oracle of the other executors.

It does what ``programs/ir.py`` describes, slot by slot, and nothing else; speed is no aim. The
caller chooses which lane does its next slot (``Choose``), so a test controls the timing. That
covers late messages too: a message delayed on its link is a receiver that has not looked yet.

A message takes up to m slots, m = ``slots // min_slots``; a segment is m slots of every chunk. A
send either copies into its slot (*buffered*) or leaves there a reference to the sender's chunk,
from which the receiver takes it (*rendezvous*, as a single copy between processes does). What a
step computes without storing it travels in slots either way.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from hybridcomm.programs.ir import REDUCING, TOKENS, Op, Program, Step
from hybridcomm.programs.layout import Chunk
from hybridcomm.programs.network import LaneId, LinkId
from hybridcomm.programs.structure import faults_of_steps

from .numerics import RedOp, is_integer, reduce, refusal
from .tables import ChunkTable

# Given the lanes that can do a slot now, in order, the place of the one that does.
Choose = Callable[[Sequence[LaneId]], int]
Staging = Literal["buffered", "rendezvous"]


class DeadlockError(RuntimeError):
    """No lane can go on; the message says what each waits for."""


@dataclass(frozen=True)
class Statistics:
    """What a run did.

    Attributes:
        segments: Passes over the program.
        slots_moved: Slots put on links, signals included.
        most_slots: Most slots that a link held at one time.
    """

    segments: int
    slots_moved: int
    most_slots: int


def in_order(lanes: Sequence[LaneId]) -> int:
    """A ``Choose`` that takes the first lane: rank 0 goes as far as it can, then rank 1, ...

    Args:
        lanes: The lanes that can go on.

    Returns:
        0.
    """
    return 0


def random_order(seed: int) -> Choose:
    """Make a ``Choose`` that takes any lane.

    Args:
        seed: The same seed gives the same order.

    Returns:
        The chooser.
    """
    generator = random.Random(seed)
    return lambda lanes: generator.randrange(len(lanes))


def execute(
    program: Program,
    tables: Sequence[ChunkTable],
    *,
    op: RedOp = RedOp.SUM,
    slots: int | None = None,
    slot_bytes: int = 256,
    staging: Staging = "buffered",
    choose: Choose = in_order,
) -> Statistics:
    """Run a program over chunk tables.

    Args:
        program: The program. Its steps must be well formed; it need not be verified.
        tables: Each rank's chunks, all of one type. The outputs' memory holds the results
            afterwards.
        op: The reduction, for a collective that reduces.
        slots: Slots per link; the program's ``min_slots`` by default.
        slot_bytes: Bytes of a slot, a multiple of the element's size.
        staging: Whether a send copies into its slot or leaves a reference.
        choose: Which lane does the next slot.

    Returns:
        What the run did.

    Raises:
        DeadlockError: No lane can go on.
        TypeError: The reduction is not defined for the elements' type, or not by this program.
        ValueError: An argument is wrong, or a step is not well formed.
    """
    parts = [program.rank_program(rank) for rank in range(program.world)]
    for fault in [fault for part in parts for fault in faults_of_steps(part)]:
        raise ValueError(str(fault))
    if len(tables) != program.world:
        raise ValueError(f"tables: {len(tables)} given for {program.world} ranks")
    slots = program.min_slots if slots is None else slots
    if slots < 1:
        raise ValueError(f"slots: {slots} is too small; at least 1")
    if staging not in ("buffered", "rendezvous"):
        raise ValueError(f"staging: {staging!r} is not known; buffered or rendezvous")

    chunks = [chunk for table in tables for chunk in table.all_chunks()]
    itemsize = 1
    if chunks:
        dtype = chunks[0].dtype
        itemsize = dtype.itemsize
        if any(chunk.dtype != dtype for chunk in chunks):
            raise ValueError("tables: all chunks must have one type")
        if program.layout.reduces:
            why = refusal(op, dtype)
            if why is None and op is RedOp.AVG and is_integer(dtype) and not program.deterministic:
                why = (
                    f"AVG of integers is exact only where all operands meet in one reduction; "
                    f"in {program.algorithm} partial sums would wrap"
                )
            if why is not None:
                raise TypeError(why)
    if slot_bytes < itemsize or slot_bytes % itemsize:
        raise ValueError(f"slot_bytes: {slot_bytes} is no multiple of {itemsize}, an element")

    slot = slot_bytes // itemsize
    window = slot * max(1, slots // program.min_slots)
    longest = max((chunk.numel() for chunk in chunks), default=0)
    # One pass at least: signals and waits are done even where there is no data.
    segments = max(1, -(-longest // window))
    links = _Links(slots)
    memory = _Memory(program, tables, op, staging == "rendezvous")
    lanes = {
        (part.rank, channel): _Lane(
            part.rank, channel, steps, _Windows(slot, window, segments), links, memory
        )
        for part in parts
        for channel, steps in enumerate(part.lanes)
    }
    _schedule(lanes, choose)
    return Statistics(segments, links.moved, links.most)


def _schedule(lanes: dict[LaneId, _Lane], choose: Choose) -> None:
    """Let one lane at a time do a slot until all are at their end."""
    able = {name for name, lane in lanes.items() if lane.able()}
    while able:
        candidates = sorted(able)
        name = candidates[choose(candidates)]
        peers = lanes[name].do_slot()
        for other in {name, *((peer, name[1]) for peer in peers)}:
            if lanes[other].able():
                able.add(other)
            else:
                able.discard(other)
    stuck = [lane.predicament() for lane in lanes.values() if lane.step is not None]
    if stuck:
        raise DeadlockError("no rank can go on: " + "; ".join(stuck))


class _Links:
    """All links: FIFOs of slots. A slot of a signal holds None."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._queues: dict[LinkId, deque[Tensor | None]] = defaultdict(deque)
        self.moved = 0
        self.most = 0

    def empty(self, link: LinkId) -> bool:
        return not self._queues[link]

    def full(self, link: LinkId) -> bool:
        return len(self._queues[link]) >= self._slots

    def put(self, link: LinkId, payload: Tensor | None) -> None:
        queue = self._queues[link]
        queue.append(payload)
        self.moved += 1
        self.most = max(self.most, len(queue))

    def take(self, link: LinkId) -> Tensor | None:
        return self._queues[link].popleft()


class _Memory:
    """All ranks' chunks, and what steps do to them."""

    def __init__(
        self, program: Program, tables: Sequence[ChunkTable], op: RedOp, by_reference: bool
    ) -> None:
        self._tables = tables
        self._op = op
        self._world = program.world
        self._by_reference = by_reference

    def length(self, rank: int, chunk: Chunk) -> int:
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
class _Windows:
    """How every chunk is cut, in elements."""

    slot: int
    window: int
    segments: int


class _Lane:
    """One rank's steps on one channel, and where it stands in them."""

    def __init__(
        self,
        rank: int,
        channel: int,
        steps: Sequence[Step],
        windows: _Windows,
        links: _Links,
        memory: _Memory,
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
        return self.step is not None and not self._lacks()

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
        return f"{self._place()} waits for {' and '.join(self._lacks())}"

    def _place(self) -> str:
        return (
            f"rank {self._rank} channel {self._channel} step {self._at} (`{self.step}`) "
            f"in segment {self._segment}"
        )

    def _lacks(self) -> list[str]:
        step = self.step
        assert step is not None
        return [
            f"a message of rank {peer}"
            for peer in step.received
            if self._links.empty(self._incoming(peer))
        ] + [
            f"a free slot to rank {peer}"
            for peer in step.sent
            if self._links.full(self._outgoing(peer))
        ]

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
