"""Pictures of a run: time, bus bandwidth beside the bound, and the ratio to each peer."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from .cases import Case
from .measure import Row
from .results import Results
from .styles import STYLES
from .text import bytes_text, seconds_text

_BOUND = {"color": "#777777", "linestyle": (0, (1, 1)), "marker": ""}


def draw(results: Results, path: Path) -> None:
    """Draws one line of panels for each collective, dtype, reduction, world size and form.

    Args:
        results: What was measured; rows without a size are left out.
        path: The picture to write, its kind by its ending: .png, .svg or .pdf.
    """
    series: dict[tuple[object, ...], list[Row]] = {}
    for row in results.rows:
        if row.case.size:
            series.setdefault(_kind(row.case), []).append(row)
    lines = max(len(series), 1)
    figure = Figure(figsize=(15, 4.2 * lines), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(lines, 3, squeeze=False)
    for (time, bandwidth, ratio), rows in zip(panels, series.values(), strict=False):
        _draw_line(time, bandwidth, ratio, rows, list(results.versions))
    machine = results.machine
    figure.suptitle(
        f"{machine.cpu}, {machine.usable_cores:g} cores; hybridcomm {machine.hybridcomm}, "
        f"torch {machine.torch}; {results.date[:10]}",
        fontsize=10,
        color="#555555",
    )
    figure.savefig(path)


def _kind(case: Case) -> tuple[object, ...]:
    return case.collective, case.dtype, case.reduction, case.world, case.form


def _draw_line(time: Axes, bandwidth: Axes, ratio: Axes, rows: list[Row], peers: list[str]) -> None:
    case = rows[0].case
    for order, peer in enumerate(peers):
        done = [row for row in rows if row.peers[peer].samples]
        sizes = [row.case.size for row in done]
        seconds = [row.peers[peer].seconds for row in done]
        style = _BOUND if peer.startswith("bound") else STYLES[order % len(STYLES)]
        time.plot(sizes, [times.median for times in seconds], label=peer, **style)
        time.fill_between(
            sizes,
            [times.low for times in seconds],
            [times.high for times in seconds],
            color=style["color"],
            alpha=0.15,
            linewidth=0,
        )
        rates = [
            row.case.bus_bandwidth(times.median) for row, times in zip(done, seconds, strict=True)
        ]
        bandwidth.plot(sizes, rates, label=peer, **style)
        if order:
            pairs = [(row, row.times_faster(peer)) for row in done]
            known = [(row.case.size, faster.median) for row, faster in pairs if faster]
            ratio.plot(*zip(*known, strict=True) if known else ([], []), label=peer, **style)
    ratio.axhline(1.0, color="#000000", linewidth=0.8)
    reduction = f" {case.reduction}" if case.reduction else ""
    what = f"{case.collective}{reduction}, {case.dtype}, {case.world} ranks, {case.form.value}"
    time.set(title=what, ylabel="time of a call: median, quartiles")
    bandwidth.set(title="the busiest link", ylabel="busbw (GB/s)")
    ratio.set(title=f"{peers[0]} is faster than", ylabel="ratio within pairs: median")
    for axes in (time, bandwidth, ratio):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("size")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: bytes_text(round(size))))
        axes.grid(True, which="major", color="#DDDDDD", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(frameon=False, fontsize=8)
    time.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: seconds_text(seconds)))
    for axes in (bandwidth, ratio):
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
