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

from hybridcomm.programs.ir import Program
from hybridcomm.programs.network import LaneId, LinkId
from hybridcomm.programs.structure import faults_of_steps

from .lane import Lane, Memory, Windows
from .numerics import RedOp, is_integer, refusal
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
    memory = Memory(tables, op, staging == "rendezvous")
    lanes = {
        (part.rank, channel): Lane(
            part.rank, channel, steps, Windows(slot, window, segments), links, memory
        )
        for part in parts
        for channel, steps in enumerate(part.lanes)
    }
    _schedule(lanes, choose)
    return Statistics(segments, links.moved, links.most)


def _schedule(lanes: dict[LaneId, Lane], choose: Choose) -> None:
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
