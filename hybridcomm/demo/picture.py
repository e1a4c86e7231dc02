"""One picture of the demonstration: loss over time, loss over steps, all-reduce times."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from hybridcomm.benchmark.styles import STYLES
from hybridcomm.benchmark.text import bytes_text, seconds_text

from .results import Results, Run

# Equal curves lie on each other: the first is drawn broad, the next ones narrow on top of it.
_WIDTHS = (4.0, 1.6, 1.6, 1.6)


def draw(results: Results, path: Path) -> None:
    """Draws the picture.

    Args:
        results: What was measured.
        path: The PNG to write.
    """
    figure = Figure(figsize=(15, 4.8), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    over_time, over_steps, times = figure.subplots(1, 3)
    for order, run in enumerate(results.runs):
        _curve(over_time, run, order, [report.seconds for report in run.validations])
        _curve(over_steps, run, order, [float(report.step) for report in run.validations])
    over_time.set(
        title="The same training, over time",
        xlabel="training time (s)",
        ylabel="validation loss (nats per character)",
    )
    over_steps.set(
        title="The same training, over steps",
        xlabel="optimizer steps",
        ylabel="validation loss (nats per character)",
    )
    _all_reduce(times, results)
    for axes in (over_time, over_steps, times):
        axes.grid(True, which="major", color="#DDDDDD", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    machine = results.machine
    figure.suptitle(
        f"{results.world_size} ranks on {machine.usable_cores:g} cores, {machine.cpu}; "
        f"hybridcomm {machine.hybridcomm}, torch {machine.torch}",
        fontsize=10,
        color="#555555",
    )
    figure.savefig(path)


def _curve(axes: Axes, run: Run, order: int, x: list[float]) -> None:
    style = STYLES[order % len(STYLES)]
    width = _WIDTHS[order % len(_WIDTHS)]
    losses = [report.loss for report in run.validations]
    axes.plot(x, losses, label=run.backend, linewidth=width, markersize=width + 2, **style)


def _all_reduce(axes: Axes, results: Results) -> None:
    rows = results.rows
    backends = list(rows[0].samples)
    sizes = [row.size for row in rows]
    for order, backend in enumerate(backends):
        style = STYLES[order % len(STYLES)]
        medians = [row.seconds(backend) for row in rows]
        axes.plot(sizes, medians, label=backend, linewidth=1.6, markersize=5, **style)
    for backend in backends[1:2]:
        for row in rows:
            ratio = row.times_faster(backend, than=backends[0]).median
            axes.annotate(
                f"{ratio:.3g}×",
                (row.size, row.seconds(backend)),
                xytext=(3, -13),
                textcoords="offset points",
                fontsize=8,
                color="#333333",
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.margins(x=0.1, y=0.15)
    axes.set_xticks(sizes)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: bytes_text(int(size))))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: seconds_text(seconds)))
    for label in axes.get_xticklabels():
        label.set(rotation=40, ha="right", rotation_mode="anchor")
    axes.set(title="all_reduce", xlabel="message size (fp32)", ylabel="time of a call (median)")
