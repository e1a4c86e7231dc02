"""Messages: matched as MPI matches them, byte for byte, in any number, beside collectives."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.process_group.begun import begun, wait_all
from tests.support.ranks import RankPool
from tests.support.tensors import DTYPES, LAYOUTS, difference, place, shape_for, values


def _numbers(count: int, *key: int) -> Tensor:
    """Different ones for each key and element."""
    start = sum(part * 1009**place for place, part in enumerate(key))
    return torch.arange(start, start + count)


# ---- matching -----------------------------------------------------------------------------------


def _tags_out_of_order(count: int, synchronous: bool) -> list[int]:
    """Rank 0 sends tags 1, 2, 3, ..., which rank 1 receives from the last to the first."""
    tags = range(1, 6)
    wrong = []
    if dist.get_rank() == 0:
        if synchronous:
            for tag in tags:
                dist.send(_numbers(count, tag), 1, tag=tag)
        else:
            wait_all([dist.isend(_numbers(count, tag), 1, tag=tag) for tag in tags])
        return []
    for tag in reversed(tags):
        message = torch.zeros(count, dtype=torch.int64)
        assert dist.recv(message, 0, tag=tag) == 0
        if difference(message, _numbers(count, tag)):
            wrong.append(tag)
    return wrong


@pytest.mark.parametrize("synchronous", [False, True], ids=["isend", "send"])
@pytest.mark.parametrize("count", [1, 1000, 300_000])
def test_messages_are_matched_by_tag(pool: RankPool, count: int, synchronous: bool) -> None:
    """Sent with tag 1 then 2, received 2 then 1 (pytorch#94819); also when they fill the slots."""
    if pool.backend == "gloo" and synchronous:
        pytest.skip("Gloo's send waits for its receive")
    assert pool.run(2, _tags_out_of_order, count, synchronous, timeout=20) == [[], []]


def _one_tag(count: int) -> list[int]:
    messages = [_numbers(7 + number, number) for number in range(count)]
    if dist.get_rank() == 0:
        wait_all([dist.isend(message, 1, tag=3) for message in messages])
        return []
    received = [torch.zeros_like(message) for message in messages]
    wait_all([dist.irecv(message, 0, tag=3) for message in received])
    pairs = zip(received, messages, strict=True)
    return [number for number, (got, sent) in enumerate(pairs) if difference(got, sent)]


def test_messages_of_one_tag_do_not_overtake(pool: RankPool) -> None:
    assert pool.run(2, _one_tag, 300, timeout=20) == [[], []]


def _from_any(rounds: int) -> list[tuple[int, int]]:
    """Rank 0 receives from anyone; returns who sent (as told, and as written in the message)."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank != 0:
        chance = random.Random(rank)
        for number in range(rounds):
            time.sleep(chance.uniform(0, 0.002))
            dist.send(torch.tensor([rank, number]), 0, tag=5)
        return []
    senders = []
    messages = [torch.zeros(2, dtype=torch.int64) for _ in range(rounds * (world - 1))]
    for message in messages[::2]:
        senders.append((dist.recv(message, tag=5), int(message[0])))
    works = [begun(dist.irecv(message, tag=5)) for message in messages[1::2]]
    wait_all(works)
    for work, message in zip(works, messages[1::2], strict=True):
        senders.append((work._source_rank(), int(message[0])))
    # Each sender's messages in the order in which they were sent.
    for half in (messages[::2], messages[1::2]):
        for sender in range(1, world):
            own = [int(message[1]) for message in half if int(message[0]) == sender]
            assert own == sorted(own)
    every = sorted((int(message[0]), int(message[1])) for message in messages)
    assert every == [(sender, n) for sender in range(1, world) for n in range(rounds)]
    return senders


def test_a_receive_from_any_rank_tells_whom_it_heard(pool: RankPool) -> None:
    """Several senders at once: nothing lost, nothing twice, each sender's in order."""
    senders = pool.run(4, _from_any, 40, timeout=30)[0]
    assert len(senders) == 120
    assert all(told == written for told, written in senders)


def _any_beside_named() -> list[int]:
    """Two receives fit rank 1's message: the one that was posted first gets it."""
    rank = dist.get_rank()
    if rank != 0:
        dist.barrier()
        dist.send(torch.tensor([10 + rank]), 0, tag=1)
        return []
    first, second = torch.zeros(2, 1, dtype=torch.int64)
    named = begun(dist.irecv(first, 1, tag=1))
    anyone = begun(dist.irecv(second, tag=1))
    dist.barrier()
    named.wait()
    anyone.wait()
    return [int(first), int(second), anyone._source_rank()]


def test_a_receive_from_any_rank_takes_what_no_earlier_receive_takes(ours: RankPool) -> None:
    assert ours.run(3, _any_beside_named, timeout=20)[0] == [11, 12, 2]


# ---- contents -----------------------------------------------------------------------------------


def _every_layout(dtype_name: str, layouts: tuple[str, ...]) -> list[str]:
    """Sends each layout to the other rank, which receives it into each; and back."""
    rank, dtype = dist.get_rank(), DTYPES[dtype_name]
    wrong = []
    for count in (0, 1, 30, 35_000 // dtype.itemsize):
        for sent_as in layouts:
            for received_as in layouts:
                shape = shape_for(sent_as, count)
                sent = values(dtype, count, 5, rank).view(shape)
                expected = values(dtype, count, 5, 1 - rank).view(shape)
                to = place(received_as, values(dtype, count, 6, rank).view(shape))
                source = place(sent_as, sent)
                wait_all([dist.isend(source.view, 1 - rank), dist.irecv(to.view, 1 - rank)])
                what = (
                    difference(to.view, expected)
                    or to.damaged()
                    or source.damaged()
                    or difference(source.view, sent)
                )
                if what:
                    wrong.append(f"{count} {dtype_name} {sent_as} to {received_as}: {what}")
    return wrong


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_layout_arrives_byte_for_byte(pool: RankPool, dtype: str) -> None:
    """Also no elements at all, columns and transposes (pytorch#192920, #89197)."""
    if pool.backend == "gloo":
        pytest.skip("Gloo takes neither strided tensors nor all types")
    assert pool.run(2, _every_layout, dtype, LAYOUTS, timeout=40) == [[], []]


def _views_of_a_matrix() -> list[str]:
    """x[:, 0], x.T and x[::2], whatever the receiver's own layout is."""
    rank = dist.get_rank()
    matrix = _numbers(35, 1).view(5, 7)
    wrong = []
    for name, view in (("[:, 0]", matrix[:, 0]), (".T", matrix.T), ("[::2]", matrix[::2])):
        if rank == 0:
            dist.send(view, 1)
            continue
        received = torch.zeros(view.shape, dtype=torch.int64)
        dist.recv(received, 0)
        if not torch.equal(received, view):
            wrong.append(f"{name}: {received}")
    return wrong


def test_views_of_a_matrix_arrive_as_they_look(ours: RankPool) -> None:
    assert ours.run(2, _views_of_a_matrix, timeout=20) == [[], []]


def _both_ways(count: int) -> str | None:
    rank = dist.get_rank()
    received = torch.zeros(count, dtype=torch.int64)
    wait_all([dist.isend(_numbers(count, rank), 1 - rank), dist.irecv(received, 1 - rank)])
    return difference(received, _numbers(count, 1 - rank))


def test_big_messages_cross(pool: RankPool) -> None:
    """64 MiB each way at once, far more than the slots hold."""
    assert pool.run(2, _both_ways, 1 << 23, timeout=40) == [None, None]


# ---- many ---------------------------------------------------------------------------------------


def _many_in_flight(of_each_pair: int) -> list[str]:
    """Every rank to every other, several hundred at once, received in an order of its own."""
    rank, world = dist.get_rank(), dist.get_world_size()
    chance = random.Random(rank)
    peers = [peer for peer in range(world) if peer != rank]
    plan = [(peer, number) for peer in peers for number in range(of_each_pair)]

    def count(number: int) -> int:
        return (number * 379) % 5000

    sends = chance.sample(plan, len(plan))
    receives = chance.sample(plan, len(plan))
    works = []
    received = {}
    for (to, number), (source, awaited) in zip(sends, receives, strict=True):
        works.append(dist.isend(_numbers(count(number), rank, number), to, tag=number))
        received[source, awaited] = torch.zeros(count(awaited), dtype=torch.int64)
        works.append(dist.irecv(received[source, awaited], source, tag=awaited))
    chance.shuffle(works)
    wait_all(works)
    return [
        f"{source}, tag {number}: {what}"
        for (source, number), got in received.items()
        if (what := difference(got, _numbers(count(number), source, number)))
    ]


def test_hundreds_of_messages_in_flight(pool: RankPool) -> None:
    assert pool.run(4, _many_in_flight, 100, timeout=40) == [[]] * 4


def _exchange(neighbours: list[int], rounds: int) -> list[str]:
    """Batches with all neighbours; each message says who sent it to whom in which round."""
    rank = dist.get_rank()
    wrong = []
    for number in range(rounds):
        count = 1 + number * 997
        received = [torch.zeros(count, dtype=torch.int64) for _ in neighbours]
        operations = []
        for to, buffer in zip(neighbours, received, strict=True):
            operations.append(dist.P2POp(dist.isend, _numbers(count, rank, to, number), to))
            operations.append(dist.P2POp(dist.irecv, buffer, to))
        if (rank + number) % 2:
            operations.reverse()
        wait_all(dist.batch_isend_irecv(operations))
        for source, buffer in zip(neighbours, received, strict=True):
            if what := difference(buffer, _numbers(count, source, rank, number)):
                wrong.append(f"round {number}, from {source}: {what}")
    return wrong


def _ring() -> list[str]:
    rank, world = dist.get_rank(), dist.get_world_size()
    return _exchange(sorted({(rank - 1) % world, (rank + 1) % world}), 30)


def _grid(rows: int, columns: int) -> list[str]:
    rank = dist.get_rank()
    row, column = divmod(rank, columns)
    return _exchange(
        [
            r * columns + c
            for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
            if 0 <= r < rows and 0 <= c < columns
        ],
        30,
    )


@pytest.mark.parametrize("world", [2, 3, 5])
def test_a_ring_of_batches(pool: RankPool, world: int) -> None:
    assert pool.run(world, _ring, timeout=30) == [[]] * world


def test_a_grid_of_batches(pool: RankPool) -> None:
    assert pool.run(6, _grid, 2, 3, timeout=30) == [[]] * 6


def _threads(count: int, rounds: int) -> list[str]:
    """Threads of each rank send and receive at once, each with a tag of its own."""
    rank, world = dist.get_rank(), dist.get_world_size()
    wrong = []

    def work(tag: int) -> None:
        for number in range(rounds):
            for shift in range(1, world):
                to, source = (rank + shift) % world, (rank - shift) % world
                size = 1 + (number * 31 + tag * 1009) % 4000
                got = torch.zeros(size, dtype=torch.int64)
                receive = dist.irecv(got, source, tag=tag)
                dist.send(_numbers(size, rank, tag, number), to, tag=tag)
                begun(receive).wait()
                if what := difference(got, _numbers(size, source, tag, number)):
                    wrong.append(f"tag {tag}, round {number}, from {source}: {what}")

    threads = [threading.Thread(target=work, args=(tag,)) for tag in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def test_several_threads_send_at_once(pool: RankPool) -> None:
    assert pool.run(3, _threads, 4, 25, timeout=40) == [[]] * 3


# ---- groups and collectives ---------------------------------------------------------------------


def _in_a_subgroup() -> list[int]:
    """Ranks 3 and 1, in this order, so that no rank has its global number."""
    rank = dist.get_rank()
    group = dist.new_group([3, 1], sort_ranks=False)
    message = torch.zeros(4, dtype=torch.int64)
    if rank == 1:
        dist.send(_numbers(4, 1), 3, group=group)
        dist.send(_numbers(4, 2), group_dst=0, group=group, tag=7)
        dist.recv(message, 3, group=group)
        return message.tolist()
    if rank != 3:
        return []
    sources = [dist.recv(message, 1, group=group)]
    first = message.tolist()
    sources.append(dist.recv(message, group=group, tag=7))
    dist.send(_numbers(4, 3), 1, group=group)
    return sources + first + message.tolist()


def test_in_a_subgroup_ranks_are_the_job_s(pool: RankPool) -> None:
    one, two, three = (_numbers(4, n).tolist() for n in (1, 2, 3))
    assert pool.run(4, _in_a_subgroup, timeout=20) == [[], three, [], [1, 1, *one, *two]]


def _two_groups_with_the_same_tag() -> list[int]:
    rank = dist.get_rank()
    groups = [dist.new_group(), dist.new_group()]
    if rank == 0:
        # Not send(), which may wait for the other rank's first call in that group.
        numbers = [torch.tensor([number + 1]) for number in range(2)]
        wait_all([dist.isend(numbers[i], 1, group=groups[i]) for i in range(2)])
        return []
    received = []
    for group in reversed(groups):
        message = torch.zeros(1, dtype=torch.int64)
        dist.recv(message, 0, group=group)
        received.append(int(message))
    return received


def test_groups_do_not_take_each_other_s_messages(pool: RankPool) -> None:
    assert pool.run(2, _two_groups_with_the_same_tag, timeout=20) == [[], [2, 1]]


def _message_while_a_collective_waits() -> tuple[int, float]:
    """Rank 1 comes to the sum only after a message that rank 0 sends while it waits there."""
    total, message = torch.ones(5000), torch.zeros(100_000, dtype=torch.int64)
    if dist.get_rank() == 0:
        work = begun(dist.all_reduce(total, async_op=True))
        time.sleep(0.05)
        dist.send(_numbers(100_000, 4), 1)
        work.wait()
        return 0, total[0].item()
    dist.recv(message, 0)
    dist.all_reduce(total)
    return int((message - _numbers(100_000, 4)).abs().sum()), total[0].item()


def test_a_message_passes_a_waiting_collective(pool: RankPool) -> None:
    assert pool.run(2, _message_while_a_collective_waits, timeout=20) == [(0, 2.0)] * 2


def _in_a_thread_while_a_collective_waits() -> float:
    """Rank 0's main thread waits in a sum for rank 1, whom another thread of rank 0 holds up."""
    total, message = torch.ones(3), torch.zeros(1)
    if dist.get_rank() == 1:
        dist.recv(message, 0)
    else:
        threading.Timer(0.1, lambda: dist.send(message, 1)).start()
    dist.all_reduce(total)
    return total[0].item()


def test_a_thread_sends_while_another_waits_in_a_collective(pool: RankPool) -> None:
    assert pool.run(2, _in_a_thread_while_a_collective_waits, timeout=20) == [2.0, 2.0]


def _collective_while_a_receive_waits() -> tuple[float, list[int]]:
    total, message = torch.ones(5000), torch.zeros(3, dtype=torch.int64)
    if dist.get_rank() == 0:
        work = begun(dist.irecv(message, 1))
        for _ in range(5):
            dist.all_reduce(total)
        assert not work.is_completed()
        dist.barrier()
        work.wait()
    else:
        for _ in range(5):
            dist.all_reduce(total)
        dist.barrier()
        dist.send(_numbers(3, 9), 0)
        message = _numbers(3, 9)
    return total[0].item(), message.tolist()


def test_collectives_pass_a_waiting_receive(pool: RankPool) -> None:
    assert (
        pool.run(2, _collective_while_a_receive_waits, timeout=20)
        == [(32.0, _numbers(3, 9).tolist())] * 2
    )


def _sequence_numbers() -> list[int]:
    group: Any = dist.group.WORLD
    backend = group._get_backend(torch.device("cpu"))
    dist.all_reduce(torch.ones(1))
    numbers = [backend._get_sequence_number_for_group()]
    if dist.get_rank() == 0:
        for tag in range(7):
            dist.send(torch.ones(1), 1, tag=tag)
    elif dist.get_rank() == 1:
        for tag in range(7):
            dist.recv(torch.ones(1), 0, tag=tag)
    numbers.append(backend._get_sequence_number_for_group())
    dist.all_reduce(torch.ones(1))
    numbers.append(backend._get_sequence_number_for_group())
    return numbers


def test_messages_have_no_part_in_the_collectives_numbers(compiled: RankPool) -> None:
    assert compiled.run(3, _sequence_numbers, timeout=20) == [[1, 1, 2]] * 3
