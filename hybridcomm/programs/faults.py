"""The faults the verifier knows, by name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FaultName(str, Enum):
    """What is wrong. The value is the name in messages and tests."""

    # One step by itself (structure.py).
    MALFORMED_STEP = "malformed_step"  # a field is missing, or there that does not belong
    SELF_PEER = "self_peer"  # a rank names itself as its peer
    PEER_OUT_OF_RANGE = "peer_out_of_range"
    DUPLICATE_PEER = "duplicate_peer"
    UNSORTED_PEERS = "unsorted_peers"  # a reduction whose peers are not in rank order
    CHUNK_OUT_OF_RANGE = "chunk_out_of_range"
    NOT_THE_ROOT = "not_the_root"  # names a chunk that only the root has
    WRITES_INPUT = "writes_input"  # an `in` chunk is the caller's; it is only read
    LENGTH_MISMATCH = "length_mismatch"  # different pieces meet in a step or a message

    # Links (network.py).
    UNMATCHED_SEND = "unmatched_send"  # a message that nobody takes
    UNMATCHED_RECV = "unmatched_recv"  # waits for a rank that has ended
    KIND_MISMATCH = "kind_mismatch"  # a signal is received as data, or data waited for
    DEADLOCK = "deadlock"  # ranks wait for each other in a cycle, however many slots there are
    WRONG_MIN_SLOTS = "wrong_min_slots"  # declared min_slots is not the least that works

    # Values (values.py).
    READ_BEFORE_WRITTEN = "read_before_written"  # a chunk has no value yet
    DOUBLED_CONTRIBUTION = "doubled_contribution"  # a rank's contribution is reduced twice
    MISSING_CONTRIBUTION = "missing_contribution"
    WRONG_CONTRIBUTION = "wrong_contribution"  # an output holds what is not its own
    EARLY_FINISH = "early_finish"  # `finish`, and more is reduced afterwards
    DOUBLE_FINISH = "double_finish"
    MISSING_FINISH = "missing_finish"
    IN_PLACE_HAZARD = (
        "in_place_hazard"  # an input is read after the output on its memory was written
    )
    RANKS_DISAGREE = "ranks_disagree"  # two ranks reduce one output in different order
    WRONG_DETERMINISTIC = "wrong_deterministic"  # the declaration does not fit the reductions

    # Order between lanes (happens_before.py).
    READ_BEFORE_FINAL = "read_before_final"  # a peer may read before the value is there
    OVERWRITTEN_WHILE_READ = "overwritten_while_read"
    WRITTEN_TWICE_AT_ONCE = "written_twice_at_once"  # two ranks' writes in no order
    WRITTEN_BEFORE_ENTRY = "written_before_entry"  # a peer may write before the owner has called
    RETURNED_WHILE_READ = "returned_while_read"  # the owner may return while a peer still reads
    RETURNED_BEFORE_WRITTEN = "returned_before_written"  # ... before a peer has written
    CROSS_CHANNEL_RACE = "cross_channel_race"  # two channels touch a chunk, one writes
    BARRIER_LEAK = "barrier_leak"  # a rank may leave before another has entered

    # Declarations (verify.py).
    WRONG_SYMMETRY = "wrong_symmetry"


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a program.

    Attributes:
        name: Which fault.
        rank: The rank at fault, or that shows it.
        channel: Its channel, or None where the fault concerns the whole rank.
        step: Index of the step in the lane, or None where no single step shows it.
        sentence: What happens, in words.
        cycle: For a deadlock, the (rank, channel, step) that wait for each other, each for the
            next.
    """

    name: FaultName
    rank: int
    channel: int | None
    step: int | None
    sentence: str
    cycle: tuple[tuple[int, int, int], ...] = ()

    def __str__(self) -> str:
        where = [f"rank {self.rank}"]
        if self.channel is not None:
            where.append(f"channel {self.channel}")
        if self.step is not None:
            where.append(f"step {self.step}")
        return f"{self.name.value}: {', '.join(where)}: {self.sentence}"
