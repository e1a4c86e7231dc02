"""``python -m hybridcomm program``: print, verify or compile the program of an algorithm."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .flat import encode
from .layout import Layout, collective_named
from .registry import algorithms, build, collectives
from .text import format_program
from .verify import verify

# A person neither reads nor waits for more.
_MOST_VERIFIED = 256
_MOST_PRINTED = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments.

    Args:
        parser: Gets the arguments.
    """
    parser.description = "Print the program of an algorithm: every rank's steps."
    parser.add_argument("collective", choices=collectives())
    parser.add_argument(
        "--algorithm",
        metavar="NAME",
        help="; ".join(f"{name}: {', '.join(algorithms(name))}" for name in collectives())
        + " (default: the first)",
    )
    parser.add_argument("--world", type=int, default=4, metavar="N", help="number of ranks (4)")
    parser.add_argument("--channels", type=int, default=1, metavar="C", help="channels (1)")
    parser.add_argument("--root", type=int, metavar="R", help="root rank (0 where there is one)")
    parser.add_argument("--rank", type=int, metavar="R", help="this rank only (default: all)")
    parser.add_argument("--verify", action="store_true", help="prove it instead of printing it")
    parser.add_argument(
        "--flat",
        type=Path,
        metavar="FILE",
        help="write the flat form: FILE for one --rank, else FILE.rank0, FILE.rank1, ...",
    )


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say.

    Args:
        args: What ``add_arguments`` declared, parsed.

    Returns:
        0; 1 if the program has faults; 2 if an argument is wrong.
    """
    try:
        return _run(args)
    except (ValueError, OSError) as error:
        print(f"hybridcomm program: {error}", file=sys.stderr)
        return 2


def _check_size(args: argparse.Namespace) -> None:
    if args.verify and args.world > _MOST_VERIFIED:
        raise ValueError(
            f"--world {args.world}: verifying takes minutes beyond {_MOST_VERIFIED} ranks"
        )
    if args.rank is None and args.world > _MOST_PRINTED:
        raise ValueError(
            f"--world {args.world}: name one --rank; all are printed up to {_MOST_PRINTED} ranks"
        )


def _run(args: argparse.Namespace) -> int:
    algorithm = args.algorithm or algorithms(args.collective)[0]
    root = args.root
    if root is None and Layout(collective_named(args.collective), 1, 1).rooted:
        root = 0
    _check_size(args)
    program = build(args.collective, algorithm, args.world, channels=args.channels, root=root)
    if args.flat is not None:
        ranks = range(args.world) if args.rank is None else [args.rank]
        for rank in ranks:
            suffix = f".rank{rank}" if args.rank is None else ""
            path = args.flat.with_name(args.flat.name + suffix)
            path.write_bytes(encode(program.rank_program(rank)))
            print(f"wrote {path}")
    if args.verify:
        report = verify(program)
        print(report)
        return 0 if report.ok else 1
    if args.flat is None:
        print(format_program(program, args.rank), end="")
    return 0
