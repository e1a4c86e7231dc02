"""All-reduce up and down two binary trees at once, each with half of the pieces.

Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
2009. In a binary tree the leaves, half of all ranks, send one tensor up and receive one, while the
others do more. With a second tree in which the leaves of the first are inside, all do alike.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import (
    IN,
    OUT,
    Program,
    Step,
    copy,
    recv,
    recv_copy_send,
    recv_reduce,
    recv_reduce_send,
    send,
)
from ..layout import Chunk, Collective


def all_reduce_double_binary_tree(world: int, channels: int = 1) -> Program:
    """Reduce the even pieces to the root of one tree, the odd ones to that of another, and back.

    No rank has more than three neighbours in a tree, and no piece more than 2 floor(log2 N) hops
    to go. The pieces follow each other through the trees.

    Args:
        world: Number of ranks.
        channels: Number of channels; each carries its own pieces of the tensor.

    Returns:
        The program.
    """

    def lane(rank: int, channel: int) -> Iterator[Step]:
        first = channel * world
        if world == 1:
            yield copy(IN[first], OUT[first])
            return

        trees = [_neighbours(rank, world, tree) for tree in (0, 1)]
        # Both trees may use one link, one of them up and the other down, so all ranks take the
        # pieces in one order: piece t up, then piece t - lag down. A piece comes down to a leaf 2
        # floor(log2 N) hops after it went up; meanwhile so many go up behind it, as slots allow.
        lag = 2 * (world.bit_length() - 1)
        for turn in range(world + lag):
            if turn < world:
                yield _up(*trees[turn % 2], IN[first + turn], OUT[first + turn])
            if turn >= lag:
                yield _down(*trees[(turn - lag) % 2], OUT[first + turn - lag])

    return Program(
        collective=Collective.ALL_REDUCE,
        algorithm="double_binary_tree",
        world=world,
        channels=channels,
        deterministic=world <= 3,  # up to three ranks, all others are the root's children
        lane=lane,
    )


def _up(parent: int | None, children: tuple[int, ...], src: Chunk, dst: Chunk) -> Step:
    if parent is None:
        return recv_reduce(children, src, dst, finish=True)
    if children:
        return recv_reduce_send(children, parent, src)
    return send(parent, src)


def _down(parent: int | None, children: tuple[int, ...], dst: Chunk) -> Step:
    if parent is None:
        return send(children, dst)
    if children:
        return recv_copy_send(parent, children, dst)
    return recv(parent, dst)


def _neighbours(rank: int, world: int, tree: int) -> tuple[int | None, tuple[int, ...]]:
    """A rank's parent, None at the root, and its children in one of the two trees."""
    # Rank r has place r + 1 of 1 to N in the first tree, where the odd places are leaves. In the
    # second one it must have a place of the other parity: counted from the other end for even N;
    # for odd N, whose ends are both odd, the next place, which leaves rank N - 1 a leaf twice.
    if tree == 0:
        place, ranks = rank + 1, range(world)
    elif world % 2 == 0:
        place, ranks = world - rank, range(world - 1, -1, -1)
    else:
        place, ranks = (rank + 1) % world + 1, range(-1, world - 1)
    parent, children = _search_tree(place, world)
    return (
        None if parent is None else ranks[parent - 1] % world,
        tuple(ranks[child - 1] % world for child in children),
    )


def _search_tree(place: int, places: int) -> tuple[int | None, tuple[int, ...]]:
    """Parent and children of a place in the balanced search tree over places 1 to ``places``."""
    # In the complete tree a place whose lowest set bit is b has the children place - b/2 and place
    # + b/2, so the parent of x is x with its lowest set bit cleared and the next one set. Where
    # that lies beyond the end, its left subtree takes its place: the parent is the first ancestor,
    # the right child the first of place + b/2, place + b/4, ..., that there is.
    low = place & -place
    children: tuple[int, ...] = () if low == 1 else (place - low // 2,)
    right = low // 2
    while right and place + right > places:
        right //= 2
    if right:
        children += (place + right,)

    parent = place
    while low <= places:
        parent = parent ^ low | low << 1
        if parent <= places:
            return parent, children
        low = parent & -parent
    return None, children
