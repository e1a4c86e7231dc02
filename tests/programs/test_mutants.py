"""Every small change to a program is either found or harmless, and harmless is put to the test.

All algorithms, every step of every rank: left out, doubled, swapped with the next, another peer,
another chunk, ``finish`` toggled. A mutant that the verifier lets pass must run on the reference
executor, in place and not, buffered and by reference, in several orders, with the right result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hybridcomm.programs import algorithms, build, collectives, verify
from hybridcomm.programs.ir import Program, Step
from hybridcomm.programs.layout import Chunk, Collective, Space
from hybridcomm.reference import random_order, run_program
from hybridcomm.reference.executor import Staging
from tests.programs.editing import is_rooted, with_lanes

SPREAD = (Collective.REDUCE_SCATTER, Collective.SCATTER, Collective.ALL_TO_ALL)
ALL = [(collective, name) for collective in collectives() for name in algorithms(collective)]


def other_steps(step: Step, rank: int, program: Program) -> Iterator[Step]:
    """The step with one field changed."""

    def changed(field: str, value: Any) -> Step:
        fields: dict[str, Any] = {field: value}
        return step._replace(**fields)

    for field in ("frm", "to"):
        peers = getattr(step, field)
        for place, peer in enumerate(peers):
            for other in {*range(program.world)} - {peer, rank}:
                yield changed(field, (*peers[:place], other, *peers[place + 1 :]))
        if len(peers) > 1:
            yield changed(field, peers[1:])
    counts = {Space.IN: program.n_in, Space.OUT: program.n_out, Space.TMP: program.n_tmp}
    for field in ("src", "dst", "remote"):
        chunk = getattr(step, field)
        if chunk is not None:
            for space, count in counts.items():
                for number in range(count):
                    if (space, number) != chunk:
                        yield changed(field, Chunk(space, number))
    if step.frm:
        yield step._replace(finish=not step.finish)


def memory(program: Program, rank: int, step: Step) -> Step:
    """The step, with in-place chunks named by the outputs on whose memory they lie."""

    def placed(chunk: Chunk | None) -> Chunk | None:
        return None if chunk is None else program.layout.in_place(rank, chunk)

    return step._replace(src=placed(step.src), dst=placed(step.dst))


def mutants(program: Program) -> Iterator[tuple[str, Program]]:
    for rank in range(program.world):
        steps = program.lanes(rank)[0]
        for at, step in enumerate(steps):
            before, after = steps[:at], steps[at + 1 :]
            changes = {"left out": (*before, *after), "doubled": (*before, step, step, *after)}
            if after:
                changes["swapped"] = (*before, after[0], step, *after[1:])
            for number, other in enumerate(other_steps(step, rank, program)):
                same = memory(program, rank, step) == memory(program, rank, other)
                what = f"changed {number} to `{other}`{' in the same memory' if same else ''}"
                changes[what] = (*before, other, *after)
            for what, lane in changes.items():
                mutant = with_lanes(program, {(rank, 0): lane})
                # Any change breaks the rotation; the question is what else it breaks.
                yield (
                    f"rank {rank} step {at} (`{step}`) {what}",
                    replace(mutant, symmetry="none"),
                )


def results(program: Program, inputs: Sequence[Tensor]) -> Sequence[Tensor] | None:
    """What each rank must have at the end."""
    together, root = torch.stack(list(inputs)), program.root or 0
    everywhere = {
        Collective.ALL_REDUCE: together.sum(0),
        Collective.BROADCAST: inputs[root],
        Collective.ALL_GATHER: together,
    }
    at_the_root = {Collective.REDUCE: together.sum(0), Collective.GATHER: together}
    apart = {
        Collective.REDUCE_SCATTER: together.sum(0),
        Collective.SCATTER: inputs[root],
        Collective.ALL_TO_ALL: together.transpose(0, 1),
    }
    kind = program.collective
    if kind in everywhere:
        return [everywhere[kind]] * program.world
    if kind in at_the_root:
        nothing = torch.empty(0, dtype=torch.float64)
        return [at_the_root[kind] if rank == root else nothing for rank in range(program.world)]
    return list(apart[kind]) if kind in apart else None


def runs_right(program: Program, stagings: Sequence[Staging]) -> bool:
    rows = (program.world,) if program.collective in SPREAD else ()
    inputs = [
        torch.arange(40.0 * math.prod(rows), dtype=torch.float64).view(*rows, 40) + 1000.0 * rank
        for rank in range(program.world)
    ]
    wanted = results(program, inputs)
    for seed in range(3):
        for staging in stagings:
            got = run_program(
                program,
                inputs,
                in_place=seed % 2 == 0,
                slots=program.min_slots + seed,
                slot_bytes=64,
                staging=staging,
                choose=random_order(seed),
            )
            if wanted is not None and not all(map(torch.equal, got, wanted)):
                return False
    return True


@pytest.mark.parametrize(("collective", "algorithm"), ALL)
def test_found_or_harmless(collective: str, algorithm: str) -> None:
    root = 1 if is_rooted(collective) else None
    # With three ranks nobody in a binomial tree passes on what it does not keep.
    world = 4 if algorithm == "binomial" else 3
    program = build(collective, algorithm, world, root=root)
    passed = []
    for what, mutant in mutants(program):
        report = verify(mutant)
        if report.ok:
            passed.append(what)
            by_reference: list[Staging] = ["rendezvous"] if report.single_copy is None else []
            assert runs_right(mutant, ["buffered", *by_reference]), what
    # Two sends may change places, a copy or a write may be done twice, and an input may be taken
    # from where it has been copied to. No other change is harmless.
    harmless = ("swapped", "doubled", "in the same memory")
    assert all(what.endswith(harmless) for what in passed), passed
