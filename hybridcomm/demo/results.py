"""What the demonstration has measured, as the parent process collects it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from hybridcomm.info import Machine

from .exchange import Row
from .settings import Settings, TableSettings
from .train import Division, Step, TrainReport, Validation


@dataclass
class Run:
    """One training run, growing as its reports come.

    Args:
        backend: Name of the torch.distributed backend.
        tokens_per_step: Characters of all ranks together in a step.
        steps: All steps done.
        validations: All validations done.
        division: How the step divides; known at the end of the run.
    """

    backend: str
    tokens_per_step: int
    steps: list[Step] = field(default_factory=list)
    validations: list[Validation] = field(default_factory=list)
    division: Division | None = None

    def add(self, report: TrainReport) -> None:
        """Takes in a report.

        Args:
            report: What the ranks reported.
        """
        if isinstance(report, Step):
            self.steps.append(report)
        elif isinstance(report, Validation):
            self.validations.append(report)
        else:
            self.division = report

    def turns(self, steps: int) -> list[float]:
        """Training time of each turn.

        Args:
            steps: Steps of a turn; the last one may have fewer.

        Returns:
            Seconds.
        """
        ends = [report.seconds for report in self.steps[steps - 1 :: steps]]
        if len(self.steps) % steps:
            ends.append(self.steps[-1].seconds)
        return [end - start for start, end in pairwise([0.0, *ends])]

    @property
    def seconds_per_step(self) -> float:
        """Training time per step."""
        return self.steps[-1].seconds / len(self.steps)

    @property
    def tokens_per_second(self) -> float:
        """Characters per second of training time."""
        return self.tokens_per_step / self.seconds_per_step


@dataclass(frozen=True)
class Results:
    """All that was measured, and on what.

    Args:
        machine: What the machine has.
        world_size: Number of ranks.
        settings: The training runs' settings.
        table_settings: The all-reduce table's settings.
        rows: The all-reduce table.
        runs: The training runs, one for each backend.
    """

    machine: Machine
    world_size: int
    settings: Settings
    table_settings: TableSettings
    rows: list[Row]
    runs: list[Run]

    def write(self, path: Path) -> None:
        """Writes everything, raw samples included, as JSON.

        Args:
            path: The file to write.
        """
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")


def largest_difference(one: Run, other: Run) -> float:
    """Compares the training losses of two runs.

    Args:
        one: A run.
        other: A run of the same settings.

    Returns:
        The largest difference of their training losses in any step, in nats per character.
    """
    pairs = zip(one.steps, other.steps, strict=True)
    return max(abs(a.train_loss - b.train_loss) for a, b in pairs)
