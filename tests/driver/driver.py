"""Runs the torch-free driver and reads what it reports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "build" / "driver" / "hybridcomm-driver"
PROGRAMS = ROOT / "build" / "programs"


class Outcome(NamedTuple):
    """How a run of the driver ended.

    Args:
        status: Exit status: 0 if all is well, 1 if a check failed, 2 if it was called wrongly.
        report: The JSON object that it printed; empty if none.
        complaints: What it wrote to stderr.
    """

    status: int
    report: dict[str, Any]
    complaints: str


@pytest.fixture(scope="session")
def built() -> None:
    """The driver and the programs; make builds only what changed."""
    done = subprocess.run(
        ["make", "-C", ROOT / "csrc", "-j2", "driver", "programs"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def prefixes(world: int, channels: int = 1, collective: str = "") -> list[str]:
    """All programs that the driver can run.

    It maps no memory of its callers, so those that need it are left out.

    Args:
        world: Number of ranks.
        channels: Number of channels.
        collective: Only this collective's.

    Returns:
        What ``--programs`` takes, one for each algorithm.
    """
    folder = PROGRAMS / f"w{world}c{channels}"
    names = sorted(path.stem for path in folder.glob("*.rank0"))
    found = [str(folder / name) for name in names if not name.endswith("_mapped")]
    assert len(found) >= 23
    return [path for path in found if f"/{collective}" in path]


def run(
    mode: str,
    world: int,
    *arguments: object,
    channels: int = 1,
    collective: str = "",
    limit: float = 60,
) -> Outcome:
    """Run the driver over all programs, and see that no process of it is left.

    Args:
        mode: ``run`` or ``kill``.
        world: Number of ranks.
        arguments: Further options.
        channels: Number of channels.
        collective: Only this collective's programs.
        limit: Seconds after which the run counts as hung.

    Returns:
        How it ended.
    """
    command = [DRIVER, mode, "--world", world, "--channels", channels]
    command += ["--programs", ",".join(prefixes(world, channels, collective)), *arguments]
    # A session of its own: whatever it starts is in its process group.
    with subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, complaints = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    try:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail("ranks outlive the driver")
    except ProcessLookupError:
        pass
    return Outcome(process.returncode, json.loads(out) if out else {}, complaints)
