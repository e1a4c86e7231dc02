"""The verifier: is a program right, whatever the timing, the size and the number of slots?

It looks, in this order, at

1. each step by itself (``structure.py``);
2. the messages: every one is taken, as what it is, and nobody waits for ever with ``min_slots``
   slots per link, nor would with fewer declared (``network.py``: one run is a proof for all
   timings and sizes);
3. the order of what two lanes do to one memory (``happens_before.py``), in place and out of place;
4. the values: every output holds every contribution exactly once, finished once, by one
   expression on all ranks (``values.py``), in place and out of place; a barrier, in their place,
   holds everyone;
5. what is declared: symmetry, determinism.

In place or not is each rank's own affair: it joins chunks of that rank only, and every check of a
chunk's memory concerns one rank's. So what holds when all ranks are in place and when none is also
holds when some are.

Each stage assumes what the earlier ones have shown, so the first stage that finds faults is the
last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .faults import Fault, FaultName
from .happens_before import Order
from .ir import Lane, Program, rotated
from .layout import Chunk, Collective, Space
from .network import LaneId, Trace, least_slots, message_faults, simulate
from .structure import faults_of_steps
from .values import Value, contents, is_canonical


class ProgramFaultError(ValueError):
    """A program is not right; the message has a line for each fault."""


@dataclass(frozen=True)
class Report:
    """What the verifier found.

    Attributes:
        name: The program, in words.
        faults: What is wrong. Empty for a program that is right; the rest then holds.
        steps: Number of steps of all ranks.
        messages: Number of messages of all links in one pass, signals included.
        min_slots: Least number of slots per link.
        deterministic: Whether every output is one reduction in ascending rank order, rounded once.
        single_copy: None if receivers may take messages from the sender's chunk itself, with no
            slot between; otherwise why not.
        reductions: Per piece of a reducing collective, the expression, the same on all ranks that
            have it.
    """

    name: str
    faults: tuple[Fault, ...]
    steps: int = 0
    messages: int = 0
    min_slots: int = 0
    deterministic: bool = False
    single_copy: str | None = None
    reductions: tuple[Value, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the program is right."""
        return not self.faults

    @property
    def roundings(self) -> int:
        """How often the most rounded contribution of any output is rounded."""
        return max((value.roundings for value in self.reductions), default=0)

    def raise_if_faulty(self) -> None:
        """Raise if there are faults.

        Raises:
            ProgramFaultError: There are; the message has a line for each.
        """
        if self.faults:
            raise ProgramFaultError(str(self))

    def __str__(self) -> str:
        if self.faults:
            count = f"{len(self.faults)} fault{'s' if len(self.faults) > 1 else ''}"
            return "\n".join([f"{self.name}: {count}", *(f"  {fault}" for fault in self.faults)])
        lines = [
            f"{self.name}: verified, in place and out of place",
            f"  {self.steps} steps, {self.messages} messages per pass",
            f"  min_slots      {self.min_slots}",
            f"  deterministic  {'yes' if self.deterministic else 'no'}",
            f"  single copy    {'yes' if self.single_copy is None else 'no: ' + self.single_copy}",
        ]
        if self.reductions:
            lines.append(f"  roundings      {self.roundings}")
            lines.append(f"  piece 0        {self.reductions[0]}")
        return "\n".join(lines)


def verify(program: Program) -> Report:
    """Prove a program, or say what is wrong with it.

    Args:
        program: The program. All ranks' steps are made and looked at: a two-shot of 64 ranks, with
            8,128 steps, takes about half a second.

    Returns:
        The report; ``report.faults`` is empty for a program that is right.
    """
    parts = [program.rank_program(rank) for rank in range(program.world)]
    name = f"{program.collective.word} {program.algorithm}, world {program.world}"
    if program.channels > 1:
        name += f", {program.channels} channels"
    if program.root is not None:
        name += f", root {program.root}"

    faults = [fault for part in parts for fault in faults_of_steps(part)]
    if faults:
        return Report(name, tuple(faults))

    lanes = {(part.rank, c): lane for part in parts for c, lane in enumerate(part.lanes)}
    trace = simulate(lanes, None)
    faults = message_faults(lanes, trace, program.layout)
    if faults:
        return Report(name, tuple(faults))

    least, fault = least_slots(lanes, program.min_slots)
    faults = [fault] if fault else []
    single_copy = None
    reductions: tuple[Value, ...] = ()
    for in_place in (False, True):
        order = Order(program, trace, in_place=in_place)
        found = order.faults()
        if not found and single_copy is None:
            single_copy = order.late_read()
        if program.collective is Collective.BARRIER:
            found += order.barrier_faults()
        values = contents(program, trace, in_place=in_place)
        found += values.faults
        if program.layout.reduces and not found:
            by_piece = {
                program.layout.piece(rank, Chunk(Space.OUT, index)): value
                for (rank, index), value in values.outputs.items()
            }
            reductions = tuple(by_piece[piece] for piece in sorted(by_piece))
        faults += found
        if found:
            break

    deterministic = all(is_canonical(value, program.world) for value in reductions)
    if not faults:
        faults = _declaration_faults(program, lanes, deterministic)
    return Report(
        name,
        tuple(faults),
        steps=len(trace.events),
        messages=_messages(trace),
        min_slots=least,
        deterministic=deterministic,
        single_copy=single_copy,
        reductions=reductions,
    )


def _messages(trace: Trace) -> int:
    return sum(len(event.sources) for event in trace.events)


def _declaration_faults(
    program: Program, lanes: Mapping[LaneId, Lane], deterministic: bool
) -> list[Fault]:
    faults = []
    if program.deterministic != deterministic:
        sentence = (
            f"declared deterministic={program.deterministic}, but the outputs are "
            f"{'all' if deterministic else 'not all'} one reduction in rank order"
        )
        faults.append(Fault(FaultName.WRONG_DETERMINISTIC, 0, None, None, sentence))
    if program.symmetry == "rotation":
        fault = _rotation_fault(program, lanes)
        if fault:
            faults.append(fault)
    return faults


def _rotation_fault(program: Program, lanes: Mapping[LaneId, Lane]) -> Fault | None:
    for (rank, channel), lane in lanes.items():
        expected = [rotated(step, rank, program.layout) for step in lanes[0, channel]]
        for index in range(max(len(lane), len(expected))):
            one = lane[index] if index < len(lane) else None
            other = expected[index] if index < len(expected) else None
            if one != other:
                sentence = f"is `{one}`, but rank 0's steps, rotated, have `{other}`"
                return Fault(FaultName.WRONG_SYMMETRY, rank, channel, index, sentence)
    return None
