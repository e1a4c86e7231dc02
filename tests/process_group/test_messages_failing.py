"""Messages that cannot be: what is said, to whom, how soon, and what still works afterwards."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.process_group.begun import begun, wait_all
from tests.support import leftovers
from tests.support.caught import Caught, caught
from tests.support.ranks import RankPool
from tests.support.worker import rank_of_call, regroup, report

# A time-out may be this much off.
_SLACK = 0.1
_BIG = 1 << 22  # elements that no number of slots holds


# ---- wrong arguments ----------------------------------------------------------------------------


def _to_oneself(world: int) -> list[Caught]:
    rank = dist.get_rank()
    calls: list[Callable[[], object]] = [
        lambda: dist.send(torch.ones(1), rank),
        lambda: dist.isend(torch.ones(1), rank),
        lambda: dist.recv(torch.ones(1), rank),
        lambda: dist.irecv(torch.ones(1), rank),
    ]
    if world == 1:
        calls.append(lambda: dist.recv(torch.ones(1)))
    errors = [caught(call) for call in calls]
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == world
    return errors


@pytest.mark.parametrize("world", [1, 2])
def test_a_message_to_oneself_is_refused(ours: RankPool, world: int) -> None:
    """Also where there is nobody else (pytorch#83912)."""
    for rank, errors in enumerate(ours.run(world, _to_oneself, world, timeout=20)):
        for error in errors:
            assert "ValueError" in error.classes, error
            assert error.seconds < 1
            assert "rank" in error.message.lower()
        if world == 1:
            assert "no other rank" in errors[-1].message
        assert f"rank {rank}" in errors[1].message.lower()


def _of_nobody() -> list[Caught]:
    group = dist.group.WORLD
    assert group is not None
    freed = torch.ones(100)
    freed.untyped_storage().resize_(0)
    return [
        caught(lambda: group.send([torch.ones(1)], 7, 0)),
        caught(lambda: group.recv([torch.ones(1)], -3, 0)),
        caught(lambda: group.send([torch.ones(1)], 1 - dist.get_rank(), -1)),
        caught(lambda: group.recv([torch.ones(1).expand(4)], 1 - dist.get_rank(), 0)),
        caught(lambda: group.send([freed], 1 - dist.get_rank(), 0)),
        caught(lambda: group.send([torch.ones(1), torch.ones(1)], 1 - dist.get_rank(), 0)),
    ]


def test_wrong_arguments_are_named(ours: RankPool) -> None:
    words = [
        ("send", "dst", "rank 7", "0 to 1"),
        ("recv", "src", "rank -3", "0 to 1"),
        ("send", "tag", "-1"),
        ("recv", "tensor", "memory"),
        ("send", "tensor", "freed"),
        ("send", "tensors", "2"),
    ]
    for rank, errors in enumerate(ours.run(2, _of_nobody, timeout=20)):
        for error, expected in zip(errors, words, strict=True):
            assert "ValueError" in error.classes, error
            for word in (*expected, f"rank {rank}"):
                assert word in error.message, (word, error.message)


def _differing(sent: torch.Tensor, received: torch.Tensor, joined: bool) -> tuple[Caught, float]:
    """A message that its receive does not fit; then both go on in a new group."""
    rank = dist.get_rank()
    if joined:
        token = torch.ones(1)
        _ = dist.send(token, 1 - rank) if rank == 0 else dist.recv(token, 1 - rank)

    def differ() -> None:
        if rank == 0:
            dist.send(sent, 1, tag=4)
            dist.recv(torch.ones(1), 1)  # what was sent may be in the slots before anybody looks
        else:
            dist.recv(received, 0, tag=4)

    error = caught(differ)
    group = dist.group.WORLD
    assert group is not None
    group.abort()
    regroup(range(2), "after the mismatch")
    total = torch.ones(1)
    dist.all_reduce(total)
    return error, total.item()


@pytest.mark.parametrize("joined", [False, True], ids=["first", "later"])
@pytest.mark.parametrize(
    ("sent", "received", "words"),
    [
        (torch.ones(6), torch.ones(5), ("6 float32", "5 float32")),
        (torch.ones(6), torch.ones(0), ("6 float32", "0 float32")),
        (torch.ones(_BIG), torch.ones(5), (f"{_BIG} float32", "5 float32")),
        (torch.ones(6), torch.ones(6, dtype=torch.int32), ("6 float32", "6 int32")),
        (torch.ones(3, dtype=torch.float64), torch.ones(6), ("3 float64", "6 float32")),
    ],
    ids=["fewer", "none", "far fewer", "dtype", "as many bytes"],
)
def test_a_message_that_its_receive_does_not_fit(
    ours: RankPool,
    sent: torch.Tensor,
    received: torch.Tensor,
    words: tuple[str, str],
    joined: bool,
) -> None:
    results = ours.run(2, _differing, sent, received, joined, timeout=20, group_timeout=15)
    for rank, (error, total) in enumerate(results):
        assert "MismatchError" in error.classes, error.message
        assert (error.rank, error.peer) == (rank, 1 - rank)
        assert error.seconds < 5
        assert total == 2
    receiver = results[1][0]
    for word in (*words, "rank 0", "rank 1", "tag 4"):
        assert word in receiver.message, (word, receiver.message)


# ---- time-outs ----------------------------------------------------------------------------------


def _store_wait(names: Sequence[str]) -> None:
    dist.distributed_c10d._get_default_store().wait([*names], timedelta(seconds=30))


def _store_set(name: str) -> None:
    dist.distributed_c10d._get_default_store().set(name, "")


def _recv() -> None:
    dist.recv(torch.ones(1000), 1, tag=6)


def _irecv() -> None:
    begun(dist.irecv(torch.ones(1000), 1, tag=6)).wait()


def _recv_any() -> None:
    dist.recv(torch.ones(1000), tag=6)


def _send_big() -> None:
    dist.send(torch.ones(_BIG), 1, tag=6)


_CALLS = {"recv": _recv, "irecv": _irecv, "recv from any": _recv_any, "send": _send_big}


def _nobody_answers(name: str, joined: bool, collectives_first: bool) -> Caught | None:
    """Rank 1 never sends and never receives."""
    rank = dist.get_rank()
    if collectives_first:
        dist.all_reduce(torch.ones(1))
    if joined:
        token = torch.ones(1)
        if rank == 0:
            dist.send(token, 1)
            dist.recv(token, 1)
        else:
            dist.recv(token, 0)
            dist.send(token, 0)
    if rank == 1:
        _store_wait(["done"])
        return None
    try:
        return caught(_CALLS[name])
    finally:
        _store_set("done")


@pytest.mark.parametrize("joined", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("name", _CALLS)
def test_a_rank_that_never_answers_is_named(ours: RankPool, name: str, joined: bool) -> None:
    """After 2 s, within a tenth, with both ranks, the operation and its number (gloo#511)."""
    error = ours.run(2, _nobody_answers, name, joined, joined, timeout=20, group_timeout=2)[0]
    assert error is not None
    assert "CommTimeoutError" in error.classes, error.message
    assert 2 * (1 - _SLACK) <= error.seconds <= 2 * (1 + _SLACK), error
    operation = "send" if name == "send" else "recv"
    assert error.operation == operation
    assert error.rank == 0
    number = 3 if joined else 1  # of the messages of this rank
    assert error.sequence == number, error.message
    for word in ("rank 0", "rank 1", f"{operation} #{number}", "2000 ms", "tag 6"):
        assert word in error.message, (word, error.message)
    assert error.peer == (None if name == "recv from any" else 1)


def _wait_with_a_limit(seconds: float) -> tuple[Caught | None, list[float]]:
    """A wait that gives up leaves the receive as it is."""
    message = torch.zeros(3)
    if dist.get_rank() == 1:
        _store_wait(["gave up"])
        dist.send(torch.arange(3.0), 0)
        return None, []
    work = begun(dist.irecv(message, 1))
    error = caught(lambda: work.wait(timedelta(seconds=seconds)))
    _store_set("gave up")
    work.wait()
    return error, message.tolist()


def test_a_wait_that_gives_up_leaves_the_receive_alone(ours: RankPool) -> None:
    error, message = ours.run(2, _wait_with_a_limit, 1.0, timeout=20)[0]
    assert error is not None
    assert "CommTimeoutError" in error.classes, error.message
    assert 1 - _SLACK <= error.seconds <= 1 + _SLACK
    assert error.peer == 1
    assert message == [0, 1, 2]


def _withdrawn(any_source: bool) -> tuple[float, list[int], list[int]]:
    """After a receive that timed out: messages of every kind, collectives, and its own tag."""
    rank = dist.get_rank()
    received = []
    if rank == 0:
        late = torch.zeros(2, dtype=torch.int64)
        error = caught(lambda: dist.recv(late, None if any_source else 1, tag=6))
        assert "CommTimeoutError" in error.classes, error.message
        _store_set("timed out")
    else:
        _store_wait(["timed out"])
    total = torch.ones(10)
    dist.all_reduce(total)
    for number in range(3):
        message = torch.full((2,), number)
        if rank == 1:
            dist.send(message, 0, tag=6 if number == 1 else 5)
        elif rank == 0:
            message.zero_()
            dist.recv(message, 1, tag=6 if number == 1 else 5)
            received.append(int(message[0]))
    return total[0].item(), received, late.tolist() if rank == 0 else []


@pytest.mark.parametrize("any_source", [False, True])
def test_a_withdrawn_receive_leaves_the_group_usable(ours: RankPool, any_source: bool) -> None:
    """And takes no later message with its tag, nor writes to its memory."""
    results = ours.run(3, _withdrawn, any_source, timeout=20, group_timeout=1)
    assert [total for total, _, _ in results] == [3.0] * 3
    assert results[0][1:] == ([0, 1, 2], [0, 0])


# ---- deaths -------------------------------------------------------------------------------------


def _ring_of_small() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    message = torch.ones(4)
    wait_all(
        [dist.isend(torch.ones(4), (rank + 1) % world), dist.irecv(message, (rank - 1) % world)]
    )


def _ring_of_big() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    message = torch.ones(_BIG // 4)
    sent = torch.ones(_BIG // 4)
    wait_all([dist.isend(sent, (rank + 1) % world), dist.irecv(message, (rank - 1) % world)])


def _chain() -> None:
    """Each rank waits for the one below, which waits for the one below ... and all the way back."""
    rank, world = dist.get_rank(), dist.get_world_size()
    message = torch.ones(5000)
    if rank > 0:
        dist.recv(message, rank - 1)
    if rank < world - 1:
        dist.send(message, rank + 1)
        dist.recv(message, rank + 1)
    if rank > 0:
        dist.send(message, rank - 1)


def _to_whoever_comes() -> None:
    """Rank 0 receives from anyone and answers."""
    rank, world = dist.get_rank(), dist.get_world_size()
    message = torch.ones(100)
    for _ in range(world - 1):
        if rank == 0:
            source = dist.recv(message)
            dist.send(message, source)
    if rank > 0:
        dist.send(message, 0)
        dist.recv(message, 0)


def _beside_a_collective() -> None:
    """A message in flight while all wait in a collective; the first of the two to fail is told."""
    rank, world = dist.get_rank(), dist.get_world_size()
    receive = dist.irecv(torch.ones(10), (rank - 1) % world)
    dist.all_reduce(torch.ones(1000))
    dist.send(torch.ones(10), (rank + 1) % world)
    begun(receive).wait()


_LOADS: dict[str, Callable[[], None]] = {
    "ring of small": _ring_of_small,
    "ring of big": _ring_of_big,
    "chain": _chain,
    "any source": _to_whoever_comes,
    "beside a collective": _beside_a_collective,
}
_WORLD = 4


def _lose_a_rank(load: str, joined: bool) -> tuple[Caught, float, int, int]:
    rank = rank_of_call()
    regroup(range(_WORLD), "first")
    _LOADS[load]()
    dist.destroy_process_group()
    before = leftovers.footprint()
    regroup(range(_WORLD), "all")
    if joined:
        _LOADS[load]()
    report("working")

    def work() -> None:
        while True:
            _LOADS[load]()

    error = caught(work)
    group = dist.group.WORLD
    assert group is not None
    group.abort()
    del group
    regroup([member for member in range(_WORLD) if member != error.peer], "survivors")
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    _ring_of_small()
    dist.destroy_process_group()
    after = leftovers.settled_footprint(before)
    return (
        error,
        total.item(),
        after.descriptors - before.descriptors,
        after.shared_bytes - before.shared_bytes,
    )


@pytest.mark.parametrize("trial", range(3))
@pytest.mark.parametrize("load", _LOADS)
def test_a_death_among_messages_is_told_to_all(ours: RankPool, load: str, trial: int) -> None:
    """All survivors name the rank that died, also those who had nothing to do with it."""
    chance = random.Random(f"{load} {trial}")
    victim = chance.randrange(_WORLD)
    call = ours.start(_WORLD, _lose_a_rank, load, trial > 0, group=False, group_timeout=20)
    for _ in range(_WORLD):
        call.next_report()
    time.sleep(chance.uniform(0, 0.05))
    killed_at = call.kill(victim)
    outcomes = call.outcomes(timeout=15)
    assert outcomes[victim].status == -signal.SIGKILL
    survivors = [rank for rank in range(_WORLD) if rank != victim]
    for rank in survivors:
        assert outcomes[rank].value is not None, outcomes[rank].failure
        error, total, descriptors, shared_bytes = outcomes[rank].value
        assert "PeerLostError" in error.classes, error.message
        assert (error.rank, error.peer) == (rank, victim), error.message
        assert f"rank {victim}" in error.message
        assert error.raised_at - killed_at < 1.0, error
        assert total == sum(survivors)
        assert (descriptors, shared_bytes) == (0, 0)


def _sent_before_it_died() -> tuple[list[float], Caught]:
    message = torch.zeros(3)
    if dist.get_rank() == 0:
        wait_all([dist.isend(torch.full((3,), float(tag)), 1, tag=tag) for tag in range(3)])
        signal.raise_signal(signal.SIGKILL)
    received = []
    for tag in (0, 1, 2):
        dist.recv(message, 0, tag=tag)
        received.append(message[0].item())
        time.sleep(0.05)
    return received, caught(lambda: dist.recv(message, 0))


def test_what_a_rank_sent_before_it_died_arrives(ours: RankPool) -> None:
    outcome = ours.start(2, _sent_before_it_died, group_timeout=10).outcomes(20)[1]
    assert outcome.value is not None, outcome.failure
    received, error = outcome.value
    assert received == [0, 1, 2]
    assert "PeerLostError" in error.classes, error.message
    assert error.peer == 0
    assert error.seconds < 1
