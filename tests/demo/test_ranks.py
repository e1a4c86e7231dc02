"""Ranks end together, whatever happens, and the one to blame is named."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridcomm.demo.ranks import Place, RankError, Ranks
from tests.demo.processes import REPOSITORY, alive, wait_until_gone


def work(place: Place, job: str, report: Callable[[int], None]) -> None:
    """What the ranks of these tests do: rank 1 as the job says, rank 0 waits where it must."""
    report(place.rank)
    if job == "return":
        return
    if place.rank == 1:
        if job == "raise":
            raise ValueError("the second rank\nhas had enough")
        if job == "exit":
            os._exit(7)
        if job == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    elif job == "kill":
        # A survivor notices the death and fails too, and its report comes first.
        raise ConnectionError("connection closed by peer")
    time.sleep(600)


def test_reports_of_all_ranks_arrive() -> None:
    """And the iteration ends when the ranks have."""
    with Ranks(work, 3, "return") as ranks:
        assert sorted(ranks) == [0, 1, 2]
        assert not any(map(alive, ranks.pids))


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("raise", r"rank 1 failed: Traceback[\s\S]*ValueError: the second rank\nhas had enough"),
        ("exit", r"rank 1 ended with exit status 7"),
        (
            "kill",
            r"rank 1 was killed by SIGKILL\n"
            r"rank 0 then saw: ConnectionError: connection closed by peer",
        ),
    ],
)
def test_the_rank_to_blame_is_named(job: str, message: str) -> None:
    """A killed one even if a survivor complained first; and none is left."""
    with pytest.raises(RankError) as error, Ranks(work, 2, job) as ranks:
        list(ranks)
    assert re.fullmatch(message, str(error.value))
    assert not any(map(alive, ranks.pids))


def test_leaving_early_ends_the_ranks() -> None:
    """As Ctrl-C does, anywhere inside the `with` block."""
    ranks: Ranks[str, int] = Ranks(work, 2, "wait")

    def interrupted() -> None:
        with ranks:
            assert all(map(alive, ranks.pids))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(ranks.pids) == 2
    assert not any(map(alive, ranks.pids))


def test_ranks_end_with_their_parent(tmp_path: Path) -> None:
    """A parent that is killed cannot end them, so they do, and clean up."""
    program = (
        "from hybridcomm.demo.ranks import Ranks\n"
        "from tests.demo.test_ranks import work\n"
        "with Ranks(work, 2, 'wait') as ranks:\n"
        "    reports = iter(ranks)\n"
        "    next(reports), next(reports)\n"
        "    print(*ranks.pids, flush=True)\n"
        "    next(reports)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
        parent.kill()
    assert wait_until_gone(pids) == []
    assert list(tmp_path.iterdir()) == []
