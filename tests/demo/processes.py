"""Finds out which processes live."""

from __future__ import annotations

import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def session_members(session: int) -> list[int]:
    """The living processes of a session: all that a session's leader started, and itself."""
    members = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and alive(int(folder.name)):
            fields = _fields(int(folder.name))
            if fields and int(fields[3]) == session:
                members.append(int(folder.name))
    return members


def _fields(pid: int) -> list[str]:
    """State, parent, process group, session … of a process; empty if there is none."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return status.rpartition(")")[2].split()


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    fields = _fields(pid)
    return bool(fields) and fields[0] != "Z"


def wait_until_gone(pids: list[int]) -> list[int]:
    """Waits up to 10 s for processes to end; returns those that did not."""
    deadline = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [pid for pid in pids if alive(pid)]


def rank_pids(parent: int) -> list[int]:
    """The ranks a process has started, in rank order, which is that of starting."""
    ranks = []
    for pid in session_members(parent):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if int(_fields(pid)[1]) == parent and b"spawn_main" in command:
            ranks.append(pid)
    return sorted(ranks, key=_start_time)


def _start_time(pid: int) -> tuple[int, int]:
    return int(_fields(pid)[19]), pid
