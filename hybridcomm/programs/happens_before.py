"""Which steps are ordered, whatever the timing: the check for memory that two lanes touch.

A step happens before another if it comes earlier in the same lane, or if a chain of lanes and
messages leads from one to the other (Lamport 1978). Freed slots order nothing here, since their
number may grow. As a vector clock counts, per lane, the steps that are known to be past,
``_Past`` keeps them as a set of bits, one per step: joining two is one OR, and asking one bit.

Three facts keep it small:

* A link belongs to one channel, so nothing orders two channels of a call but its entry and its
  return. A chunk that two channels touch, one of them writing, is a race.
* A data step is skipped where its piece is used up, so steps on one piece are ordered only by steps
  on the same piece and by signals and waits. Each piece is looked at by itself, without the
  others' messages.
* Segments touch different bytes, and no message is left over between them: looking at one pass
  suffices.

The owner's *entry* comes before every step of its lanes and its *return* after every step of
theirs. So a peer may touch a chunk if some step of the owner's lane is past, and has done so in
time if the last one is not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from .faults import Fault, FaultName
from .ir import Op, Program
from .layout import Chunk, Space
from .network import Event, LaneId, Trace
from .structure import piece_of

Cell = tuple[int, Chunk]  # (rank, chunk), with chunks of one memory named by one of them


class _Access(NamedTuple):
    event: int
    chunk: Chunk  # as the step names it
    writes: bool


class _Past:
    """What happens before each step on one piece, and each signal and wait, of one channel."""

    def __init__(self, events: Iterable[tuple[int, Event]]) -> None:
        self._past: dict[int, int] = {}
        self._bit: dict[int, int] = {}
        self._lane: dict[int, int] = defaultdict(int)  # bits of a rank's steps
        known: dict[int, int] = defaultdict(int)  # what a rank's latest step has behind it, and it
        for number, event in events:
            past = known[event.rank]
            for source in event.sources:
                past |= self._past[source] | self._bit[source]
            self._past[number] = past
            self._bit[number] = bit = 1 << len(self._bit)
            self._lane[event.rank] |= bit
            known[event.rank] = past | bit
        self.at_return = dict(known)

    def before(self, first: int, second: int) -> bool:
        """Whether event ``first`` happens before event ``second``."""
        return bool(self._past[second] & self._bit[first])

    def ordered(self, one: int, other: int) -> bool:
        """Whether one of two events happens before the other."""
        return one == other or self.before(one, other) or self.before(other, one)

    def entered(self, rank: int, event: int) -> bool:
        """Whether ``rank`` has entered the call when ``event`` is done."""
        return bool(self._past[event] & self._lane[rank])

    def returned_after(self, rank: int, event: int) -> bool:
        """Whether ``rank`` cannot return before ``event`` is done."""
        return bool(self.at_return.get(rank, 0) & self._bit[event])

    def heard_of(self, rank: int) -> int:
        """The ranks that are known to have entered when ``rank`` returns, as a set of bits."""
        past = self.at_return.get(rank, 0)
        return sum(1 << other for other, bits in self._lane.items() if past & bits)


class Order:
    """The order of one run's steps.

    Args:
        program: The program.
        trace: A complete run of it, every message of one kind at both ends.
        in_place: Whether inputs and outputs share memory as ``layout.py`` says.
    """

    def __init__(self, program: Program, trace: Trace, *, in_place: bool) -> None:
        self._program = program
        self._events = trace.events
        self._in_place = in_place
        self._pasts: dict[tuple[int, int | None], _Past] = {}
        # The numbers of the events of each (channel, piece), ascending; None for signals and waits.
        self._numbers: dict[tuple[int, int | None], list[int]] = defaultdict(list)
        self._accesses: dict[Cell, list[_Access]] = defaultdict(list)
        for number, event in enumerate(trace.events):
            piece = piece_of(event.step, event.rank, program.layout)
            self._numbers[event.channel, piece].append(number)
            self._note(number, event)

    def faults(self) -> list[Fault]:
        """What is touched in no order.

        Returns:
            At most one fault for each chunk's memory, by rank and step.
        """
        faults: list[Fault] = []
        for (owner, _), accesses in self._accesses.items():
            lanes = {self._lane(access.event) for access in accesses}
            if lanes != {(owner, self._events[accesses[0].event].channel)}:
                fault = self._cell_fault(owner, accesses)
                if fault:
                    faults.append(fault)
        # The run's own order says nothing: it is one of many.
        return sorted(faults, key=lambda f: (f.rank, f.channel or 0, f.step or 0, f.sentence))

    def late_read(self) -> str | None:
        """Whether receivers could take messages from the sender's chunk, with no slot between.

        That is how a single copy from process to process or from a peer's memory moves: the
        sender's chunk must keep its bytes until the receiver has taken them. (To return, a sender
        then waits until all it has sent is taken; that is for the path to see to.)

        Returns:
            None if it could always, otherwise a sentence about the first chunk that is
            overwritten too early.
        """
        for number, event in enumerate(self._events):
            for source in event.sources:
                sender = self._events[source]
                # What only a step computes (recv_reduce_send) has no memory; it travels in slots.
                chunk = sender.step.dst or (sender.step.src if sender.step.op is Op.SEND else None)
                if chunk is None:
                    continue
                past = self._order_of(number)
                for access in self._accesses[self._cell(sender.rank, chunk)]:
                    # A chunk that two channels touch is a race already: all are in one order here.
                    if not access.writes or access.event == source:
                        continue
                    if past.before(access.event, source) or past.before(number, access.event):
                        continue
                    return (
                        f"{self._events[access.event]} may write {chunk} before {event} "
                        f"has taken it from rank {sender.rank}"
                    )
        return None

    def barrier_faults(self) -> list[Fault]:
        """Whether every rank returns only after every rank has entered.

        Returns:
            A fault for each rank that may return too early.
        """
        program = self._program
        pasts = [
            self._past(channel, None) for channel in range(program.channels) if program.world > 1
        ]
        everyone = (1 << program.world) - 1
        faults = []
        for rank in range(program.world):
            heard = 1 << rank
            for past in pasts:
                heard |= past.heard_of(rank)
            if heard != everyone:
                unheard = next(r for r in range(program.world) if not heard >> r & 1)
                sentence = f"may leave the barrier before rank {unheard} has entered it"
                faults.append(Fault(FaultName.BARRIER_LEAK, rank, None, None, sentence))
        return faults

    def _note(self, number: int, event: Event) -> None:
        """Write down which memory a step touches."""
        step, rank = event.step, event.rank

        def note(owner: int, chunk: Chunk | None, writes: bool) -> None:
            if chunk is not None:
                self._accesses[self._cell(owner, chunk)].append(_Access(number, chunk, writes))

        if (
            step.src is not None
            and step.dst is not None
            and step.op is Op.COPY
            and self._cell(rank, step.src) == self._cell(rank, step.dst)
        ):
            return  # in place it does nothing
        note(rank, step.src, False)
        note(rank, step.dst, True)
        for peer in step.frm + step.to:
            note(peer, step.remote, step.op is Op.WRITE)

    def _cell(self, rank: int, chunk: Chunk) -> Cell:
        layout = self._program.layout
        return (rank, layout.in_place(rank, chunk) if self._in_place else chunk)

    def _lane(self, number: int) -> LaneId:
        event = self._events[number]
        return (event.rank, event.channel)

    def _past(self, channel: int, piece: int | None) -> _Past:
        key = (channel, piece)
        if key not in self._pasts:
            numbers = self._numbers[channel, None]
            if piece is not None:
                numbers = sorted(numbers + self._numbers[key])
            self._pasts[key] = _Past((number, self._events[number]) for number in numbers)
        return self._pasts[key]

    def _order_of(self, number: int) -> _Past:
        event = self._events[number]
        return self._past(event.channel, piece_of(event.step, event.rank, self._program.layout))

    def _cell_fault(self, owner: int, accesses: list[_Access]) -> Fault | None:
        for place, one in enumerate(accesses):
            for other in accesses[:place]:
                if one.writes or other.writes:
                    fault = self._pair_fault(owner, other, one, accesses)
                    if fault:
                        return fault
        for access in accesses:
            if self._events[access.event].rank != owner:
                fault = self._visit_fault(owner, access)
                if fault:
                    return fault
        return None

    def _pair_fault(
        self, owner: int, first: _Access, second: _Access, accesses: list[_Access]
    ) -> Fault | None:
        """A fault if two accesses, at least one of which writes, are in no order."""
        one, other = self._events[first.event], self._events[second.event]
        memory = self._memory(owner, second)
        if one.channel != other.channel:
            sentence = f"`{other.step}` and {one} both touch {memory}, and no link joins channels"
            return self._fault(FaultName.CROSS_CHANNEL_RACE, second, sentence)
        past = self._order_of(first.event)
        if past.ordered(first.event, second.event):
            return None
        if first.writes and second.writes:
            sentence = f"`{other.step}` and {one} write {memory} in no order"
            return self._fault(FaultName.WRITTEN_TWICE_AT_ONCE, second, sentence)
        read, written = (second, first) if first.writes else (first, second)
        reader, writer = self._events[read.event], self._events[written.event]
        memory = self._memory(owner, read)
        # Was there something to read that is sure to be there? Then it is overwritten too early;
        # otherwise what is being written is what the reader wants, and comes too late.
        there = read.chunk.space is Space.IN or any(
            access.writes and past.before(access.event, read.event) for access in accesses
        )
        if there:
            sentence = f"`{writer.step}` may overwrite {memory} while {reader} reads it"
            return self._fault(FaultName.OVERWRITTEN_WHILE_READ, written, sentence)
        sentence = f"`{reader.step}` may read {memory} before {writer} has written it"
        return self._fault(FaultName.READ_BEFORE_FINAL, read, sentence)

    def _visit_fault(self, owner: int, access: _Access) -> Fault | None:
        """A fault if a peer may touch the owner's memory before its entry or after its return."""
        event = self._events[access.event]
        past = self._order_of(access.event)
        memory = self._memory(owner, access)
        if not past.entered(owner, access.event):
            sentence = f"`{event.step}` may touch {memory} before rank {owner} has entered the call"
            name = FaultName.WRITTEN_BEFORE_ENTRY if access.writes else FaultName.READ_BEFORE_FINAL
            return self._fault(name, access, sentence)
        if not past.returned_after(owner, access.event):
            sentence = f"`{event.step}` may touch {memory} after rank {owner} has returned it"
            name = (
                FaultName.RETURNED_BEFORE_WRITTEN
                if access.writes
                else FaultName.RETURNED_WHILE_READ
            )
            return self._fault(name, access, sentence)
        return None

    def _memory(self, owner: int, access: _Access) -> str:
        return f"rank {owner}'s {access.chunk}{' (in place)' if self._in_place else ''}"

    def _fault(self, name: FaultName, access: _Access, sentence: str) -> Fault:
        event = self._events[access.event]
        return Fault(name, event.rank, event.channel, event.at, sentence)
