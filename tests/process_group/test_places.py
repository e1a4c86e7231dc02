"""Ranks that cannot share memory are told so by name, at once, and no address is handed out."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

import hybridcomm
from tests.support.caught import Caught, caught
from tests.support.ranks import RankPool
from tests.support.worker import rank_of_call, report

# Linux: sched.h, sys/mount.h
_CLONE_NEWNS = 0x20000
_CLONE_NEWNET = 0x40000000
_MS_BIND = 0x1000
_MS_PRIVATE_AND_BELOW = 0x44000
_BOOT_ID = b"/proc/sys/kernel/random/boot_id"

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _move_to_another_network() -> None:
    _check(_libc.unshare(_CLONE_NEWNET))


def _move_to_another_host() -> None:
    """To where no socket of the others' can be reached, and the boot id is another machine's."""
    _check(_libc.unshare(_CLONE_NEWNET | _CLONE_NEWNS))
    _check(_libc.mount(None, b"/", None, _MS_PRIVATE_AND_BELOW, None))
    with tempfile.NamedTemporaryFile("w") as other:
        other.write("01234567-89ab-cdef-0123-456789abcdef\n")
        other.flush()
        _check(_libc.mount(other.name.encode(), _BOOT_ID, None, _MS_BIND, None))


def _stay() -> None:
    pass


_MOVES: dict[str, Callable[[], None]] = {
    "network namespace": _move_to_another_network,
    "host": _move_to_another_host,
    "": _stay,
}


def _meet(place: str, store: str, by_message: bool) -> None:
    """Rank 1 goes elsewhere; all meet in a file. The processes are of no use afterwards."""
    rank = rank_of_call()
    try:
        if rank == 1:
            _MOVES[place]()
    except OSError as error:
        report(f"{error}")
        os._exit(0)
    hybridcomm.register()
    dist.init_process_group(
        "hybridcomm",
        store=FileStore(store, 2),
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=20),
    )

    def communicate() -> None:
        if not by_message:
            dist.all_reduce(torch.ones(1))
        elif rank == 0:
            dist.send(torch.ones(1), 1)
        else:
            dist.recv(torch.ones(1), 0)

    if place:
        report(caught(communicate))
    else:
        communicate()
        report("fine")
    os._exit(0)


def _reports(pool: RankPool, place: str, by_message: bool, directory: Path) -> dict[int, object]:
    call = pool.start(2, _meet, place, str(directory / "store"), by_message, group=False)
    reports = dict([call.next_report(), call.next_report()])
    call.outcomes(timeout=20)
    return reports


@pytest.mark.parametrize("by_message", [False, True], ids=["collective", "message"])
@pytest.mark.parametrize("place", ["network namespace", "host"])
def test_a_rank_elsewhere_is_refused_by_name(
    compiled: RankPool, place: str, by_message: bool, tmp_path: Path
) -> None:
    """A host name that resolves to 127.0.0.1 connects nobody (aws-do-eks#69)."""
    if os.geteuid() != 0 and os.environ.get("CI") != "true":
        pytest.skip("only root can move a process to another namespace")
    reports = _reports(compiled, place, by_message, tmp_path)
    for rank, error in reports.items():
        assert isinstance(error, Caught), error
        assert error.seconds < 2
        for words in (f"rank {1 - rank}", f"on rank {rank}"):
            assert words in error.message, error.message
    # Of two messages one may only say that the other rank has failed, and knows why.
    texts = [str(error) for error in reports.values()]
    assert sum(f"another {place}" in text for text in texts) >= (1 if by_message else 2), texts


def test_ranks_in_one_place_meet_in_a_file(compiled: RankPool, tmp_path: Path) -> None:
    """What the test above does differently must be the place."""
    assert _reports(compiled, "", False, tmp_path) == {0: "fine", 1: "fine"}
