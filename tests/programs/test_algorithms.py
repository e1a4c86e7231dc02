"""Every algorithm is proved for many world sizes, channels and roots, and keeps its promises."""

from __future__ import annotations

import pytest

from hybridcomm.programs import algorithms, build, collectives, verify
from hybridcomm.programs.network import simulate

WORLDS = (*range(1, 18), 32, 64)
UNROOTED = [
    (collective, algorithm)
    for collective in collectives()
    if collective != "broadcast"
    for algorithm in algorithms(collective)
]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("collective", "algorithm"), UNROOTED)
def test_is_right(collective: str, algorithm: str, world: int) -> None:
    report = verify(build(collective, algorithm, world))
    assert report.ok, str(report)


@pytest.mark.parametrize("world", [1, 2, 3, 7, 8, 16])
@pytest.mark.parametrize(("collective", "algorithm"), UNROOTED)
def test_is_right_on_several_channels(collective: str, algorithm: str, world: int) -> None:
    report = verify(build(collective, algorithm, world, channels=3))
    assert report.ok, str(report)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("algorithm", algorithms("broadcast"))
def test_broadcast_is_right_from_every_root(algorithm: str, world: int) -> None:
    roots = range(world) if world <= 17 else (0, 1, world // 2 + 1, world - 1)
    for root in roots:
        report = verify(build("broadcast", algorithm, world, root=root, channels=2))
        assert report.ok, str(report)


@pytest.mark.parametrize("world", WORLDS[:17])
def test_roundings(world: int) -> None:
    assert verify(build("all_reduce", "ring", world)).roundings == world - 1
    for algorithm in ("two_shot", "two_shot_mapped"):
        report = verify(build("all_reduce", algorithm, world))
        assert report.roundings == min(1, world - 1)
        assert report.deterministic


def test_ring_order_of_reduction() -> None:
    report = verify(build("all_reduce", "ring", 4))
    # Piece j starts on rank j + 1. Each step takes its two operands in rank order.
    assert list(map(str, report.reductions)) == [
        "(0 + ((1 + 2) + 3))",
        "((0 + (2 + 3)) + 1)",
        "(((0 + 3) + 1) + 2)",
        "(((0 + 1) + 2) + 3)",
    ]


@pytest.mark.parametrize(("collective", "algorithm"), UNROOTED)
def test_messages_may_be_taken_from_the_senders_chunk(collective: str, algorithm: str) -> None:
    assert verify(build(collective, algorithm, 5)).single_copy is None


@pytest.mark.parametrize("world", WORLDS)
def test_hops(world: int) -> None:
    """Longest chain of messages from step to step."""

    def hops(collective: str, algorithm: str, root: int | None = None) -> int:
        program = build(collective, algorithm, world, root=root)
        lanes = {(rank, 0): program.lanes(rank)[0] for rank in range(world)}
        depth: list[int] = []
        reached = dict.fromkeys(range(world), 0)
        for event in simulate(lanes, None).events:
            arrived = max((depth[source] + 1 for source in event.sources), default=0)
            reached[event.rank] = max(reached[event.rank], arrived)
            depth.append(reached[event.rank])
        return max(depth, default=0)

    # A rank of the binomial tree is as many hops from the root as it has bits set.
    most_bits = max(bin(rank).count("1") for rank in range(world))
    assert hops("broadcast", "binomial", root=world - 1) == most_bits
    assert hops("broadcast", "direct", root=world - 1) == min(1, world - 1)
    assert hops("barrier", "dissemination") == (world - 1).bit_length()
    assert hops("all_gather", "ring") == world - 1
    assert hops("all_gather", "direct") == min(1, world - 1)
    assert hops("all_reduce", "ring") == 2 * (world - 1)
    assert hops("all_reduce", "two_shot") == min(2, 2 * (world - 1))


@pytest.mark.parametrize("algorithm", ["ring", "two_shot"])
def test_all_reduce_sends_the_least_bytes(algorithm: str) -> None:
    """2 (N - 1) pieces of 1 / N of the tensor leave each rank."""
    for world in (2, 5, 8):
        program = build("all_reduce", algorithm, world)
        for rank in range(world):
            sent = sum(len(step.sent) for step in program.lanes(rank)[0])
            assert sent == 2 * (world - 1)
