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


def _read(text: bytes) -> tuple[int, str, int, str]:
    """Process number, start, making and place of what a rank has left; (0, "", 0, "") if none."""
    pid, _, rest = text.decode(errors="replace").partition(" ")
    started, _, rest = rest.partition(" ")
    making, _, where = rest.partition(" ")
    if not pid.isdecimal() or not making.isdecimal():
        return 0, "", 0, ""
    return int(pid), started, int(making), where


def leave_presence(store: Store, rank: int) -> int:
    """Says where this process runs, and which it is.

    A group may be made anew under the same name in the same store, while some ranks still use the
    one before, or have not begun to. So makings are numbered, and their ranks meet by that number:
    making a group is collective, so all ranks count alike. A process that replaces one which died
    goes on in that one's place.

    Args:
        store: The group's store.
        rank: This rank.

    Returns:
        How many times this rank has made the group, this time included.
    """
    making = 1
    if store.check([_key(rank)]):
        pid, started, before, where = _read(store.get(_key(rank)))
        lives = where == _here() != "unknown" and _started(pid) == started != ""
        making = max(1, before + lives)
    pid = os.getpid()
    store.set(_key(rank), f"{pid} {_started(pid)} {making} {_here()}")
    return making


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
        pid, started, _, where = _read(text)
        if where != _here() or where == "unknown" or _started(pid) == started:
            self._missed_at = None
            return False
        now = time.monotonic()
        if self._missed_at is None:
            self._missed_at = now
        return now - self._missed_at >= _REPLACEMENT
