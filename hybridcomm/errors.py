"""What a collective raises.

Every class derives from torch's `DistBackendError`, so code that handles torch's own backends
handles these too. The message is complete; the attributes repeat its facts for programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.distributed import DistBackendError

__all__ = [
    "CommAbortedError",
    "CommError",
    "CommTimeoutError",
    "MismatchError",
    "PeerLostError",
]


class CommError(DistBackendError):
    """A collective failed. After it the group can only be aborted, destroyed or shrunk.

    Args:
        message: The whole story in one sentence or more.
        operation: Name of the collective, for instance "all_reduce".
        sequence: Number of the operation within its group, from 1.
        group: Name of the group.
        rank: This rank, within the group.
        peer: The rank to blame, within the group.
        size_bytes: Size of the operation's data on this rank, in bytes.

    What is not known is None.
    """

    def __init__(
        self,
        message: str,
        *,
        operation: str | None = None,
        sequence: int | None = None,
        group: str | None = None,
        rank: int | None = None,
        peer: int | None = None,
        size_bytes: int | None = None,
    ) -> None:
        super().__init__(message)
        self.operation = operation
        self.sequence = sequence
        self.group = group
        self.rank = rank
        self.peer = peer
        self.size_bytes = size_bytes


class PeerLostError(CommError):
    """A peer's process died or ended, or it destroyed the group: rank `peer` is gone."""


class CommTimeoutError(CommError):
    """A peer did not arrive in time. `peer` is the rank that was waited for."""


class MismatchError(CommError):
    """Ranks called different operations, or one with different dtype, size or root.

    The message shows both sides; `peer` is a rank that differs from this one.
    """


class CommAbortedError(CommError):
    """The group was aborted, by this rank or by another."""


# The names that C++ uses, see csrc/base/error.h. A wrong argument of this rank's own call is a
# ValueError: nothing was sent and the group is as good as before.
_CLASSES: Mapping[str, type[CommError] | type[ValueError]] = {
    "peer_lost": PeerLostError,
    "timeout": CommTimeoutError,
    "mismatch": MismatchError,
    "aborted": CommAbortedError,
    "invalid": ValueError,
    "system": CommError,
}


def make_error(kind: str, message: str, fields: Mapping[str, Any]) -> CommError | ValueError:
    """Builds the exception for an error that csrc/ reports.

    Args:
        kind: "peer_lost", "timeout", "mismatch", "aborted", "invalid" or "system".
        message: The text of the exception.
        fields: Keyword arguments of `CommError`; not used for "invalid".

    Returns:
        The exception, not raised.

    Raises:
        KeyError: No such kind.
    """
    cls = _CLASSES[kind]
    if issubclass(cls, CommError):
        return cls(message, **fields)
    return cls(message)
