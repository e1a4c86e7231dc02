"""What processes hold and leave behind, read from /proc: files, sockets, threads, mappings."""

from __future__ import annotations

import os
import time
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple


class System(NamedTuple):
    """Named things that could outlive the process that made them.

    Args:
        files: Names in /dev/shm.
        sockets: Names in the abstract namespace, with their leading "@".
    """

    files: AbstractSet[str]
    sockets: AbstractSet[str]


class Footprint(NamedTuple):
    """What one process holds.

    Args:
        descriptors: Number of open file descriptors.
        threads: Number of threads.
        shared_bytes: Bytes of memory mapped shared with other processes.
        virtual_bytes: Bytes of address space.
    """

    descriptors: int
    threads: int
    shared_bytes: int
    virtual_bytes: int


def system() -> System:
    """Looks at the machine.

    Returns:
        What there is now.
    """
    sockets = set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        name = line.split(maxsplit=7)[7:]
        if name and name[0].startswith("@"):
            sockets.add(name[0])
    return System(set(os.listdir("/dev/shm")), sockets)


def new_in_system(before: System) -> list[str]:
    """Compares the machine with an earlier look at it.

    Other programs come and go. So a file counts only if no living process uses it, an abstract
    socket (which lives as long as a process holds it) only if it bears our name, and both only if
    they are still there a moment later.

    Args:
        before: The earlier look.

    Returns:
        What is new, one line each.
    """
    found = _new_names(before)
    if found:
        time.sleep(0.5)
        found &= _new_names(before)
    return sorted(found)


def _new_names(before: System) -> set[str]:
    now = system()
    files = {f"/dev/shm/{name}" for name in now.files - before.files if not _is_open(name)}
    sockets = {name for name in now.sockets - before.sockets if "hybridcomm" in name}
    return files | {f"abstract socket {name}" for name in sockets}


def footprint(pid: int | str = "self") -> Footprint:
    """Measures a process.

    Args:
        pid: Its process id.

    Returns:
        What it holds now.
    """
    process = Path(f"/proc/{pid}")
    shared = 0
    virtual = 0
    for line in (process / "maps").read_text().splitlines():
        addresses, mode = line.split(maxsplit=2)[:2]
        begin, end = (int(address, 16) for address in addresses.split("-"))
        virtual += end - begin
        if mode[3] == "s":
            shared += end - begin
    # Listing a directory opens it, which is why one's own descriptor does not count.
    descriptors = len(os.listdir(process / "fd")) - (pid in ("self", os.getpid()))
    return Footprint(descriptors, len(os.listdir(process / "task")), shared, virtual)


def settled_footprint(before: Footprint, patience: float = 1.0) -> Footprint:
    """Measures this process once it holds no more than before, or when patience is at an end.

    Background threads take a moment to let go of what they used last.

    Args:
        before: What the process should come back to; its address space does not count.
        patience: Seconds.

    Returns:
        What it holds.
    """
    deadline = time.monotonic() + patience
    while (now := footprint())[:3] != before[:3] and time.monotonic() < deadline:
        time.sleep(0.01)
    return now


def is_running(pid: int | str) -> bool:
    """Whether a process lives; one that ended and was not yet reaped does not.

    Args:
        pid: Its process id.

    Returns:
        True if it lives.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def thread_states(pid: int) -> str:
    """Describes the threads of a process.

    Args:
        pid: Its process id.

    Returns:
        One line per thread: name, state, and where in the kernel it sleeps.
    """
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        try:
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            where = (task / "wchan").read_text()
            name = (task / "comm").read_text().strip()
        except OSError:
            continue  # it ended meanwhile
        lines.append(f"thread {task.name} ({name}): {state} {where}")
    return "\n".join(lines)


def _is_open(name: str) -> bool:
    """Whether a living process has this file of /dev/shm open or mapped."""
    path = f"/dev/shm/{name}"
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(link) == path for link in (process / "fd").iterdir()):
                return True
            if path in (process / "maps").read_text():
                return True
        except OSError:
            continue  # it ended, or it is another user's
    return False
