"""`python -m hybridcomm demo`: measures, trains over each backend, and shows the difference."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import sys
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from hybridcomm.benchmark.ratios import pair_ratios
from hybridcomm.benchmark.text import bytes_text, seconds_text
from hybridcomm.info import describe, look

from . import corpus, results
from .display import TrainingDisplay
from .exchange import Row, TableJob, exchange
from .model import CharacterGPT, parameter_count
from .ranks import RankError, Ranks
from .settings import Settings, TableSettings
from .train import TrainJob, train

_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments.

    Args:
        parser: Gets the arguments.
    """
    settings = Settings()
    parser.add_argument(
        "--backends",
        type=lambda names: tuple(dict.fromkeys(names.split(","))),
        default=("gloo", "hybridcomm"),
        metavar="NAME,...",
        help="backends, of which the first is what the others are compared with (gloo,hybridcomm)",
    )
    parser.add_argument(
        "--steps",
        type=_positive,
        default=settings.steps,
        metavar="N",
        help=f"optimizer steps of each training run ({settings.steps})",
    )
    parser.add_argument(
        "--ranks", type=_positive, default=2, metavar="N", help="number of ranks (2)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("demo-output"),
        metavar="DIR",
        help="folder for the picture and the raw numbers (demo-output)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the demonstration.

    Args:
        arguments: What `add_arguments` declared, parsed.

    Returns:
        0; 1 if something is missing or a rank failed; 130 after Ctrl-C.
    """
    console = Console(highlight=False)
    try:
        _run(console, arguments)
    except (corpus.CorpusError, RankError, _Missing) as error:
        print(f"hybridcomm demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; all ranks have ended")
        return _INTERRUPTED
    return 0


class _Missing(RuntimeError):
    """Something the demonstration needs is not installed."""


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _run(console: Console, arguments: argparse.Namespace) -> None:
    backends: tuple[str, ...] = arguments.backends
    ranks: int = arguments.ranks
    settings = dataclasses.replace(Settings(), steps=arguments.steps)
    # What is missing is said before minutes are spent.
    corpus_file = corpus.find()
    if importlib.util.find_spec("matplotlib") is None:
        raise _Missing("matplotlib is missing; install it with: python -m pip install matplotlib")
    arguments.out.mkdir(parents=True, exist_ok=True)

    machine = look()
    _print_lines(console, "This machine", describe(machine))
    table_settings = TableSettings()
    rows = measure_table(console, backends, ranks, table_settings)
    _print_table(
        console,
        f"all_reduce of fp32 on {ranks} ranks: median time of a call",
        _exchange_table(rows),
        f"{table_settings.pairs} samples of each; ratios within pairs: median (quartiles)",
    )
    _print_lines(console, "Training", _training_lines(corpus_file, settings, ranks))
    runs = train_in_turns(console, backends, ranks, settings, corpus_file)
    console.print()
    _print_table(
        console,
        "Training with DistributedDataParallel",
        _summary(runs),
        "parts of the step: medians of steps also run without exchange; loss: validated",
    )
    for line in _conclusions(runs, settings.turn):
        console.print(line)

    everything = results.Results(machine, ranks, settings, table_settings, rows, runs)
    everything.write(arguments.out / "demo.json")
    from .picture import draw  # only now: matplotlib takes a while to import

    draw(everything, arguments.out / "demo.png")
    console.print(f"\nPicture: {arguments.out / 'demo.png'}", soft_wrap=True)
    console.print(f"Raw numbers: {arguments.out / 'demo.json'}", soft_wrap=True)


def measure_table(
    console: Console, backends: tuple[str, ...], world_size: int, settings: TableSettings
) -> list[Row]:
    """Measures all_reduce over the backends.

    Args:
        console: Shows what is being measured.
        backends: Names of the backends.
        world_size: Number of ranks.
        settings: Sizes and number of samples.

    Returns:
        A row for each size.

    Raises:
        RankError: A rank failed or was killed.
    """
    rows: list[Row] = []
    job = TableJob(backends, settings)
    with console.status("measuring all_reduce"), Ranks(exchange, world_size, job) as ranks:
        for row in ranks:
            rows.append(row)
    return rows


def train_in_turns(
    console: Console,
    backends: tuple[str, ...],
    world_size: int,
    settings: Settings,
    corpus_file: Path,
) -> list[results.Run]:
    """Trains the model over each backend.

    Args:
        console: Shows the progress.
        backends: Names of the backends.
        world_size: Number of ranks.
        settings: Model, batch and schedule.
        corpus_file: The file the text is read from.

    Returns:
        The runs, in the order of the backends.

    Raises:
        RankError: A rank failed or was killed.
    """
    job = TrainJob(backends, settings, corpus_file)
    tokens = settings.batch * settings.model.context * world_size
    runs = {backend: results.Run(backend, tokens) for backend in backends}
    display = TrainingDisplay(console, backends, settings.steps)
    with display, Ranks(train, world_size, job) as ranks:
        for report in ranks:
            runs[report.backend].add(report)
            display.show(runs[report.backend], report)
    return list(runs.values())


def _print_lines(console: Console, title: str, lines: list[tuple[str, str]]) -> None:
    console.print(title, style="bold")
    grid = Table.grid(padding=(0, 2))
    for name, value in lines:
        grid.add_row(f"  {name}", value)
    console.print(grid)
    console.print()


def _print_table(console: Console, title: str, table: Table, note: str) -> None:
    console.print(title, style="bold")
    table.box = box.SIMPLE_HEAD
    table.collapse_padding = True
    table.pad_edge = False
    console.print(table)
    console.print(f"  {note}", style="dim")
    console.print()


def _exchange_table(rows: list[Row]) -> Table:
    backends = list(rows[0].samples)
    table = Table()
    for name in ("size", *backends, *(f"{backend} is faster" for backend in backends[1:])):
        table.add_column(name, justify="right")
    for row in rows:
        cells = [seconds_text(row.seconds(backend)) for backend in backends]
        for backend in backends[1:]:
            cells.append(str(row.times_faster(backend, than=backends[0])))
        table.add_row(bytes_text(row.size), *cells)
    return table


def _training_lines(corpus_file: Path, settings: Settings, ranks: int) -> list[tuple[str, str]]:
    text = corpus.load(corpus_file)
    shape = settings.model
    count = parameter_count(CharacterGPT(len(text.alphabet), shape))
    return [
        (
            "text",
            f"King James Bible, {len(text.train):,} characters to train, "
            f"{len(text.validation):,} to validate",
        ),
        (
            "model",
            f"GPT, {shape.layers} layers, {shape.width} wide, {count / 1e6:.1f} M parameters, "
            f"{bytes_text(4 * count)} of gradients",
        ),
        (
            "batch",
            f"{ranks} ranks × {settings.batch} × {shape.context} characters, "
            f"{settings.steps} steps, {settings.threads} thread a rank",
        ),
        (
            "turns",
            f"the backends take turns of {settings.turn} steps, each with a model of its own",
        ),
    ]


def _summary(runs: list[results.Run]) -> Table:
    table = Table()
    table.add_column("backend")
    for name in (
        "tokens/s",
        "step",
        "compute",
        "exchange",
        "optimizer",
        "exchange\nshare",
        "final\nloss",
    ):
        table.add_column(name, justify="right")
    for run in runs:
        division = ["–"] * 4
        if run.division is not None:
            parts = (run.division.compute, run.division.exchange, run.division.optimizer)
            division = [*map(seconds_text, parts), f"{run.division.exchange_share:.0%}"]
        table.add_row(
            run.backend,
            f"{run.tokens_per_second:,.0f}",
            seconds_text(run.seconds_per_step),
            *division,
            f"{run.validations[-1].loss:.4f}",
        )
    return table


def _conclusions(runs: list[results.Run], turn: int) -> list[str]:
    first = runs[0]
    lines = []
    for run in runs[1:]:
        ratio = pair_ratios(first.turns(turn), run.turns(turn))
        difference = results.largest_difference(first, run)
        same = f"training losses within {difference:.2g}" if difference else "the same losses"
        lines.append(f"{run.backend}: {ratio} the tokens/s of {first.backend}; {same}")
    return lines
