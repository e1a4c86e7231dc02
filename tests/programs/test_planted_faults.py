"""Each fault the verifier knows is planted once at least, and found by name and place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from hybridcomm.programs import ProgramFaultError, build, verify
from hybridcomm.programs.faults import FaultName
from hybridcomm.programs.ir import (
    IN,
    OUT,
    TMP,
    Op,
    Program,
    Step,
    copy,
    read_reduce,
    recv,
    recv_copy_send,
    recv_reduce,
    recv_reduce_copy_send,
    recv_reduce_send,
    send,
    signal,
    wait,
    write,
)
from hybridcomm.programs.layout import Collective
from tests.programs.editing import edited, everywhere, written_out
from tests.programs.faulty import (
    all_receive_first,
    each_in_its_own_order,
    gather_by_writing,
    one_shot_mapped,
    ordered_by_another_piece,
    own_contribution_twice,
    pull,
    received_but_not_reduced,
    second_channel_writes_the_first_ones_piece,
    two_write_one_chunk,
)


class Planted(NamedTuple):
    """A faulty program and what must be said of it."""

    name: FaultName
    rank: int
    step: int | None
    program: Callable[[], Program]
    channel: int | None = 0


def ring() -> Program:
    return build("all_reduce", "ring", 4)


def two_shot() -> Program:
    return build("all_reduce", "two_shot", 3)


def mapped() -> Program:
    return build("all_reduce", "two_shot_mapped", 3)


def replaced(program: Program, rank: int, index: int, step: Step) -> Program:
    def edit(steps: list[Step]) -> None:
        steps[index] = step

    return edited(program, rank, edit)


def changed(program: Program, rank: int, index: int, **fields: object) -> Program:
    step = tuple(program.lane(rank, 0))[index]
    return replaced(program, rank, index, step._replace(**fields))  # type: ignore[arg-type]


def dropped(program: Program, rank: int, *indices: int) -> Program:
    def edit(steps: list[Step]) -> None:
        for index in sorted(indices, reverse=True):
            del steps[index]

    return edited(program, rank, edit)


def appended(program: Program, rank: int, *steps: Step) -> Program:
    return edited(program, rank, lambda lane: lane.extend(steps))


PLANTED = {
    # One step by itself.
    "no source": Planted(FaultName.MALFORMED_STEP, 1, 0, lambda: changed(ring(), 1, 0, src=None)),
    "finish on a send": Planted(
        FaultName.MALFORMED_STEP, 1, 0, lambda: changed(ring(), 1, 0, finish=True)
    ),
    "send to itself": Planted(FaultName.SELF_PEER, 1, 0, lambda: changed(ring(), 1, 0, to=(1,))),
    "no such peer": Planted(
        FaultName.PEER_OUT_OF_RANGE, 2, 0, lambda: changed(ring(), 2, 0, to=(4,))
    ),
    "one peer twice": Planted(
        FaultName.DUPLICATE_PEER, 0, 2, lambda: changed(two_shot(), 0, 2, to=(1, 1))
    ),
    "operands out of rank order": Planted(
        FaultName.UNSORTED_PEERS, 0, 2, lambda: changed(two_shot(), 0, 2, frm=(2, 1))
    ),
    "no such chunk": Planted(
        FaultName.CHUNK_OUT_OF_RANGE, 3, 0, lambda: changed(ring(), 3, 0, src=IN[4])
    ),
    "no temporaries declared": Planted(
        FaultName.CHUNK_OUT_OF_RANGE, 3, 6, lambda: changed(ring(), 3, 6, dst=TMP[0])
    ),
    "receives into the input": Planted(
        FaultName.WRITES_INPUT, 3, 6, lambda: changed(ring(), 3, 6, dst=IN[0])
    ),
    "copies one piece into another": Planted(
        FaultName.LENGTH_MISMATCH, 0, 7, lambda: appended(ring(), 0, copy(OUT[1], OUT[2]))
    ),
    "only the root has an output": Planted(
        FaultName.NOT_THE_ROOT,
        2,
        1,
        lambda: appended(build("reduce", "direct", 3, root=1), 2, copy(IN[0], OUT[0])),
    ),
    "only the root has inputs": Planted(
        FaultName.NOT_THE_ROOT,
        2,
        0,
        lambda: replaced(build("scatter", "direct", 3, root=1), 2, 0, copy(IN[2], OUT[0])),
    ),
    "reads inputs that a peer has not": Planted(
        FaultName.NOT_THE_ROOT,
        2,
        0,
        lambda: replaced(
            build("scatter", "direct", 3, root=1), 2, 0, read_reduce(0, IN[2], None, OUT[0])
        ),
    ),
    "writes an output that a peer has not": Planted(
        FaultName.NOT_THE_ROOT,
        2,
        1,
        lambda: appended(build("gather", "direct", 3, root=1), 2, write(0, IN[0], OUT[2])),
    ),
    "copies what is for another rank": Planted(
        FaultName.LENGTH_MISMATCH,
        1,
        0,
        lambda: changed(build("all_to_all", "pairwise", 3), 1, 0, src=IN[2]),
    ),
    "keeps another rank's piece": Planted(
        FaultName.LENGTH_MISMATCH,
        2,
        1,
        lambda: replaced(
            build("reduce_scatter", "ring", 3), 2, 1, recv_reduce(1, IN[1], OUT[0], finish=True)
        ),
    ),
    # Messages.
    "sends what is for another rank": Planted(
        FaultName.LENGTH_MISMATCH,
        1,
        0,
        lambda: changed(build("scatter", "direct", 3, root=0), 0, 0, src=IN[2], to=(1,)),
    ),
    "dropped send": Planted(FaultName.LENGTH_MISMATCH, 1, 2, lambda: dropped(two_shot(), 0, 0)),
    "dropped receive": Planted(FaultName.UNMATCHED_SEND, 2, 2, lambda: dropped(two_shot(), 0, 4)),
    "dropped broadcast send": Planted(
        FaultName.UNMATCHED_RECV,
        1,
        0,
        lambda: dropped(build("broadcast", "direct", 3, root=0), 0, 0),
    ),
    "send to the wrong rank": Planted(
        FaultName.LENGTH_MISMATCH, 2, 1, lambda: changed(ring(), 1, 0, to=(3,))
    ),
    "receive from the wrong rank": Planted(
        FaultName.UNMATCHED_RECV,
        3,
        0,
        lambda: replaced(build("broadcast", "binomial", 4, root=0), 3, 0, recv(1, OUT[0])),
    ),
    "one send too many": Planted(
        FaultName.UNMATCHED_SEND, 2, 7, lambda: appended(ring(), 2, send(3, OUT[0]))
    ),
    "one wait too many": Planted(
        FaultName.UNMATCHED_RECV,
        0,
        4,
        lambda: appended(build("barrier", "dissemination", 4), 0, wait(1)),
    ),
    "signal taken as data": Planted(
        FaultName.KIND_MISMATCH,
        1,
        0,
        lambda: replaced(build("broadcast", "direct", 2, root=0), 0, 0, signal(1)),
    ),
    "all receive before they send": Planted(FaultName.DEADLOCK, 0, 1, all_receive_first),
    "fewer slots than it takes": Planted(
        FaultName.WRONG_MIN_SLOTS, 0, 1, lambda: replace(ring(), min_slots=1)
    ),
    "more slots than it takes": Planted(
        FaultName.WRONG_MIN_SLOTS, 0, None, lambda: replace(ring(), min_slots=3)
    ),
    # Values.
    "sends what it has not got": Planted(
        FaultName.READ_BEFORE_WRITTEN,
        1,
        0,
        lambda: changed(build("all_gather", "ring", 3), 1, 0, src=OUT[1]),
    ),
    "its own contribution twice": Planted(
        FaultName.DOUBLED_CONTRIBUTION, 0, 1, own_contribution_twice
    ),
    "a contribution is not added": Planted(
        FaultName.MISSING_CONTRIBUTION,
        0,
        None,
        received_but_not_reduced,
    ),
    "an output is not written": Planted(
        FaultName.MISSING_CONTRIBUTION,
        1,
        None,
        lambda: dropped(build("all_gather", "direct", 3), 1, 1),
    ),
    "another rank's tensor": Planted(
        FaultName.WRONG_CONTRIBUTION,
        0,
        None,
        lambda: replace(build("broadcast", "direct", 3, root=1), root=2),
    ),
    "never finished": Planted(
        FaultName.MISSING_FINISH, 0, None, lambda: changed(ring(), 2, 3, finish=False)
    ),
    "finished before the last reduction": Planted(
        FaultName.EARLY_FINISH,
        2,
        3,
        lambda: changed(changed(ring(), 1, 2, finish=True), 2, 3, finish=False),
    ),
    "finished twice": Planted(
        FaultName.DOUBLE_FINISH, 2, 3, lambda: changed(ring(), 1, 2, finish=True)
    ),
    "input read after the output is written": Planted(
        FaultName.IN_PLACE_HAZARD,
        0,
        7,
        lambda: replace(appended(ring(), 0, copy(IN[1], TMP[1])), n_tmp=4),
    ),
    "its part read after the result is written": Planted(
        FaultName.IN_PLACE_HAZARD,
        0,
        3,
        lambda: replace(
            appended(build("reduce_scatter", "direct", 3), 0, copy(IN[0], TMP[0])), n_tmp=3
        ),
    ),
    "the root gathers all but one": Planted(
        FaultName.MISSING_CONTRIBUTION,
        1,
        None,
        lambda: dropped(build("gather", "direct", 3, root=1), 1, 0),
    ),
    "reduced without one": Planted(
        FaultName.MISSING_CONTRIBUTION,
        0,
        None,
        lambda: changed(dropped(build("reduce", "direct", 3, root=0), 2, 0), 0, 0, frm=(1,)),
    ),
    "ranks nest differently": Planted(FaultName.RANKS_DISAGREE, 2, None, each_in_its_own_order),
    # Order between lanes.
    "result read before it is there": Planted(
        FaultName.READ_BEFORE_FINAL, 0, 3, lambda: pull(middle=False)
    ),
    "input read before the call": Planted(
        FaultName.READ_BEFORE_FINAL,
        0,
        0,
        lambda: everywhere(mapped(), lambda rank, steps: steps.__delitem__(slice(0, 2))),
    ),
    "ordered by a message that may be empty": Planted(
        FaultName.READ_BEFORE_FINAL, 1, 2, ordered_by_another_piece
    ),
    "overwritten while a peer reads": Planted(
        FaultName.OVERWRITTEN_WHILE_READ, 0, 2, one_shot_mapped
    ),
    "two ranks write at once": Planted(FaultName.WRITTEN_TWICE_AT_ONCE, 2, 3, two_write_one_chunk),
    "written before the call": Planted(
        FaultName.WRITTEN_BEFORE_ENTRY, 0, 1, lambda: gather_by_writing(first=False)
    ),
    "returned while a peer reads": Planted(
        FaultName.RETURNED_WHILE_READ, 0, 5, lambda: pull(last=False)
    ),
    "returned before a peer has written": Planted(
        FaultName.RETURNED_BEFORE_WRITTEN,
        0,
        3,
        lambda: gather_by_writing(last=False),
    ),
    "two channels on one chunk": Planted(
        FaultName.CROSS_CHANNEL_RACE, 0, 3, second_channel_writes_the_first_ones_piece, channel=1
    ),
    "a barrier one round short": Planted(
        FaultName.BARRIER_LEAK,
        0,
        None,
        lambda: everywhere(
            build("barrier", "dissemination", 4),
            lambda rank, steps: steps.__delitem__(slice(2, 4)),
        ),
        channel=None,
    ),
    # Declarations.
    "not a rotation": Planted(
        FaultName.WRONG_SYMMETRY,
        2,
        3,
        lambda: edited(two_shot(), 2, lambda s: s.insert(3, s.pop())),
    ),
    "not in rank order": Planted(
        FaultName.WRONG_DETERMINISTIC,
        0,
        None,
        lambda: replace(ring(), deterministic=True),
        channel=None,
    ),
    "nested and called deterministic": Planted(
        FaultName.WRONG_DETERMINISTIC,
        0,
        None,
        lambda: replace(build("reduce", "binomial", 4, root=3), deterministic=True),
        channel=None,
    ),
    "deterministic and not said so": Planted(
        FaultName.WRONG_DETERMINISTIC,
        0,
        None,
        lambda: replace(two_shot(), deterministic=False),
        channel=None,
    ),
}


@pytest.mark.parametrize("what", PLANTED)
def test_is_found_by_name_and_place(what: str) -> None:
    planted = PLANTED[what]
    report = verify(planted.program())
    assert report.faults, "not found"
    fault = report.faults[0]
    assert (fault.name, fault.rank, fault.channel, fault.step) == (
        planted.name,
        planted.rank,
        planted.channel,
        planted.step,
    ), str(report)
    assert str(fault).startswith(f"{planted.name.value}: rank {planted.rank}")
    with pytest.raises(ProgramFaultError, match=planted.name.value):
        report.raise_if_faulty()


def test_every_fault_has_been_planted() -> None:
    assert {planted.name for planted in PLANTED.values()} == set(FaultName)


@pytest.mark.parametrize("program", [pull(), gather_by_writing()])
def test_the_same_without_the_fault(program: Program) -> None:
    report = verify(program)
    assert report.ok, str(report)


def test_deadlock_names_the_cycle() -> None:
    (fault,) = verify(all_receive_first()).faults
    assert fault.cycle == ((0, 0, 1), (2, 0, 1), (1, 0, 1))
    assert "rank 0 at step 1 (`recv from 2 dst out[2]`)" in fault.sentence


def test_too_few_slots_names_the_cycle() -> None:
    (fault,) = verify(replace(ring(), min_slots=1)).faults
    assert [rank for rank, _, _ in fault.cycle] in ([0, 3, 2, 1], [0, 1, 2, 3])
    assert "it takes 2" in fault.sentence


def test_single_copy_hazard_is_reported_but_no_fault() -> None:
    """Rank 0 sends out[0] and writes it again before rank 1 is sure to have taken it."""
    program = written_out(
        Collective.BROADCAST,
        [copy(IN[0], OUT[0]), send(1, OUT[0]), recv(1, OUT[0])],
        [send(0, OUT[0]), recv(0, OUT[0])],
        root=0,
        deterministic=True,
    )
    assert verify(program).faults[0].name is FaultName.READ_BEFORE_WRITTEN
    program = written_out(
        Collective.BROADCAST,
        [copy(IN[0], OUT[0]), send(1, OUT[0]), copy(IN[0], OUT[0])],
        [recv(0, OUT[0])],
        root=0,
        deterministic=True,
    )
    report = verify(program)
    assert report.ok, str(report)
    assert report.single_copy is not None
    assert "rank 0 channel 0 step 2" in report.single_copy


def test_verbs_make_the_operations_they_are_named_after() -> None:
    steps = [
        send(1, IN[0]),
        recv(1, OUT[0]),
        copy(IN[0], OUT[0]),
        recv_reduce(1, IN[0], OUT[0]),
        recv_copy_send(1, 2, OUT[0]),
        recv_reduce_send(1, 2, IN[0]),
        recv_reduce_copy_send(1, 2, IN[0], OUT[0]),
        read_reduce(1, IN[0], None, OUT[0]),
        write(1, OUT[0], OUT[0]),
        signal(1),
        wait(1),
    ]
    assert [step.op for step in steps] == list(Op)
