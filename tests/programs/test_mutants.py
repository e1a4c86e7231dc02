"""Every small change to a program is either found or harmless, and harmless is put to the test.

All algorithms, every step of every rank: left out, doubled, swapped with the next, another peer,
another chunk, ``finish`` toggled. A mutant that the verifier lets pass must run on the reference
executor, in place and not, buffered and by reference, in several orders, with the right result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from hybridcomm.programs import algorithms, build, collectives, verify
from hybridcomm.programs.ir import Program, Step
from hybridcomm.programs.layout import Chunk, Space
from hybridcomm.reference import random_order, run_program
from hybridcomm.reference.executor import Staging
from tests.programs.editing import with_lanes

WORLD = 3
ALL = [(collective, name) for collective in collectives() for name in algorithms(collective)]


def other_steps(step: Step, rank: int, program: Program) -> Iterator[Step]:
    """The step with one field changed."""

    def changed(field: str, value: Any) -> Step:
        fields: dict[str, Any] = {field: value}
        return step._replace(**fields)

    for field in ("frm", "to"):
        peers = getattr(step, field)
        for place, peer in enumerate(peers):
            for other in {*range(WORLD)} - {peer, rank}:
                yield changed(field, (*peers[:place], other, *peers[place + 1 :]))
        if len(peers) > 1:
            yield changed(field, peers[1:])
    counts = {Space.IN: program.n_in, Space.OUT: program.n_out}
    for field in ("src", "dst", "remote"):
        chunk = getattr(step, field)
        if chunk is not None:
            for space, count in counts.items():
                for number in range(count):
                    if (space, number) != chunk:
                        yield changed(field, Chunk(space, number))
    if step.frm:
        yield step._replace(finish=not step.finish)


def mutants(program: Program) -> Iterator[tuple[str, Program]]:
    for rank in range(WORLD):
        steps = program.lanes(rank)[0]
        for at, step in enumerate(steps):
            before, after = steps[:at], steps[at + 1 :]
            changes = {"left out": (*before, *after), "doubled": (*before, step, step, *after)}
            if after:
                changes["swapped"] = (*before, after[0], step, *after[1:])
            for number, other in enumerate(other_steps(step, rank, program)):
                changes[f"changed {number} to `{other}`"] = (*before, other, *after)
            for what, lane in changes.items():
                mutant = with_lanes(program, {(rank, 0): lane})
                # Any change breaks the rotation; the question is what else it breaks.
                yield (
                    f"rank {rank} step {at} (`{step}`) {what}",
                    replace(mutant, symmetry="none"),
                )


def runs_right(program: Program, stagings: Sequence[Staging]) -> bool:
    inputs = [torch.arange(40, dtype=torch.float64) + 1000.0 * rank for rank in range(WORLD)]
    wanted = {
        "all_reduce": sum(inputs, torch.zeros(40, dtype=torch.float64)),
        "broadcast": inputs[program.root or 0],
        "all_gather": torch.stack(inputs),
    }.get(program.collective.word)
    for seed in range(3):
        for staging in stagings:
            results = run_program(
                program,
                inputs,
                in_place=seed % 2 == 0,
                slots=program.min_slots + seed,
                slot_bytes=64,
                staging=staging,
                choose=random_order(seed),
            )
            if wanted is not None and not all(torch.equal(out, wanted) for out in results):
                return False
    return True


@pytest.mark.parametrize(("collective", "algorithm"), ALL)
def test_found_or_harmless(collective: str, algorithm: str) -> None:
    root = 1 if collective == "broadcast" else None
    program = build(collective, algorithm, WORLD, root=root)
    passed = []
    for what, mutant in mutants(program):
        report = verify(mutant)
        if report.ok:
            passed.append(what)
            by_reference: list[Staging] = ["rendezvous"] if report.single_copy is None else []
            assert runs_right(mutant, ["buffered", *by_reference]), what
    # Two sends may change places, a copy or a write may be done twice. No other change is harmless.
    assert all(what.endswith(("swapped", "doubled")) for what in passed), passed
