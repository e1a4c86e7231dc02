"""Shows rows as they come, in nccl-tests' columns: live on a terminal, plain anywhere else."""

from __future__ import annotations

from types import TracebackType

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .cases import Case, Form, Measure
from .measure import Measured, Row
from .ratios import Quartiles
from .text import seconds_text

_REFRESHES = 4  # a second: the ranks need every core for themselves


class BenchmarkDisplay:
    """A table for each collective, dtype, reduction and world size. A context manager.

    Args:
        console: Where to show them.
        peers: Names of the peers, of which the first is what the others are compared with.
    """

    def __init__(self, console: Console, peers: tuple[str, ...]) -> None:
        self._console = console
        self._peers = peers
        self._rows: list[Row] = []
        self._doing = ""
        self._live = Live(console=console, refresh_per_second=_REFRESHES, transient=True)

    def __enter__(self) -> BenchmarkDisplay:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()
        self._print()  # after an error too: what was measured was measured

    def say(self, doing: str) -> None:
        """Shows what is being done.

        Args:
            doing: That.
        """
        self._doing = doing
        self._refresh()

    def show(self, row: Row) -> None:
        """Shows a row.

        Args:
            row: The row.
        """
        if self._rows and _kind(self._rows[-1].case) != _kind(row.case):
            self._print()
        self._rows.append(row)
        self._refresh()

    def _refresh(self) -> None:
        if self._console.is_terminal:
            parts = [*self._tables(), Text(f"{self._doing} …", style="dim")]
            self._live.update(Group(*parts))

    def _print(self) -> None:
        for part in self._tables():
            self._console.print(part)
        self._rows = []

    def _tables(self) -> list[Text | Table]:
        if not self._rows:
            return []
        title = Text(_title(self._rows[0].case), style="bold")
        return [title, make_table(self._rows, self._peers)]


def _kind(case: Case) -> tuple[object, ...]:
    return case.collective, case.dtype, case.reduction, case.world


def _title(case: Case) -> str:
    return f"{case.collective}, {case.world} ranks"


def make_table(rows: list[Row], peers: tuple[str, ...]) -> Table:
    """Lays out rows: a line for each size and peer, in place beside out of place.

    Args:
        rows: Rows of one collective, dtype, reduction and world size.
        peers: Names of the peers.

    Returns:
        The table.
    """
    forms = tuple(dict.fromkeys(row.case.form for row in rows))
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for name in ("size (B)", "count", "type", "redop"):
        table.add_column(name, justify="right")
    table.add_column("peer")
    for form in forms:
        where = f"{form.value}\n" if rows[0].case.traits.measure is not Measure.NOTHING else ""
        table.add_column(f"{where}time (quartiles)", justify="right")
        for name in ("algbw\nGB/s", "busbw\nGB/s", "#wrong"):
            table.add_column(name, justify="right")
        if len(peers) > 1:
            table.add_column(f"{peers[0]}\nis faster", justify="right")
    by_size: dict[int, dict[Form, Row]] = {}
    for row in rows:
        by_size.setdefault(row.case.size, {})[row.case.form] = row
    for at_size in by_size.values():
        case = next(iter(at_size.values())).case
        lead = [str(case.size), str(case.count), case.dtype, case.reduction or "–"]
        for peer in peers:
            cells = [cell for form in forms for cell in _cells(at_size.get(form), peer, peers)]
            table.add_row(*lead, peer, *cells)
            lead = [""] * len(lead)
        table.add_section()
    return table


def _cells(row: Row | None, peer: str, peers: tuple[str, ...]) -> list[str | Text]:
    compared = len(peers) > 1
    empty: list[str | Text] = [""] * (4 + compared)
    if row is None:
        return empty
    measured = row.peers[peer]
    if measured.refused:
        return [Text(measured.refused, style="dim"), *empty[1:]]
    seconds = measured.seconds.median
    cells: list[str | Text] = [
        _time(measured.seconds),
        _rate(row.case.algorithm_bandwidth(seconds)),
        _rate(row.case.bus_bandwidth(seconds)),
        _wrong(measured),
    ]
    if compared:
        ratio = row.times_faster(peer) if peer != peers[0] else None
        cells.append(str(ratio) if ratio else "")
    return cells


def _time(times: Quartiles) -> str:
    return f"{seconds_text(times.median)} ({seconds_text(times.low)} – {seconds_text(times.high)})"


def _rate(gigabytes: float) -> str:
    return f"{gigabytes:.3g}" if gigabytes else "–"


def _wrong(measured: Measured) -> str | Text:
    if measured.wrong is None:
        return "–"
    return Text(str(measured.wrong), style="bold red" if measured.wrong else "")
