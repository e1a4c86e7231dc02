"""Runs the contents of a program as symbols: which contributions end up where, in which order.

A value is an expression over the ranks' contributions. Since a run's messages do not depend on
timing (``network.py``) and no lane touches memory out of order with another
(``happens_before.py``), the values of one run are those of every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .faults import Fault, FaultName
from .ir import REDUCING, TOKENS, Op, Program, Step
from .layout import Chunk, Collective, Layout, Space
from .network import Event, Trace


@dataclass(frozen=True, eq=False)
class Value:
    """A contribution, or a reduction of values. Equal expressions of one piece are one object.

    Which piece a value belongs to need not be said: chunks and messages of different pieces never
    meet.

    Attributes:
        ranks: The contributing ranks, as a set of bits.
        operands: What was reduced, in order; empty for a contribution.
        roundings: How often the most rounded contribution has been rounded.
        finished: Whether the reduction was the finishing one.
    """

    ranks: int
    operands: tuple[Value, ...] = ()
    roundings: int = 0
    finished: bool = False

    def __str__(self) -> str:
        # Iterative: a ring's expression is as deep as the ring is long.
        words: list[str] = []
        todo: list[Value | str] = [self]
        while todo:
            item = todo.pop()
            if isinstance(item, str):
                words.append(item)
            elif not item.operands:
                words.append(str(item.ranks.bit_length() - 1))
            else:
                todo.append(")")
                for place, operand in enumerate(reversed(item.operands)):
                    todo += [" + ", operand] if place else [operand]
                todo.append("(")
        return "".join(words)


class Contents(NamedTuple):
    """What a run computes.

    Attributes:
        faults: The first fault of the steps, or else of the outputs.
        outputs: Per rank and ``out`` chunk, its value; empty if a step is at fault.
    """

    faults: list[Fault]
    outputs: dict[tuple[int, int], Value]


def contents(program: Program, trace: Trace, *, in_place: bool) -> Contents:
    """Follow the values through a run, then compare the outputs with what the collective promises.

    Args:
        program: The program.
        trace: A complete run of it, with every message what its receiver takes it for.
        in_place: Whether inputs and outputs share memory as ``layout.py`` says.

    Returns:
        The outputs' values and what is wrong with them.
    """
    run = _Run(program, in_place)
    for number, event in enumerate(trace.events):
        try:
            run.do(number, event)
        except _StepFault as error:
            where = (event.rank, event.channel, event.at)
            sentence = f"`{event.step}`{' (in place)' if in_place else ''}: {error.sentence}"
            return Contents([Fault(error.name, *where, sentence)], {})
    outputs = {
        (rank, index): value
        for rank in range(program.world)
        for index in range(program.n_out)
        if (value := run.memory.get(run.cell(rank, Chunk(Space.OUT, index)))) is not None
    }
    fault = _output_fault(program, outputs, in_place)
    return Contents([fault] if fault else [], outputs)


class _StepFault(Exception):
    def __init__(self, name: FaultName, sentence: str) -> None:
        super().__init__(sentence)
        self.name = name
        self.sentence = sentence


class _Run:
    """The memory of all ranks and the messages under way."""

    def __init__(self, program: Program, in_place: bool) -> None:
        self._layout: Layout = program.layout
        self._in_place = in_place
        self._messages: dict[int, Value] = {}  # by the event that sent it
        self._reductions: dict[tuple[bool, tuple[int, ...]], Value] = {}
        self._inputs: dict[tuple[int, Chunk], Value] = {}
        self.memory: dict[tuple[int, Chunk], Value] = {}
        for rank in range(program.world):
            for index in range(program.n_in if self._layout.has(rank, Space.IN) else 0):
                chunk = Chunk(Space.IN, index)
                value = Value(1 << rank)
                self._inputs[rank, chunk] = value
                self.memory[self.cell(rank, chunk)] = value

    def cell(self, rank: int, chunk: Chunk) -> tuple[int, Chunk]:
        return (rank, self._layout.in_place(rank, chunk) if self._in_place else chunk)

    def do(self, number: int, event: Event) -> None:
        step, rank = event.step, event.rank
        if step.op in TOKENS:
            return
        if step.op in REDUCING:
            value = self._reduce(event)
        elif step.frm:
            value = self._message(event, 0)
        else:
            assert step.src is not None  # structure.py: it takes nothing, so it has a source
            value = self._read(rank, step.src)
        if step.dst is not None:
            self._write(rank, step.dst, value)
        if step.op is Op.WRITE:
            assert step.remote is not None
            for peer in step.to:
                self._write(peer, step.remote, value)
        elif step.to:
            self._messages[number] = value

    def _message(self, event: Event, place: int) -> Value:
        return self._messages[event.sources[place]]

    def _read(self, rank: int, chunk: Chunk) -> Value:
        value = self.memory.get(self.cell(rank, chunk))
        if value is None:
            raise _StepFault(
                FaultName.READ_BEFORE_WRITTEN, f"rank {rank}'s {chunk} has no value yet"
            )
        if chunk.space is Space.IN and value is not self._inputs[rank, chunk]:
            output = self._layout.in_place(rank, chunk)
            raise _StepFault(
                FaultName.IN_PLACE_HAZARD,
                f"reads rank {rank}'s {chunk} after {output}, the same memory, was written",
            )
        return value

    def _write(self, rank: int, chunk: Chunk, value: Value) -> None:
        self.memory[self.cell(rank, chunk)] = value

    def _reduce(self, event: Event) -> Value:
        step = event.step
        if step.op is Op.READ_REDUCE:
            assert step.remote is not None
            operands = {peer: self._read(peer, step.remote) for peer in step.frm}
        else:
            operands = {peer: self._message(event, at) for at, peer in enumerate(step.frm)}
        if step.src is not None:
            operands[event.rank] = self._read(event.rank, step.src)
        return self._reduced(step, [operands[rank] for rank in sorted(operands)])

    def _reduced(self, step: Step, operands: Sequence[Value]) -> Value:
        for operand in operands:
            if operand.finished and step.finish:
                raise _StepFault(
                    FaultName.DOUBLE_FINISH, f"finishes {operand}, which is already finished"
                )
            if operand.finished and len(operands) > 1:
                raise _StepFault(
                    FaultName.EARLY_FINISH, f"reduces {operand}, which was finished before"
                )
        if len(operands) == 1 and not step.finish:
            return operands[0]
        ranks = 0
        for operand in operands:
            if twice := ranks & operand.ranks:
                raise _StepFault(
                    FaultName.DOUBLED_CONTRIBUTION,
                    f"reduces the contribution of {_ranks(twice)} a second time",
                )
            ranks |= operand.ranks
        # One object per expression: comparing two outputs, however deep, is then comparing two
        # objects.
        key = (step.finish, tuple(map(id, operands)))
        if key not in self._reductions:
            self._reductions[key] = Value(
                ranks,
                tuple(operands),
                1 + max(operand.roundings for operand in operands),
                step.finish,
            )
        return self._reductions[key]


def _ranks(bits: int) -> str:
    ranks = [str(rank) for rank in range(bits.bit_length()) if bits >> rank & 1]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"


def _promised(program: Program, index: int) -> int:
    """The ranks whose contributions ``out[index]`` promises to hold, as a set of bits."""
    if program.layout.reduces:
        return (1 << program.world) - 1
    if program.collective in (Collective.BROADCAST, Collective.SCATTER):
        assert program.root is not None
        return 1 << program.root
    # all_gather, gather and all_to_all have an output for each source; a barrier has none.
    return 1 << (index % program.world)


def _output_fault(
    program: Program, outputs: dict[tuple[int, int], Value], in_place: bool
) -> Fault | None:
    note = " (in place)" if in_place else ""

    def fault(name: FaultName, rank: int, index: int, sentence: str) -> Fault:
        channel = index * program.channels // program.n_out
        return Fault(name, rank, channel, None, f"at the end, out[{index}]{note} {sentence}")

    layout = program.layout
    first: dict[int, tuple[int, Value]] = {}  # per piece, the first rank that holds it reduced
    for rank in range(program.world):
        for index in range(program.n_out if layout.has(rank, Space.OUT) else 0):
            value = outputs.get((rank, index))
            promised = _promised(program, index)
            if value is None:
                return fault(FaultName.MISSING_CONTRIBUTION, rank, index, "was never written")
            if value.ranks & ~promised:
                sentence = f"holds {_ranks(value.ranks)} instead of {_ranks(promised)}"
                return fault(FaultName.WRONG_CONTRIBUTION, rank, index, sentence)
            if lacking := promised & ~value.ranks:
                sentence = f"lacks the contribution of {_ranks(lacking)}"
                return fault(FaultName.MISSING_CONTRIBUTION, rank, index, sentence)
            # A world of one reduces nothing: its average is its own value.
            if layout.reduces and program.world > 1 and not value.finished:
                return fault(FaultName.MISSING_FINISH, rank, index, "is reduced but not finished")
            piece = layout.piece(rank, Chunk(Space.OUT, index))
            holder, held = first.setdefault(piece, (rank, value))
            if value is not held and value.operands:
                sentence = f"is {value}, on rank {holder} it is {held}"
                return fault(FaultName.RANKS_DISAGREE, rank, index, sentence)
    return None


def is_canonical(value: Value, world: int) -> bool:
    """Whether a value is the reduction of all ranks in ascending order, rounded once.

    Args:
        value: An output's value.
        world: Number of ranks.

    Returns:
        True also for a world of one, which reduces nothing.
    """
    in_order = [operand.ranks for operand in value.operands] == [1 << r for r in range(world)]
    return value.roundings <= 1 and (in_order or world == 1)
