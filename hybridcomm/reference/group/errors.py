"""Why an operation failed: facts that become an exception when somebody waits, and their words."""

from __future__ import annotations

import string
from dataclasses import dataclass
from enum import IntEnum

from hybridcomm.errors import CommError, make_error

_PRINTABLE = frozenset(string.printable) - frozenset("\t\n\r\x0b\x0c")


class Kind(IntEnum):
    """The kinds of errors, as they are told to other ranks."""

    PEER_LOST = 1
    TIMEOUT = 2
    MISMATCH = 3
    ABORTED = 4
    SYSTEM = 5


@dataclass(frozen=True)
class Failure:
    """What went wrong.

    Attributes:
        kind: The class of the error.
        message: All that the exception says.
        peer: The rank to blame, if one is known.
        operation: Name of the call that failed, if it was one.
        sequence: Its number in the group.
        size_bytes: Size of its data on this rank.
        group: Name of the group.
        rank: This rank.
    """

    kind: Kind
    message: str
    peer: int | None
    group: str
    rank: int
    operation: str | None = None
    sequence: int | None = None
    size_bytes: int | None = None

    def exception(self) -> CommError | ValueError:
        """Makes the exception; a new one for everyone who waits."""
        fields = {
            "operation": self.operation,
            "sequence": self.sequence,
            "group": self.group,
            "rank": self.rank,
            "peer": self.peer,
            "size_bytes": self.size_bytes,
        }
        return make_error(self.kind.name.lower(), self.message, fields)


class FailedError(Exception):
    """Ends what the engine's thread is doing for a group; carries why.

    Args:
        kind: The class of the error.
        peer: The rank to blame, if one is known.
        why: The reason, to follow the description of the operation.
    """

    def __init__(self, kind: Kind, peer: int | None, why: str) -> None:
        super().__init__(why)
        self.kind = kind
        self.peer = peer
        self.why = why


@dataclass(frozen=True)
class Identity:
    """Which rank of which group this is.

    Attributes:
        group: The group's name.
        rank: This rank.
        world: Number of ranks.
        global_ranks: Rank i is global_ranks[i] of the job; empty: the same number.
    """

    group: str
    rank: int
    world: int
    global_ranks: tuple[int, ...] = ()

    def name(self, rank: int) -> str:
        """What to call a rank in a sentence."""
        if rank < len(self.global_ranks) and self.global_ranks[rank] != rank:
            return f"rank {rank} (global rank {self.global_ranks[rank]})"
        return f"rank {rank}"

    @property
    def peers(self) -> tuple[int, ...]:
        """All ranks but this one."""
        return tuple(rank for rank in range(self.world) if rank != self.rank)


def size_text(size: int) -> str:
    """A number of bytes, as people read it: "4.0 KiB"."""
    if size < 1024:
        return f"{size} B"
    value = size / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def printable(text: str) -> str:
    """Text of another process with everything that is not plain replaced."""
    return "".join(letter if letter in _PRINTABLE else "?" for letter in text)
