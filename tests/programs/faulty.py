"""Programs with a fault that no single changed step makes, and the same without the fault."""

from __future__ import annotations

from hybridcomm.programs import build
from hybridcomm.programs.ir import (
    IN,
    OUT,
    TMP,
    Program,
    Step,
    copy,
    read_reduce,
    recv,
    recv_reduce,
    recv_reduce_copy_send,
    recv_reduce_send,
    send,
    signal,
    wait,
    write,
)
from hybridcomm.programs.layout import Collective
from tests.programs.editing import everywhere, with_lanes, written_out


def all_receive_first() -> Program:
    program = build("all_gather", "direct", 3)
    return everywhere(program, lambda rank, steps: steps.append(steps.pop(0)))


def own_contribution_twice() -> Program:
    return written_out(
        Collective.ALL_REDUCE,
        [
            send(1, IN[0]),
            recv_reduce_copy_send(1, 1, IN[0], OUT[0], finish=True),
            recv(1, OUT[1]),
        ],
        [
            recv_reduce_send(0, 0, IN[0]),
            recv(0, OUT[0]),
            copy(IN[1], OUT[1]),
            send(0, OUT[1]),
        ],
    )


def received_but_not_reduced() -> Program:
    return written_out(
        Collective.ALL_REDUCE,
        [
            recv(1, TMP[0]),
            copy(IN[0], OUT[0]),
            send(1, OUT[0]),
            send(1, IN[1]),
            recv(1, OUT[1]),
        ],
        [
            send(0, IN[0]),
            recv(0, OUT[0]),
            recv_reduce_copy_send(0, 0, IN[1], OUT[1], finish=True),
        ],
        n_tmp=1,
    )


def one_shot_mapped() -> Program:
    """Each rank reads all inputs and writes its own output: in place, over what peers read."""

    def steps(rank: int) -> list[Step]:
        others = [peer for peer in range(3) if peer != rank]
        reads = [read_reduce(others, IN[j], IN[j], OUT[j], finish=True) for j in range(3)]
        return [signal(others), wait(others), *reads, signal(others), wait(others)]

    return written_out(Collective.ALL_REDUCE, *map(steps, range(3)), deterministic=True)


def pull(*, middle: bool = True, last: bool = True) -> Program:
    """A mapped two-shot that reads the results instead of having them written."""

    def steps(rank: int) -> list[Step]:
        peer = 1 - rank
        meet = [signal(peer), wait(peer)]
        return [
            *meet,
            read_reduce(peer, IN[rank], IN[rank], OUT[rank], finish=True),
            *(meet if middle else []),
            read_reduce(peer, OUT[peer], None, OUT[peer]),
            *(meet if last else []),
        ]

    return written_out(Collective.ALL_REDUCE, *map(steps, range(2)), deterministic=True)


def gather_by_writing(*, first: bool = True, last: bool = True) -> Program:
    """Each rank writes its tensor into the peer's output."""

    def steps(rank: int) -> list[Step]:
        peer = 1 - rank
        return [
            *([signal(peer), wait(peer)] if first else []),
            copy(IN[0], OUT[rank]),
            write(peer, IN[0], OUT[rank]),
            *([signal(peer), wait(peer)] if last else []),
        ]

    return written_out(Collective.ALL_GATHER, *map(steps, range(2)), deterministic=True)


def two_write_one_chunk() -> Program:
    """Ranks 1 and 2 both write rank 0's out[0], in no order."""
    meet = [[signal(others), wait(others)] for others in ([1, 2], [0, 2], [0, 1])]
    return written_out(
        Collective.BROADCAST,
        [*meet[0], send([1, 2], IN[0]), *meet[0]],
        [*meet[1], recv(0, OUT[0]), write(0, OUT[0], OUT[0]), *meet[1]],
        [*meet[2], recv(0, OUT[0]), write(0, OUT[0], OUT[0]), *meet[2]],
        root=0,
        deterministic=True,
    )


def ordered_by_another_piece() -> Program:
    """Rank 1 reads piece 1 because it has received piece 0, which may be empty and not sent."""
    return written_out(
        Collective.ALL_REDUCE,
        [
            send(1, IN[0]),
            wait(1),
            read_reduce(1, IN[0], IN[0], OUT[0], finish=True),
            write(1, OUT[0], OUT[0]),
            signal(1),
            wait(1),
        ],
        [
            recv(0, TMP[0]),
            signal(0),
            read_reduce(0, IN[1], IN[1], OUT[1], finish=True),
            write(0, OUT[1], OUT[1]),
            signal(0),
            wait(0),
        ],
        n_tmp=2,
        deterministic=True,
    )


def each_in_its_own_order() -> Program:
    """Both ranks get all contributions, but nest them differently."""
    return written_out(
        Collective.ALL_REDUCE,
        [
            send([1, 2], IN[0]),
            recv_reduce([1, 2], IN[0], OUT[0], finish=True),
            send([1, 2], OUT[0]),
            send(1, IN[1]),
            recv(1, OUT[1]),
            send(2, IN[2]),
            recv(2, OUT[2]),
        ],
        [
            recv_reduce_send(0, 2, IN[0]),
            send(0, IN[0]),
            recv(0, OUT[0]),
            recv_reduce_copy_send([0, 2], [0, 2], IN[1], OUT[1], finish=True),
            send(2, IN[2]),
            recv(2, OUT[2]),
        ],
        [
            recv(0, TMP[0]),
            recv_reduce(1, IN[0], OUT[0], finish=True),
            send(0, IN[0]),
            recv(0, TMP[0]),
            send(1, IN[1]),
            recv(1, OUT[1]),
            recv_reduce_copy_send([0, 1], [0, 1], IN[2], OUT[2], finish=True),
        ],
        n_tmp=1,
    )


def second_channel_writes_the_first_ones_piece() -> Program:
    program = build("all_gather", "direct", 2, channels=2)
    lane = (*program.lane(0, 1), copy(IN[0], OUT[0]))
    return with_lanes(program, {(0, 1): lane})
