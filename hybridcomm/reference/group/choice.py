"""What a call becomes: which algorithm, which program, through which links; as csrc/ chooses.

Every choice is a function of the call and of the group's options, which are alike on all ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
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
LONGEST_TIMEOUT = timedelta(days=365 * 100)


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


@dataclass(frozen=True)
class CallPreferences:
    """What the calls of one thread ask for beyond their group's options.

    Attributes:
        algorithm: The algorithm; "" if it is to be chosen.
        deterministic: Whether a reduction must be the canonical one.
        timeout: How long a call may take; zero for the group's time-out.
    """

    algorithm: str = ""
    deterministic: bool = False
    timeout: timedelta = timedelta(0)


class _Current(threading.local):
    preferences = CallPreferences()


_current = _Current()


def exchange_call_preferences(preferences: CallPreferences) -> CallPreferences:
    """Sets what this thread's next calls ask for.

    Args:
        preferences: That.

    Returns:
        What held before.
    """
    before, _current.preferences = _current.preferences, preferences
    return before


def seconds_of(given: timedelta, of_group: float) -> float:
    """How long a call may take.

    Args:
        given: What torch gave it; not positive for nothing.
        of_group: The group's time-out, in seconds.

    Returns:
        Seconds.
    """
    own = given if given > timedelta(0) else _current.preferences.timeout
    return min(own, LONGEST_TIMEOUT).total_seconds() if own > timedelta(0) else of_group


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

    Raises:
        ValueError: The call asks for one that does not give what it asks for as well.
    """
    reduces = Layout(collective, 1, 1).reduces
    # The exact sum does not fit the dtype, so it must be divided by the step that adds it up.
    exact = reduces and op is RedOp.AVG and is_integer(dtype)
    asked = _current.preferences
    deterministic = reduces and (exact or asked.deterministic)
    default = _default_algorithm(collective, world, deterministic)
    for name in (asked.algorithm, preferred.get(collective.word)):
        if name and (not deterministic or _is_deterministic(collective, name, world)):
            return name
        if name and name == asked.algorithm:
            raise ValueError(
                f"argument algorithm: {collective.word} by {name} rounds more than once, and "
                f"{'AVG of integers' if exact else 'deterministic=True'} needs a single reduction "
                f"in rank order; use {default}"
            )
    return default


def _default_algorithm(collective: Collective, world: int, deterministic: bool) -> str:
    if collective is Collective.ALL_REDUCE:
        return "two_shot"
    if collective is Collective.BARRIER:
        return "dissemination"
    rooted_tree = collective in (Collective.BROADCAST, Collective.REDUCE)
    if rooted_tree and world > _MOST_DIRECT_READERS and not deterministic:
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
