"""What a call becomes: which algorithm, which program, through which links; as csrc/ chooses.

Every choice is a function of the call and of the group's options, which are alike on all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch

from hybridcomm.programs.ir import RankProgram
from hybridcomm.programs.layout import Collective, Layout
from hybridcomm.programs.registry import build

from ..numerics import RedOp, is_integer
from .rendezvous import Shape

_SLOT_BYTES = 512 << 10
_LEAST_SLOT_BYTES = 64 << 10
_SLOTS = 4
# A root that sends to each rank itself is fastest while it can write to all of them at once.
_MOST_DIRECT_READERS = 4


def choose_shape(
    world: int, channels: int | None, slots: int | None, slot_bytes: int | None
) -> Shape:
    """Chooses the links of a group; what is None is left to this.

    Args:
        world: Number of ranks.
        channels: Number of channels.
        slots: Slots of a link.
        slot_bytes: Bytes of a slot.

    Returns:
        The shape.
    """
    ranks = 1 << (max(world, 2) - 1).bit_length()
    share = max(2 * _SLOT_BYTES // ranks, _LEAST_SLOT_BYTES)
    return Shape(channels or 1, slots or _SLOTS, slot_bytes or share)


def choose_algorithm(
    collective: Collective,
    dtype: torch.dtype,
    op: RedOp,
    world: int,
    preferred: Mapping[str, str],
) -> str:
    """Chooses the algorithm of a call.

    Args:
        collective: Which collective.
        dtype: Type of the elements.
        op: The reduction.
        world: Number of ranks.
        preferred: Algorithms by collective, as the user has fixed them.

    Returns:
        Its name.
    """
    # The exact sum does not fit the dtype, so it must be divided by the step that adds it up.
    exact = Layout(collective, 1, 1).reduces and op is RedOp.AVG and is_integer(dtype)
    name = preferred.get(collective.word)
    if name is not None and (not exact or _is_deterministic(collective, name, world)):
        return name
    if collective is Collective.ALL_REDUCE:
        return "two_shot"
    if collective is Collective.BARRIER:
        return "dissemination"
    rooted_tree = collective in (Collective.BROADCAST, Collective.REDUCE)
    if rooted_tree and world > _MOST_DIRECT_READERS and not exact:
        return "binomial"
    return "direct"


def _is_deterministic(collective: Collective, algorithm: str, world: int) -> bool:
    root = 0 if Layout(collective, 1, 1).rooted else None
    return build(collective.word, algorithm, world, root=root).deterministic


@lru_cache(maxsize=1024)
def find_program(
    collective: Collective, algorithm: str, world: int, rank: int, root: int | None, channels: int
) -> RankProgram:
    """Makes one rank's part of a program, or finds it again."""
    program = build(collective.word, algorithm, world, channels=channels, root=root)
    return program.rank_program(rank)
