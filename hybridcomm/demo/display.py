"""Shows training as it goes: progress bars on a terminal, plain lines anywhere else."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from .results import Run
from .train import TrainReport, Validation

_RATE_STEPS = 25  # tokens/s is that of the last so many steps


class TrainingDisplay:
    """The progress of trainings that take turns. A context manager.

    Args:
        console: Where to show it.
        backends: The backends trained over.
        steps: Optimizer steps of each.
    """

    def __init__(self, console: Console, backends: tuple[str, ...], steps: int) -> None:
        self._console = console
        self._steps = steps
        # Four times a second: the ranks need every core for themselves.
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=18),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[state]}"),
            console=console,
            refresh_per_second=4,
            disable=not console.is_terminal,
        )
        width = max(map(len, backends))
        self._tasks: dict[str, TaskID] = {
            backend: self._progress.add_task(backend.ljust(width), total=steps, state="starting")
            for backend in backends
        }

    def __enter__(self) -> TrainingDisplay:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def show(self, run: Run, report: TrainReport) -> None:
        """Shows a report.

        Args:
            run: The run so far, with the report in it.
            report: The report.
        """
        rate = _rate(run)
        parts = [f"{rate:,.0f} tokens/s"] if rate else []
        if run.validations:
            parts.append(f"validation loss {run.validations[-1].loss:.3f}")
        state = "  ".join(parts)
        task = self._tasks[run.backend]
        self._progress.update(task, completed=len(run.steps), state=state)
        if isinstance(report, Validation) and not self._console.is_terminal:
            text = f"{run.backend}: step {report.step}/{self._steps}  {state}"
            self._console.print(text, soft_wrap=True)


def _rate(run: Run) -> float:
    """Characters per second over the last steps."""
    recent = run.steps[-_RATE_STEPS - 1 :]
    if len(recent) < 2:
        return 0.0
    return run.tokens_per_step * (len(recent) - 1) / (recent[-1].seconds - recent[0].seconds)
