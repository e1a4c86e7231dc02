"""The command line: `hybridcomm` or `python -m hybridcomm`.

Each command lives in a module with `add_arguments(parser)` and `run(arguments) -> int`, which is
imported only when it is the one asked for, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from hybridcomm import __version__


class _Command(NamedTuple):
    module: str
    help: str


_COMMANDS = {
    "bench": _Command(
        "hybridcomm.benchmark.command", "measure collectives, ours and others', in turn"
    ),
    "demo": _Command(
        "hybridcomm.demo.command", "train a small language model, over Gloo and over hybridcomm"
    ),
    "info": _Command("hybridcomm.info_command", "show what this machine and this build have"),
    "program": _Command("hybridcomm.programs.command", "print and verify a collective's program"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: Arguments without the program's name; those of the process by default.

    Returns:
        The exit status: 0, or what the command returns, or 130 after Ctrl-C.

    Raises:
        SystemExit: After `--help`, `--version` or a wrong argument.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="hybridcomm", description="Collectives for torch.")
    parser.add_argument("--version", action="version", version=f"hybridcomm {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    # The options of `parser` take no value, so the first word that is no option is the command.
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for name, command in _COMMANDS.items():
        subparser = commands.add_parser(name, help=command.help, description=command.help)
        if name == chosen:
            module = importlib.import_module(command.module)
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    parsed = parser.parse_args(arguments)
    try:
        status = int(parsed.run(parsed))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader, `head` perhaps, has seen enough. Python must not flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
