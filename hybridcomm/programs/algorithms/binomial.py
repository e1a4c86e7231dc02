"""The binomial tree that several rooted algorithms send along, with rank 0 at its root."""

from __future__ import annotations

from typing import NamedTuple


class Node(NamedTuple):
    """One rank's place in the tree.

    Attributes:
        parent: The rank above it; None at the root.
        subtrees: For each child, largest first, the ranks of its subtree; the child comes first.
    """

    parent: int | None
    subtrees: tuple[range, ...]

    @property
    def children(self) -> tuple[int, ...]:
        """The ranks right below it, that with the largest subtree first."""
        return tuple(subtree[0] for subtree in self.subtrees)


def node(rank: int, world: int) -> Node:
    """Find a rank's place.

    Args:
        rank: Which rank.
        world: Number of ranks.

    Returns:
        Its place.
    """
    # The subtree of rank r is the ranks r + d with d below r's lowest set bit (for the root: below
    # the least power of two that is at least N). So the parent is r without that bit, the children
    # are r + 2^i for 2^i below it, and the subtree of r + 2^i ends before r + 2^(i+1).
    span = rank & -rank if rank else 1 << (world - 1).bit_length()
    distances = [1 << i for i in reversed(range(span.bit_length() - 1))]
    subtrees = tuple(
        range(rank + distance, min(rank + 2 * distance, world))
        for distance in distances
        if rank + distance < world
    )
    return Node(rank - span if rank else None, subtrees)
