"""The command as a person runs it: to its end, interrupted, and with a rank killed."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from tests.demo.backends import BACKENDS
from tests.demo.processes import rank_pids, session_members, wait_until_gone
from tests.demo.tiny_demo import start

ENDLESS = ("--backends", "gloo", "--steps", "1000000")


def read_until(process: subprocess.Popen[str], text: str) -> None:
    """Reads the output up to a line with a text in it."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    assert process.stderr is not None
    pytest.fail(f"{text!r} was never printed; errors: {process.stderr.read()}")


def finish(process: subprocess.Popen[str], folder: Path) -> tuple[int, str, str]:
    """Waits for the end; nothing may be left. Returns status, rest of the output and errors."""
    output, errors = process.communicate(timeout=60)
    assert wait_until_gone(session_members(process.pid)) == []
    # torch's own cache folder does stay.
    assert list((folder / "temporary").glob("*hybridcomm*")) == []
    return process.returncode, output, errors


@pytest.mark.parametrize("backend", [BACKENDS[-1]])
def test_a_whole_run(tmp_path: Path, backend: str) -> None:
    """In plain lines where there is no terminal, with the picture and the numbers at the end."""
    process = start(tmp_path, ["--out", "there/too"])
    status, output, errors = finish(process, tmp_path)
    assert (status, errors) == (0, "")
    assert "\x1b" not in output
    assert f"{backend}: step 8/8" in output
    assert f"{backend} is faster" in output
    assert "the same losses" in output
    assert "Picture: there/too/demo.png" in output
    assert (tmp_path / "there/too/demo.png").stat().st_size > 20_000
    runs = json.loads((tmp_path / "there/too/demo.json").read_text())["runs"]
    assert [run["backend"] for run in runs] == ["gloo", backend]


def test_progress_on_a_terminal(tmp_path: Path) -> None:
    """A bar that ends full."""
    ours, theirs = pty.openpty()
    with start(tmp_path, ["--backends", "gloo"], terminal=theirs) as process:
        os.close(theirs)
        output = bytearray()
        try:
            while piece := os.read(ours, 1 << 16):
                output += piece
        except OSError:
            pass  # Linux says EIO when the last writer is gone
        os.close(ours)
        assert finish(process, tmp_path)[0] == 0
    assert b"8/8" in output
    assert b"\x1b[" in output
    assert "━".encode() in output


@pytest.mark.parametrize(
    ("moment", "whole_group"),
    [("This machine", True), ("step 8/", False), ("step 8/", True)],
    ids=["starting", "training", "training, as a terminal does"],
)
def test_ctrl_c(tmp_path: Path, moment: str, whole_group: bool) -> None:
    """At any moment and with whomever the signal goes to: no rank left, no traceback."""
    process = start(tmp_path, ENDLESS)
    read_until(process, moment)
    if whole_group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    status, output, errors = finish(process, tmp_path)
    assert (status, errors) == (130, "")
    assert output.endswith("interrupted; all ranks have ended\n")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_rank(tmp_path: Path, backend: str) -> None:
    """It is named, the status says that it failed, and the other one is gone too."""
    victim = 1
    process = start(tmp_path, ["--backends", backend, *ENDLESS[2:]])
    read_until(process, "step 4/")
    os.kill(rank_pids(process.pid)[victim], signal.SIGKILL)
    status, _, errors = finish(process, tmp_path)
    assert status == 1
    assert errors.startswith(f"hybridcomm demo: rank {victim} was killed by SIGKILL\n")
    assert f"rank {1 - victim} then saw: " in errors
    assert "Traceback" not in errors
