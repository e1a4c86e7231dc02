"""Every algorithm is proved for many world sizes, channels and roots, and keeps its promises."""

from __future__ import annotations

import pytest

from hybridcomm.programs import Layout, Space, algorithms, build, collectives, verify
from hybridcomm.programs.layout import collective_named
from hybridcomm.programs.network import simulate
from hybridcomm.programs.structure import piece_of
from tests.programs.editing import is_rooted

WORLDS = (*range(1, 18), 32, 64)
ALL = [(collective, name) for collective in collectives() for name in algorithms(collective)]
UNROOTED = [(collective, name) for collective, name in ALL if not is_rooted(collective)]
ROOTED = [(collective, name) for collective, name in ALL if is_rooted(collective)]


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
@pytest.mark.parametrize(("collective", "algorithm"), ROOTED)
def test_is_right_from_every_root(collective: str, algorithm: str, world: int) -> None:
    for root in range(world):
        channels = 1 if world > 17 else 1 + root % 2
        report = verify(build(collective, algorithm, world, root=root, channels=channels))
        assert report.ok, str(report)


@pytest.mark.parametrize("world", WORLDS[:17])
def test_roundings(world: int) -> None:
    rounds = (world - 1).bit_length()
    wanted = {
        ("all_reduce", "ring"): range(world - 1, world),
        ("reduce_scatter", "ring"): range(world - 1, world),
        # Whoever hands on in the last round but one has been reduced in all before.
        ("all_reduce", "halving_doubling"): range(min(1, rounds), rounds + 1),
        ("reduce_scatter", "recursive_halving"): range(min(1, rounds), rounds + 1),
        ("all_reduce", "double_binary_tree"): range(min(1, rounds), world.bit_length()),
        ("reduce", "binomial"): range(min(1, rounds), rounds + 1),
    }
    for collective, algorithm in ALL:
        if not Layout(collective_named(collective), 1, 1).reduces:
            continue
        for root in range(world) if is_rooted(collective) else [None]:
            report = verify(build(collective, algorithm, world, root=root))
            if (collective, algorithm) in wanted:
                assert report.roundings in wanted[collective, algorithm]
            else:
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


@pytest.mark.parametrize(("collective", "algorithm"), ALL)
def test_messages_may_be_taken_from_the_senders_chunk(collective: str, algorithm: str) -> None:
    root = 2 if is_rooted(collective) else None
    report = verify(build(collective, algorithm, 5, root=root))
    # In place a one-shot overwrites what the others may not have taken yet.
    assert (report.single_copy is None) == (algorithm != "one_shot")


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

    one, last = min(1, world - 1), world - 1
    rounds = last.bit_length()
    # A rank of the binomial tree is as many hops from the root as it has bits set.
    most_bits = max(bin(rank).count("1") for rank in range(world))
    assert hops("broadcast", "binomial", root=last) == most_bits
    assert hops("broadcast", "direct", root=last) == one
    assert hops("broadcast", "chain", root=last) == last
    assert hops("reduce", "binomial", root=last) == most_bits
    assert hops("reduce", "direct", root=last) == one
    assert hops("gather", "binomial", root=last) == most_bits
    assert hops("gather", "direct", root=last) == one
    assert hops("scatter", "binomial", root=last) == most_bits
    assert hops("scatter", "direct", root=last) == one
    assert hops("barrier", "dissemination") == rounds
    assert hops("all_gather", "ring") == last
    assert hops("all_gather", "direct") == one
    assert hops("reduce_scatter", "ring") == last
    assert hops("reduce_scatter", "direct") == one
    assert hops("all_reduce", "ring") == 2 * last
    assert hops("all_reduce", "two_shot") == 2 * one


@pytest.mark.parametrize("world", WORLDS)
def test_rounds(world: int) -> None:
    """The longest way of one piece: what a call with little data waits for."""

    def rounds(collective: str, algorithm: str) -> int:
        program = build(collective, algorithm, world)
        lanes = {(rank, 0): program.lanes(rank)[0] for rank in range(world)}
        depth: list[int] = []
        reached: dict[tuple[int, int | None], int] = {}
        for event in simulate(lanes, None).events:
            piece = (event.rank, piece_of(event.step, event.rank, program.layout))
            arrived = max((depth[source] + 1 for source in event.sources), default=0)
            reached[piece] = max(reached.get(piece, 0), arrived)
            depth.append(reached[piece])
        return max(depth, default=0)

    logarithm = (world - 1).bit_length()
    for collective, algorithm, most in (
        ("all_gather", "bruck", logarithm),
        ("reduce_scatter", "recursive_halving", logarithm),
        ("all_reduce", "halving_doubling", 2 * logarithm),
    ):
        taken = rounds(collective, algorithm)
        assert taken == most if world == 1 << logarithm else taken <= most
    assert rounds("all_reduce", "one_shot") == min(1, world - 1)
    # In each tree no place is deeper than its root is high.
    assert rounds("all_reduce", "double_binary_tree") <= 2 * (world.bit_length() - 1)


@pytest.mark.parametrize("world", range(2, 18))
def test_two_trees_share_the_work(world: int) -> None:
    """No rank is inside both trees, and none has more than two children in either."""
    program = build("all_reduce", "double_binary_tree", world)
    for rank in range(world):
        up = [step for step in program.lanes(rank)[0] if step.src and step.src[0] is Space.IN]
        children = [{len(step.frm) for step in up[tree::2]} for tree in (0, 1)]
        assert all(len(counts) == 1 and max(counts) <= 2 for counts in children)
        assert {0} in children


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        ("all_reduce", "ring"),
        ("all_reduce", "two_shot"),
        ("all_reduce", "halving_doubling"),
        ("reduce_scatter", "ring"),
        ("reduce_scatter", "direct"),
        ("reduce_scatter", "recursive_halving"),
        ("all_gather", "ring"),
        ("all_gather", "direct"),
        ("all_gather", "bruck"),
        ("all_to_all", "direct"),
        ("all_to_all", "pairwise"),
    ],
)
def test_sends_the_least_bytes(collective: str, algorithm: str) -> None:
    """N - 1 pieces leave each rank; of an all-reduce twice as many."""
    for world in (2, 5, 8, 13):
        program = build(collective, algorithm, world)
        for rank in range(world):
            sent = sum(len(step.sent) for step in program.lanes(rank)[0])
            assert sent == (world - 1) * (2 if collective == "all_reduce" else 1)


def test_double_binary_tree_sends_hardly_more_than_the_least() -> None:
    """Two tensors up and two down leave a rank at most, but all together what a ring does."""
    for world in (2, 5, 8, 13, 64):
        program = build("all_reduce", "double_binary_tree", world)
        sent = [sum(len(step.sent) for step in program.lanes(r)[0]) for r in range(world)]
        assert sum(sent) == 2 * world * (world - 1)
        assert max(sent) <= 2 * (world + 1)
