"""The whole command with a text, a model and a table small enough for tests: `main` is a program.

Only the parent process is changed: the ranks get what to do from it.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hybridcomm import cli
from hybridcomm.demo import command, corpus
from hybridcomm.demo.settings import TableSettings
from tests.demo.conftest import TINY, write_corpus
from tests.demo.processes import REPOSITORY


def main() -> None:
    """Runs `hybridcomm demo` with the arguments of this process, in its working directory."""
    path = Path("readers_bible.py").resolve()
    write_corpus(path)
    corpus.find = lambda: path
    table = TableSettings(sizes=(4, 4096), pairs=2, sample_seconds=0.001)
    vars(command).update(
        Settings=lambda: TINY,
        TableSettings=lambda: dataclasses.replace(table),
    )
    sys.exit(cli.main(["demo", *sys.argv[1:]]))


def start(
    folder: Path, arguments: Sequence[str], terminal: int | None = None
) -> subprocess.Popen[str]:
    """Starts the program in a session of its own.

    Args:
        folder: Its working directory; its temporary files go into a subfolder, `temporary`.
        arguments: Arguments of the command.
        terminal: File descriptor to write to, a pipe if it is None.

    Returns:
        The process.
    """
    temporary = folder / "temporary"
    temporary.mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", "from tests.demo.tiny_demo import main; main()", *arguments],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if terminal is None else terminal,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
