"""Finds algorithms by name and compiles them: how the rest of the library gets its programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from .algorithms.all_gather_bruck import all_gather_bruck
from .algorithms.all_gather_direct import all_gather_direct
from .algorithms.all_gather_ring import all_gather_ring
from .algorithms.all_reduce_double_binary_tree import all_reduce_double_binary_tree
from .algorithms.all_reduce_halving_doubling import all_reduce_halving_doubling
from .algorithms.all_reduce_one_shot import all_reduce_one_shot
from .algorithms.all_reduce_ring import all_reduce_ring
from .algorithms.all_reduce_two_shot import all_reduce_two_shot
from .algorithms.all_reduce_two_shot_mapped import all_reduce_two_shot_mapped
from .algorithms.all_to_all_direct import all_to_all_direct
from .algorithms.all_to_all_pairwise import all_to_all_pairwise
from .algorithms.barrier_dissemination import barrier_dissemination
from .algorithms.broadcast_binomial import broadcast_binomial
from .algorithms.broadcast_chain import broadcast_chain
from .algorithms.broadcast_direct import broadcast_direct
from .algorithms.gather_binomial import gather_binomial
from .algorithms.gather_direct import gather_direct
from .algorithms.reduce_binomial import reduce_binomial
from .algorithms.reduce_direct import reduce_direct
from .algorithms.reduce_scatter_direct import reduce_scatter_direct
from .algorithms.reduce_scatter_recursive_halving import reduce_scatter_recursive_halving
from .algorithms.reduce_scatter_ring import reduce_scatter_ring
from .algorithms.scatter_binomial import scatter_binomial
from .algorithms.scatter_direct import scatter_direct
from .flat import encode
from .ir import Program
from .layout import Collective, Layout, collective_named

Algorithm = Callable[[int, int], Program]  # (world, channels) -> program, with root 0 if it has one

# Need the peers' buffers mapped into this process, which no group does yet.
_ONE_SIDED = frozenset({"two_shot_mapped"})

# The first of each is what the command line takes if none is named.
_ALGORITHMS: dict[Collective, dict[str, Algorithm]] = {
    Collective.ALL_REDUCE: {
        "two_shot": all_reduce_two_shot,
        "ring": all_reduce_ring,
        "double_binary_tree": all_reduce_double_binary_tree,
        "halving_doubling": all_reduce_halving_doubling,
        "one_shot": all_reduce_one_shot,
        "two_shot_mapped": all_reduce_two_shot_mapped,
    },
    Collective.BROADCAST: {
        "direct": broadcast_direct,
        "binomial": broadcast_binomial,
        "chain": broadcast_chain,
    },
    Collective.ALL_GATHER: {
        "direct": all_gather_direct,
        "ring": all_gather_ring,
        "bruck": all_gather_bruck,
    },
    Collective.BARRIER: {"dissemination": barrier_dissemination},
    Collective.REDUCE_SCATTER: {
        "direct": reduce_scatter_direct,
        "ring": reduce_scatter_ring,
        "recursive_halving": reduce_scatter_recursive_halving,
    },
    Collective.ALL_TO_ALL: {"direct": all_to_all_direct, "pairwise": all_to_all_pairwise},
    Collective.REDUCE: {"direct": reduce_direct, "binomial": reduce_binomial},
    Collective.GATHER: {"direct": gather_direct, "binomial": gather_binomial},
    Collective.SCATTER: {"direct": scatter_direct, "binomial": scatter_binomial},
}


def collectives() -> tuple[str, ...]:
    """Name the collectives that have algorithms.

    Returns:
        Their names.
    """
    return tuple(collective.word for collective in _ALGORITHMS)


def algorithms(collective: str, *, one_sided: bool = True) -> tuple[str, ...]:
    """Name the algorithms of a collective.

    Args:
        collective: For instance ``"all_reduce"``.
        one_sided: Whether to name those that read or write their peers' buffers directly.

    Returns:
        Their names, for instance ``("two_shot", "ring", "two_shot_mapped")``.

    Raises:
        ValueError: There is no such collective.
    """
    names = _ALGORITHMS.get(collective_named(collective), {})
    return tuple(name for name in names if one_sided or name not in _ONE_SIDED)


def build(
    collective: str,
    algorithm: str,
    world: int,
    *,
    channels: int = 1,
    root: int | None = None,
) -> Program:
    """Make the program of an algorithm.

    Args:
        collective: For instance ``"all_reduce"``.
        algorithm: One of ``algorithms(collective)``.
        world: Number of ranks, at least 1.
        channels: Number of channels, at least 1.
        root: Root rank, for a collective that has one; None for the others.

    Returns:
        The program. No rank's steps are made yet.

    Raises:
        ValueError: An argument is wrong; the message names it and says what would be right.
    """
    kind = collective_named(collective)
    known = _ALGORITHMS.get(kind, {})
    if algorithm not in known:
        names = ", ".join(known) or "there are none yet"
        raise ValueError(f"algorithm: {collective} has no {algorithm!r}; one of {names}")
    for name, value in (("world", world), ("channels", channels)):
        if value < 1:
            raise ValueError(f"{name}: {value} is too small; at least 1")
    if not Layout(kind, world, channels).rooted:
        if root is not None:
            raise ValueError(f"root: {collective} has no root; leave it out")
        return known[algorithm](world, channels)
    if root is None:
        raise ValueError(f"root: {collective} needs a root rank, 0 to {world - 1}")
    if not 0 <= root < world:
        raise ValueError(f"root: {root} is not a rank; 0 to {world - 1}")
    return known[algorithm](world, channels).rerooted(root)


@lru_cache(maxsize=1024)
def compile_flat(
    collective: str,
    algorithm: str,
    world: int,
    rank: int,
    root: int | None = None,
    channels: int = 1,
) -> bytes:
    """Compile one rank's part of an algorithm. Cached; makes no other rank's steps.

    Args:
        collective: For instance ``"all_reduce"``.
        algorithm: One of ``algorithms(collective)``.
        world: Number of ranks, at least 1.
        rank: Whose part, 0 to world - 1.
        root: Root rank, for a collective that has one; None for the others.
        channels: Number of channels, at least 1.

    Returns:
        The flat form (``flat.py``).

    Raises:
        ValueError: An argument is wrong; the message names it and says what would be right.
    """
    program = build(collective, algorithm, world, channels=channels, root=root)
    return encode(program.rank_program(rank))
