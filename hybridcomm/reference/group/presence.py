"""What a rank says of its process in the store when it makes a group.

A rank that dies before it has met the others would only be missed at the end of a time-out. By what
it has left, whoever waits for it on the same host looks after its process.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from torch._C._distributed_c10d import Store

# What an earlier process of that rank has left may lie in the store until the new one replaces it.
_REPLACEMENT = 0.3


def _key(rank: int) -> str:
    return f"presence{rank}"


def _here() -> str:
    """Where process numbers mean the same: the boot of the host, and the namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return "unknown"


def _started(pid: int) -> str:
    """When a process started, in clock ticks since boot; "" if it is gone."""
    try:
        # The second field is the program's name, in parentheses, and may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    ended = fields[0] in ("Z", "X")
    return "" if ended else fields[19]


def leave_presence(store: Store, rank: int) -> None:
    """Says where this process runs, and which it is.

    Args:
        store: The group's store.
        rank: This rank.
    """
    pid = os.getpid()
    store.set(_key(rank), f"{pid} {_started(pid)} {_here()}")


class Presence:
    """Looks after the process of a rank that has not come yet.

    Args:
        rank: Which.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._text = b""
        self._missed_at: float | None = None

    def died(self, store: Store) -> bool:
        """Looks once.

        Args:
            store: The group's store.

        Returns:
            Whether the process is known to be gone, and has not been replaced for a while.
        """
        if not store.check([_key(self._rank)]):
            return False
        text = store.get(_key(self._rank))
        if text != self._text:
            self._text, self._missed_at = text, None
        pid, started, *where = text.decode(errors="replace").split(" ")
        on_this_host = " ".join(where) == _here() != "unknown"
        if not on_this_host or not pid.isdecimal() or _started(int(pid)) == started:
            self._missed_at = None
            return False
        now = time.monotonic()
        if self._missed_at is None:
            self._missed_at = now
        return now - self._missed_at >= _REPLACEMENT
