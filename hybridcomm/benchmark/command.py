"""`python -m hybridcomm bench`: measures collectives, ours and others', in turn."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from hybridcomm.info import look

from .cases import COLLECTIVES, ITEM_SIZES, REDUCTIONS, Case, Form, Measure, make_case
from .measure import Row, Sampling, measure
from .peers import NAMES, OURS, Peer, PeerError
from .results import Results
from .table import BenchmarkDisplay
from .team import Team, TeamError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LARGEST_WORLD = 256
_FILE_WIDTH = 160

_T = TypeVar("_T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments.

    Args:
        parser: Gets the arguments.
    """
    sampling = Sampling()
    parser.add_argument(
        "collectives",
        nargs="*",
        type=_one_of(COLLECTIVES),
        metavar="COLLECTIVE",
        help=f"what to measure, of {', '.join(COLLECTIVES)} (all of them)",
    )
    parser.add_argument(
        "--measure",
        type=_peer,
        default=Peer(OURS),
        metavar="PEER",
        help=f"what the others are compared with ({OURS})",
    )
    parser.add_argument(
        "--compare",
        type=_list_of(_peer),
        default=(),
        metavar="PEER,...",
        help=f"measured beside it, in turn with it, of {', '.join(NAMES)}; torch is its `fake` "
        "backend, which only dispatches; bound is what the processes copy together, past the "
        f"caches; an algorithm can be fixed: {OURS}/ring",
    )
    parser.add_argument("-b", "--min-bytes", type=_size, default=4, metavar="SIZE", help="(4)")
    parser.add_argument(
        "-e", "--max-bytes", type=_size, default=64 << 20, metavar="SIZE", help="(64M)"
    )
    parser.add_argument(
        "-f", "--step-factor", type=_whole(2), default=8, metavar="N", help="from size to size (8)"
    )
    parser.add_argument(
        "--sizes",
        type=_list_of(_size),
        metavar="SIZE,...",
        help="instead of a sweep: these; K, M and G are powers of 1024, as in nccl-tests",
    )
    parser.add_argument(
        "--dtype",
        type=_list_of(_one_of(ITEM_SIZES)),
        default=("float32",),
        metavar="NAME,...",
        help="(float32)",
    )
    parser.add_argument(
        "--op",
        type=_list_of(_one_of(REDUCTIONS)),
        default=("sum",),
        metavar="NAME,...",
        help=f"of {', '.join(REDUCTIONS)} (sum)",
    )
    parser.add_argument(
        "--ranks",
        type=_list_of(_whole(2, _LARGEST_WORLD)),
        default=(2,),
        metavar="N,...",
        help="world sizes (2)",
    )
    parser.add_argument(
        "--form",
        choices=("both", "in", "out"),
        default="both",
        help="in place, out of place, or both where there are both (both)",
    )
    parser.add_argument(
        "--pairs",
        type=_whole(1),
        default=sampling.pairs,
        metavar="N",
        help=f"samples of each peer ({sampling.pairs})",
    )
    parser.add_argument(
        "--sample-ms",
        type=_whole(1),
        default=round(sampling.seconds * 1e3),
        metavar="N",
        help=f"about how long a sample takes ({round(sampling.seconds * 1e3)})",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw there, by its ending: .png or .svg"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the benchmark.

    Args:
        arguments: What `add_arguments` declared, parsed.

    Returns:
        0; 1 if a result was wrong, something is missing or a peer failed; 130 after Ctrl-C.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH  # a table in a file need not be squeezed
    try:
        return _run(console, arguments)
    except (PeerError, TeamError, _Unusable) as error:
        print(f"hybridcomm bench: {error}", file=sys.stderr)
        return 1


class _Unusable(RuntimeError):
    """A file cannot be written, or nothing is left to measure."""


def _run(console: Console, arguments: argparse.Namespace) -> int:
    peers: tuple[Peer, ...] = tuple(dict.fromkeys((arguments.measure, *arguments.compare)))
    sampling = Sampling(arguments.pairs, arguments.sample_ms / 1e3)
    # What is missing is said before minutes are spent.
    _check_files(arguments)
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    machine = look()
    console.print(
        f"{machine.cpu}, {machine.usable_cores:g} cores; {sampling.pairs} samples of each, in turn"
    )
    rows: list[Row] = []
    versions: dict[str, str] = {}
    names = tuple(peer.name for peer in peers)
    for world in arguments.ranks:
        cases = list(_cases(arguments, world))
        if not cases:
            raise _Unusable(f"--form {arguments.form}: none of the collectives is offered so")
        with BenchmarkDisplay(console, names) as display, contextlib.ExitStack() as stack:
            teams: dict[str, Team] = {}
            for peer in peers:
                display.say(f"starting {world} ranks of {peer.name}")
                teams[peer.name] = stack.enter_context(peer.team(world))
            versions = {name: team.version for name, team in teams.items()}
            for case in cases:
                refusals = {peer.name: peer.refuses(case) for peer in peers}
                row = measure(case, teams, refusals, sampling, display.say)
                rows.append(row)
                display.show(row)
    for name, version in versions.items():
        console.print(f"{name}: {version}", style="dim", soft_wrap=True)
    command = shlex.join(["python", "-m", "hybridcomm", *sys.argv[1:]])
    results = Results(command, started, machine, versions, sampling, rows)
    if arguments.json:
        results.write(arguments.json)
        console.print(f"Raw numbers: {arguments.json}", soft_wrap=True)
    if arguments.plot:
        from .picture import draw  # only now: matplotlib takes a while to import

        draw(results, arguments.plot)
        console.print(f"Picture: {arguments.plot}", soft_wrap=True)
    return _report_wrong(rows)


def _report_wrong(rows: Sequence[Row]) -> int:
    status = 0
    for row in rows:
        for name, measured in row.peers.items():
            if measured.wrong:
                print(
                    f"hybridcomm bench: {name}: {row.case}, {row.case.world} ranks: "
                    f"{measured.wrong} elements were wrong",
                    file=sys.stderr,
                )
                status = 1
    return status


def _cases(arguments: argparse.Namespace, world: int) -> Iterator[Case]:
    forms = {
        "both": (Form.OUT_OF_PLACE, Form.IN_PLACE),
        "in": (Form.IN_PLACE,),
        "out": (Form.OUT_OF_PLACE,),
    }[arguments.form]
    done: set[Case] = set()
    for collective in arguments.collectives or COLLECTIVES:
        traits = COLLECTIVES[collective]
        for dtype in arguments.dtype:
            for reduction in arguments.op:
                for size in _sizes(arguments):
                    for form in forms:
                        if form not in traits.forms and traits.measure is not Measure.NOTHING:
                            continue
                        form = form if form in traits.forms else traits.forms[0]
                        case = make_case(collective, dtype, reduction, size, world, form)
                        if case not in done:
                            done.add(case)
                            yield case


def _sizes(arguments: argparse.Namespace) -> Sequence[int]:
    if arguments.sizes:
        sizes: tuple[int, ...] = arguments.sizes
        return sizes
    swept = [arguments.min_bytes]
    while swept[-1] * arguments.step_factor <= arguments.max_bytes:
        swept.append(swept[-1] * arguments.step_factor)
    return swept


def _check_files(arguments: argparse.Namespace) -> None:
    for option, path in (("--json", arguments.json), ("--plot", arguments.plot)):
        if path is not None and not path.absolute().parent.is_dir():
            raise _Unusable(f"{option} {path}: there is no folder {path.parent}")
    if arguments.plot is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise _Unusable("matplotlib is missing; install it with: python -m pip install matplotlib")
    if arguments.plot.suffix not in (".png", ".svg", ".pdf"):
        raise _Unusable(f"--plot {arguments.plot}: the ending must be .png, .svg or .pdf")


# ---- arguments -----------------------------------------------------------------------------------


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 4, 64K or 25MB")
    size = int(float(match[1]) * _UNITS[match[2].upper()])
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is less than a byte")
    return size


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    upto = "on" if most is None else f"to {most}"
    where = f"from {least} {upto}"

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
            raise argparse.ArgumentTypeError(f"{text!r} is no number {where}")
        return int(text)

    return parse


def _peer(text: str) -> Peer:
    try:
        return Peer(text)
    except PeerError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _one_of(names: Iterable[str]) -> Callable[[str], str]:
    known = tuple(names)

    def parse(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(known)}")
        return text

    return parse


def _list_of(parse: Callable[[str], _T]) -> Callable[[str], tuple[_T, ...]]:
    return lambda text: tuple(dict.fromkeys(parse(word) for word in text.split(",")))
