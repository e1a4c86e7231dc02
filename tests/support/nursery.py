"""The nursery: one process that imports torch once and forks every rank from itself.

A rank then starts in milliseconds instead of seconds and shares torch's memory with the others,
so tests may kill ranks as freely as they like. Only torch is imported before the fork; a rank loads
hybridcomm's compiled part itself, as a user's process does.

Asked over a socket, one datagram per request:

=============  ==========================  =========================================
request        with descriptors            answer
=============  ==========================  =========================================
``fork``       the rank's connection, log  process id
``reap PID``                               exit status, negative for a signal
``remaining``                              descendants that still live, as PID NAME
=============  ==========================  =========================================
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import socket
import sys
from multiprocessing.connection import Connection
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _die_with_parent(parent: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


def _raise_a_rank(connection: int, log: int) -> None:
    """The first steps of a forked rank; returns when no more is asked of it."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    faulthandler.enable()
    # A stuck rank is asked where it stands by SIGUSR1; the answer needs no GIL.
    faulthandler.register(signal.SIGUSR1, all_threads=True)

    from tests.support import worker

    worker.serve(Connection(connection))


def _living_children() -> str:
    while True:  # first bury those that ended by themselves
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            return ""
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return ", ".join(f"{pid} {Path(f'/proc/{pid}/comm').read_text().strip()}" for pid in pids)


def main(descriptor: int, parent: int) -> None:
    """Serves the pool at the other end of `descriptor` until it closes it.

    Args:
        descriptor: A SOCK_SEQPACKET socket.
        parent: Process id of the pool's process; when that dies, so does everything here.
    """
    _die_with_parent(parent)
    # What a rank started and left behind becomes our child, and so cannot hide.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    import pytest  # noqa: F401 - the modules of the functions that ranks run import it
    import torch
    import torch.distributed
    import torch.nn.parallel

    torch.set_num_threads(1)
    gc.freeze()  # the ranks' collections then leave the shared pages of the imports alone
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(f"{threads} threads after the imports; a fork would lose all but one")

    control = socket.socket(fileno=descriptor)
    own = os.getpid()
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 256, 2)
        word, _, argument = request.decode().partition(" ")
        if word == "fork":
            pid = os.fork()
            if pid == 0:
                control.close()
                _die_with_parent(own)
                connection, log = descriptors
                _raise_a_rank(connection, log)
                return
            for passed in descriptors:
                os.close(passed)
            answer = str(pid)
        elif word == "reap":
            answer = str(os.waitstatus_to_exitcode(os.waitpid(int(argument), 0)[1]))
        elif word == "remaining":
            answer = _living_children()
        else:  # an empty datagram: the pool closed its end
            return
        control.send(answer.encode() or b"none")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
