"""Programs with a fault planted: other steps in one lane, or other declarations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hybridcomm.programs.ir import Program, Step
from hybridcomm.programs.layout import Collective, Layout, collective_named

LaneId = tuple[int, int]


def is_rooted(collective: str) -> bool:
    """Whether a collective has a root."""
    return Layout(collective_named(collective), 1, 1).rooted


def edited(program: Program, rank: int, edit: Callable[[list[Step]], None]) -> Program:
    """The program with rank's steps on channel 0 changed in place by ``edit``."""
    steps = list(program.lane(rank, 0))
    edit(steps)
    return with_lanes(program, {(rank, 0): steps})


def with_lanes(program: Program, lanes: Mapping[LaneId, Sequence[Step]]) -> Program:
    """The program with these lanes in place of its own."""

    def lane(rank: int, channel: int) -> Sequence[Step]:
        given = lanes.get((rank, channel))
        return tuple(program.lane(rank, channel)) if given is None else given

    return replace(program, lane=lane)


def everywhere(program: Program, edit: Callable[[int, list[Step]], None]) -> Program:
    """The program with every rank's steps on channel 0 changed in place by ``edit``."""
    lanes = {}
    for rank in range(program.world):
        steps = list(program.lane(rank, 0))
        edit(rank, steps)
        lanes[rank, 0] = steps
    return with_lanes(program, lanes)


def written_out(
    collective: Collective,
    *ranks: Sequence[Step],
    root: int | None = None,
    n_tmp: int = 0,
    min_slots: int = 1,
    deterministic: bool = False,
) -> Program:
    """A program of one channel, written out rank by rank."""
    return Program(
        collective=collective,
        algorithm="written_out",
        world=len(ranks),
        root=root,
        n_tmp=n_tmp,
        min_slots=min_slots,
        deterministic=deterministic,
        lane=lambda rank, channel: ranks[rank],
    )
