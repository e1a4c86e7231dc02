"""What the measuring process and the ranks of a team say to each other.

Over a Unix socket in a folder that only this user may enter, one connection for each rank. A rank
answers every message but `Stop` with one of its own; while it waits for the next it uses no core.
"""

from __future__ import annotations

from dataclasses import dataclass

from .cases import Case


@dataclass(frozen=True)
class Hello:
    """A rank is there.

    Args:
        rank: Its rank.
        pid: Its process.
        version: What it measures, with its version.
    """

    rank: int
    pid: int
    version: str


@dataclass(frozen=True)
class Prepare:
    """Make the buffers of a case, run it once and check the result.

    Args:
        case: The case.
    """

    case: Case


@dataclass(frozen=True)
class Prepared:
    """The case can be sampled.

    Args:
        wrong: Elements of the result that were wrong; None if they mean nothing.
    """

    wrong: int | None


@dataclass(frozen=True)
class Sample:
    """Make calls and take their time.

    Args:
        calls: How many.
    """

    calls: int


@dataclass(frozen=True)
class Sampled:
    """The calls are made.

    Args:
        seconds: How long they took on this rank, from when all ranks were ready.
    """

    seconds: float


@dataclass(frozen=True)
class Stop:
    """There is nothing more to do."""


@dataclass(frozen=True)
class Failed:
    """A rank's last words.

    Args:
        summary: The exception in one line.
        details: The traceback.
    """

    summary: str
    details: str


Request = Prepare | Sample | Stop
Answer = Hello | Prepared | Sampled | Failed
