"""Rounds over a circulant graph: recursive halving for any world size.

Träff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024. For a power of two
the distances are N/2, N/4, ..., 1, those of the recursive halving in Thakur, Rabenseifner and
Gropp, "Optimization of collective communication operations in MPICH", 2005.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..ir import IN, TMP, Step, recv_reduce, send
from ..layout import Chunk


def one_ahead(sends: Sequence[Step], receives: Sequence[Step]) -> Iterator[Step]:
    """One round: as many messages out as in, each sent one before its counterpart is awaited.

    All sends before all receives would take a slot for each message. One message ahead takes two
    slots, and there is still one under way while the rank works on another.

    Args:
        sends: The sends, at least one.
        receives: As many receives.

    Yields:
        The steps.
    """
    yield sends[0]
    for following, step in zip(sends[1:], receives, strict=False):
        yield following
        yield step
    yield receives[-1]


def rounds(world: int) -> list[tuple[int, int]]:
    """How many pieces a rank still reduces before and after each round of halving.

    Args:
        world: Number of ranks.

    Returns:
        (held, kept) of each of the ceil(log2 N) rounds: N first, ceil(held / 2) next, 1 last.
    """
    result = []
    held = world
    while held > 1:
        kept = (held + 1) // 2
        result.append((held, kept))
        held = kept
    return result


def halve(rank: int, world: int, first: int, result: Chunk) -> Iterator[Step]:
    """Reduce every piece over all ranks; each ends on its own rank.

    Args:
        rank: Whose steps.
        world: Number of ranks, at least 2.
        first: ``in[first + j]`` is the piece that is reduced for rank j.
        result: Where rank's own piece goes.

    Yields:
        The steps. Partial results lie in ``tmp``.
    """

    def piece(ahead: int) -> int:
        return first + (rank + ahead) % world

    # Rank r holds partial results of the pieces that are `ahead` of its own, those for rank r + 0
    # to r + held - 1. A round hands the far ones, from `kept` on, to rank r + kept, for which they
    # are 0 to held - kept - 1 ahead; there they are added to what that rank holds of them. Since
    # held - kept <= kept, nothing that is received goes out in the same round. Each piece but the
    # own one goes out once, with all that was added to it; so its contributions arrive once each.
    partial = [IN[piece(ahead)] for ahead in range(world)]
    for held, kept in rounds(world):
        moved = held - kept
        sends = [send((rank + kept) % world, partial[kept + i]) for i in range(moved)]
        receives = []
        for i in range(moved):
            last = kept == 1  # then moved is 1: the own piece
            target = result if last else TMP[piece(i)]
            receives.append(recv_reduce((rank - kept) % world, partial[i], target, finish=last))
            partial[i] = target
        yield from one_ahead(sends, receives)
