"""Runs the messages of a program without their contents: who gets stuck, what is left over.

**Why one run is a proof.** Each link has one rank that sends on it and one that takes from it,
and a lane's next step never depends on which message came first. So nothing is ever chosen: a
step that can proceed stays able to until it does (nobody else can take its messages or fill its
slots), and the steps of two lanes that can both proceed give the same state in either order. In
such a network (Kahn 1974; a marked graph of Commoner et al. 1971) every run from one state ends
in the same state, whatever the timing, and matches the same messages. If one run ends with all
lanes at their end, all do; if one gets stuck, all do.

**More slots never hurt.** A run with k slots is also a run with k + 1. So there is a least k, and a
run with unlimited slots tells a program that no buffering helps from one that asks for more.

**Longer messages.** Suppose a program runs with k slots and one slot per message. Then it runs with
m*k slots and up to m slots per message: in the first run, move the m slots one by one in place of
each message; no link ever holds more than m*k.

**Segments.** A call is P;P;P;... One run of it does a whole pass, which leaves all links empty,
then the next; by the above all runs end as this one. Where a piece is used up, its steps are
skipped at both ends: striking them out of the run leaves a run, since links only become emptier.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import NamedTuple

from .faults import Fault, FaultName
from .ir import Lane, Step
from .layout import Layout
from .structure import piece_of

LaneId = tuple[int, int]  # (rank, channel)
LinkId = tuple[int, int, int]  # (from, to, channel)


class Event(NamedTuple):
    """A step that was done.

    Attributes:
        rank: Whose step.
        channel: On which channel.
        at: The step's place in its lane.
        step: The step.
        sources: For each peer of ``step.received``, the number of the event that sent the message
            taken.
    """

    rank: int
    channel: int
    at: int
    step: Step
    sources: tuple[int, ...]

    def __str__(self) -> str:
        return f"rank {self.rank} channel {self.channel} step {self.at} (`{self.step}`)"


class Trace(NamedTuple):
    """One run.

    Attributes:
        events: The steps done, in an order in which they can be done one after the other.
        stuck: Lanes that could not go on, with the index of the step each stands at.
        links: Per link, the numbers of the events whose messages nobody took.
    """

    events: list[Event]
    stuck: dict[LaneId, int]
    links: dict[LinkId, deque[int]]


def simulate(lanes: Mapping[LaneId, Lane], slots: int | None) -> Trace:
    """Run every lane as far as it goes.

    Args:
        lanes: The steps of every (rank, channel). Well formed (``structure.py``).
        slots: Slots per link, one per message; None for no limit.

    Returns:
        The run.
    """
    events: list[Event] = []
    links: dict[LinkId, deque[int]] = defaultdict(deque)
    position = dict.fromkeys(lanes, 0)
    ready = deque(lanes)
    queued = set(lanes)

    def wake(lane: LaneId) -> None:
        if lane not in queued:
            queued.add(lane)
            ready.append(lane)

    while ready:
        rank, channel = lane = ready.popleft()
        queued.discard(lane)
        steps = lanes[lane]
        index = position[lane]
        while index < len(steps):
            step = steps[index]
            incoming = [links[peer, rank, channel] for peer in step.received]
            outgoing = [links[rank, peer, channel] for peer in step.sent]
            if not all(incoming):
                break
            if slots is not None and any(len(link) >= slots for link in outgoing):
                break
            sources = tuple([link.popleft() for link in incoming])
            for link in outgoing:
                link.append(len(events))
            events.append(Event(rank, channel, index, step, sources))
            for peer in step.received + step.sent:
                wake((peer, channel))
            index += 1
        position[lane] = index

    stuck = {lane: at for lane, at in position.items() if at < len(lanes[lane])}
    return Trace(events, stuck, links)


def message_faults(lanes: Mapping[LaneId, Lane], trace: Trace, layout: Layout) -> list[Fault]:
    """What an unlimited run says of the messages.

    Args:
        lanes: The steps of every lane.
        trace: Their run with no limit on slots.
        layout: The call's chunk table.

    Returns:
        Messages taken as what they are not, lanes that wait for ever, messages nobody takes.
    """
    faults = _mismatches(trace, layout)
    waits = {lane: _missing(lanes, trace, lane) for lane in trace.stuck}
    ended = {
        lane: next((peer for peer in peers if peer not in trace.stuck), None)
        for lane, peers in waits.items()
    }
    starved = {lane: peer for lane, peer in ended.items() if peer is not None}
    for lane, peer in sorted(starved.items()):
        at = trace.stuck[lane]
        sentence = (
            f"`{lanes[lane][at]}` waits for a message of rank {peer[0]}, "
            f"which has done all its steps on this channel"
        )
        faults.append(Fault(FaultName.UNMATCHED_RECV, *lane, at, sentence))
    if waits and not starved:
        faults.append(_deadlock(lanes, trace, FaultName.DEADLOCK, "however many slots links have"))
    for (_, to, channel), left in sorted(trace.links.items()):
        if left and (to, channel) not in trace.stuck:
            event = trace.events[left[0]]
            sentence = f"`{event.step}`: rank {to} never takes this message"
            faults.append(Fault(FaultName.UNMATCHED_SEND, event.rank, channel, event.at, sentence))
    return faults


def least_slots(lanes: Mapping[LaneId, Lane], declared: int) -> tuple[int, Fault | None]:
    """Find the least number of slots at which a program runs that runs with unlimited ones.

    Args:
        lanes: The steps of every lane.
        declared: What the program says.

    Returns:
        The least number, and a fault if it is not the declared one.
    """

    def runs(slots: int) -> bool:
        return not simulate(lanes, slots).stuck

    if runs(declared) and (declared == 1 or not runs(declared - 1)):
        return declared, None

    # Bisect. With a slot for every message of the busiest lane nothing waits for a slot.
    low, high = 1, max(1, *map(len, lanes.values()))
    while low < high:
        middle = (low + high) // 2
        if runs(middle):
            high = middle
        else:
            low = middle + 1
    if low < declared:
        rank, channel = min(lanes)
        sentence = f"min_slots is declared {declared}, but the program runs with {low}"
        return low, Fault(FaultName.WRONG_MIN_SLOTS, rank, channel, None, sentence)
    extent = f"with the declared {declared} slot(s) per link; it takes {low}"
    jam = simulate(lanes, declared)
    return low, _deadlock(lanes, jam, FaultName.WRONG_MIN_SLOTS, extent, declared)


def _mismatches(trace: Trace, layout: Layout) -> list[Fault]:
    """The first message that is not what its receiver expects; others may follow from it."""
    for event in trace.events:
        piece = piece_of(event.step, event.rank, layout)
        for source in event.sources:
            sender = trace.events[source]
            sent = piece_of(sender.step, sender.rank, layout)
            if sent == piece:
                continue
            if sent is None or piece is None:
                name = FaultName.KIND_MISMATCH
                sentence = f"`{event.step}` takes the message of {sender}"
            else:
                name = FaultName.LENGTH_MISMATCH
                sentence = f"`{event.step}` expects piece {piece}, but {sender} sends piece {sent}"
            return [Fault(name, event.rank, event.channel, event.at, sentence)]
    return []


def _missing(
    lanes: Mapping[LaneId, Lane], trace: Trace, lane: LaneId, slots: int | None = None
) -> list[LaneId]:
    """The lanes that a stuck lane waits for: those it lacks a message of, or a free slot to."""
    rank, channel = lane
    step = lanes[lane][trace.stuck[lane]]
    return [(p, channel) for p in step.received if not trace.links[p, rank, channel]] + [
        (p, channel)
        for p in step.sent
        if slots is not None and len(trace.links[rank, p, channel]) >= slots
    ]


def _deadlock(
    lanes: Mapping[LaneId, Lane],
    trace: Trace,
    name: FaultName,
    extent: str,
    slots: int | None = None,
) -> Fault:
    """Follow who waits for whom until a lane comes up again: that is the cycle."""
    path: list[LaneId] = []
    lane = min(trace.stuck)
    while lane not in path:
        path.append(lane)
        # A lane that has ended frees no slots and sends nothing, but then the unlimited run had
        # found it.
        lane = next(p for p in _missing(lanes, trace, lane, slots) if p in trace.stuck)
    cycle = path[path.index(lane) :]
    told = ", ".join(
        f"rank {rank} at step {trace.stuck[rank, channel]} "
        f"(`{lanes[rank, channel][trace.stuck[rank, channel]]}`)"
        for rank, channel in cycle
    )
    sentence = f"these wait in a cycle, each for the next, {extent}: {told}"
    where = tuple((rank, channel, trace.stuck[rank, channel]) for rank, channel in cycle)
    return Fault(name, *where[0], sentence, where)
