"""Ranks that torch.multiprocessing spawns or forks, and a group in a forked child of a rank."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

from tests.process_group.fits.launch import WORLD
from tests.support.ranks import RankPool

_ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_ranks_started_by_torch(ours: RankPool, method: str) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    command = [sys.executable, "-m", "tests.process_group.fits.launch", method, str(store.port)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"^rank \d: \d+", done.stdout, re.MULTILINE)) == [
        f"rank {rank}: 44" for rank in range(WORLD)
    ]
    refusals = re.findall(r"^child of rank (\d): (.*)$", done.stdout, re.MULTILINE)
    assert sorted(rank for rank, _ in refusals) == [str(rank) for rank in range(WORLD)]
    for _, refusal in refusals:
        assert "fork" in refusal
