"""`python -m hybridcomm info`: what the machine and this build have."""

from __future__ import annotations

import argparse
import dataclasses
import json

from hybridcomm.info import describe, look


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments.

    Args:
        parser: Gets the arguments.
    """
    parser.add_argument("--json", action="store_true", help="print it for programs")


def run(arguments: argparse.Namespace) -> int:
    """Prints what there is.

    Args:
        arguments: What `add_arguments` declared, parsed.

    Returns:
        0.
    """
    machine = look()
    if arguments.json:
        print(json.dumps(dataclasses.asdict(machine), indent=1))
        return 0
    lines = describe(machine)
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        print(f"{name:<{width}}  {value}")
    return 0
