"""The text form of a program: for people, diffs and golden files.

One declaration a line, then each lane under its own line, one step a line in the words of
``Step``::

    program all_reduce two_shot
    world 2
    channels 1
    root none
    in 2
    out 2
    tmp 0
    min_slots 2
    deterministic yes
    symmetry rotation

    rank 0 channel 0
      send to 1 src in[1]
      recv_reduce_copy_send from 1 to 1 src in[0] dst out[0] finish
      recv from 1 dst out[1]

    rank 1 channel 0
      ...

Blank lines and indentation mean nothing; ``#`` starts a comment. The same program always gives
the same text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NoReturn

from .ir import Lane, Op, Program, Step, Symmetry
from .layout import Chunk, Space, collective_named
from .structure import step_complaint

_HEADER_WORDS = (
    "program",
    "world",
    "channels",
    "root",
    "in",
    "out",
    "tmp",
    "min_slots",
    "deterministic",
    "symmetry",
)
_CHUNK = re.compile(r"(in|out|tmp)\[(0|[1-9][0-9]{0,9})\]")
_OPS = {op.word: op for op in Op}


class TextFormatError(ValueError):
    """Text that is not a program; the message names the line."""


def format_program(program: Program, rank: int | None = None) -> str:
    """Write a program as text.

    Args:
        program: The program.
        rank: Write this rank's lanes only; by default all ranks'.

    Returns:
        The text, with a newline at its end. With all ranks in it, ``parse_program`` reads it.

    Raises:
        ValueError: There is no such rank.
    """
    lines = [
        f"program {program.collective.word} {program.algorithm}",
        f"world {program.world}",
        f"channels {program.channels}",
        f"root {'none' if program.root is None else program.root}",
        f"in {program.n_in}",
        f"out {program.n_out}",
        f"tmp {program.n_tmp}",
        f"min_slots {program.min_slots}",
        f"deterministic {'yes' if program.deterministic else 'no'}",
        f"symmetry {program.symmetry}",
    ]
    for one in range(program.world) if rank is None else (rank,):
        for channel, lane in enumerate(program.rank_program(one).lanes):
            lines += ["", f"rank {one} channel {channel}"]
            lines += [f"  {step}" for step in lane]
    return "\n".join(lines) + "\n"


def parse_program(text: str) -> Program:
    """Read a program from its text form.

    Args:
        text: The text, with every rank's lanes.

    Returns:
        The program, with the steps as written; each is well formed, the whole is not yet verified.

    Raises:
        TextFormatError: The text is not a program; the message names the line.
    """
    return _Parser(text).program()


class _Parser:
    def __init__(self, text: str) -> None:
        self._lines = self._significant(text)
        self._number = 0

    @staticmethod
    def _significant(text: str) -> Iterator[tuple[int, list[str]]]:
        for number, line in enumerate(text.splitlines(), start=1):
            words = line.split("#", 1)[0].split()
            if words:
                yield number, words

    def _wrong(self, sentence: str) -> NoReturn:
        raise TextFormatError(f"line {self._number}: {sentence}")

    def program(self) -> Program:
        declared = {word: self._declaration(word) for word in _HEADER_WORDS}
        lanes: dict[tuple[int, int], list[Step]] = {}

        def lane(rank: int, channel: int) -> Lane:
            return tuple(lanes[rank, channel])

        try:
            program = Program(
                collective=collective_named(declared["program"][0]),
                algorithm=declared["program"][1],
                world=self._count(declared["world"][0]),
                channels=self._count(declared["channels"][0]),
                root=None if declared["root"] == ["none"] else self._count(declared["root"][0]),
                n_tmp=self._count(declared["tmp"][0]),
                min_slots=self._count(declared["min_slots"][0]),
                deterministic=self._one_of(declared["deterministic"][0], ("no", "yes")) == 1,
                symmetry=self._symmetry(declared["symmetry"][0]),
                lane=lane,
            )
        except TextFormatError:
            raise
        except ValueError as error:
            self._wrong(str(error))
        for word, count in (("in", program.n_in), ("out", program.n_out)):
            if declared[word] != [str(count)]:
                self._wrong(f"'{word}' is {declared[word][0]}; this collective has {count}")
        self._read_lanes(program, lanes)
        return program

    def _read_lanes(self, program: Program, lanes: dict[tuple[int, int], list[Step]]) -> None:
        where: tuple[int, int] | None = None
        for number, words in self._lines:
            self._number = number
            if words[0] == "rank":
                if len(words) != 4 or words[2] != "channel":
                    self._wrong("a lane starts with 'rank R channel C'")
                where = self._count(words[1]), self._count(words[3])
                if where[0] >= program.world or where[1] >= program.channels:
                    self._wrong("there is no such rank or channel")
                if where in lanes:
                    self._wrong(f"rank {where[0]} channel {where[1]} is there twice")
                lanes[where] = []
            elif where is None:
                self._wrong("a step before the first 'rank R channel C'")
            else:
                step = self._step(words)
                complaint = step_complaint(step, where[0], program.layout, program.n_tmp)
                if complaint:
                    self._wrong(complaint.sentence)
                lanes[where].append(step)
        # Count first: a short text may claim a great many ranks.
        if len(lanes) != program.world * program.channels:
            rank, channel = next(
                (rank, channel)
                for rank in range(program.world)
                for channel in range(program.channels)
                if (rank, channel) not in lanes
            )
            self._wrong(f"the text ends without rank {rank} channel {channel}")

    def _declaration(self, word: str) -> list[str]:
        self._number, words = next(self._lines, (self._number, [""]))
        operands = 2 if word == "program" else 1
        if words[0] != word or len(words) != 1 + operands:
            self._wrong(f"here must be '{word}' with {operands} word(s) after it")
        return words[1:]

    def _count(self, word: str) -> int:
        if not (word.isascii() and word.isdigit() and len(word) <= 10):
            self._wrong(f"'{word}' is not a count")
        return int(word)

    def _one_of(self, word: str, choices: tuple[str, ...]) -> int:
        if word not in choices:
            self._wrong(f"'{word}' is none of {', '.join(choices)}")
        return choices.index(word)

    def _symmetry(self, word: str) -> Symmetry:
        choices: tuple[Symmetry, Symmetry] = ("none", "rotation")
        return choices[self._one_of(word, choices)]

    def _step(self, words: list[str]) -> Step:
        if words[0] not in _OPS:
            self._wrong(f"'{words[0]}' is not a step")
        peers: dict[str, tuple[int, ...]] = {}
        chunks: dict[str, Chunk] = {}
        finish = words[-1] == "finish"
        rest = iter(words[1:-1] if finish else words[1:])
        for name in rest:
            value = next(rest, "")
            if name in peers or name in chunks:
                self._wrong(f"'{name}' is there twice")
            if name in ("from", "to"):
                peers[name] = tuple(self._count(peer) for peer in value.split(","))
            elif name in ("src", "dst", "remote"):
                match = _CHUNK.fullmatch(value)
                if match is None:
                    self._wrong(f"'{value}' is not a chunk such as in[0]")
                chunks[name] = Chunk(Space[match[1].upper()], int(match[2]))
            else:
                self._wrong(f"'{name}' is not a part of a step")
        return Step(
            _OPS[words[0]],
            frm=peers.get("from", ()),
            to=peers.get("to", ()),
            src=chunks.get("src"),
            dst=chunks.get("dst"),
            remote=chunks.get("remote"),
            finish=finish,
        )
