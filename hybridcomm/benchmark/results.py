"""What a run of the benchmark leaves: every sample, and all that is needed to repeat it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from hybridcomm.info import Machine

from .cases import Case, Form
from .measure import Measured, Row, Sampling

_DIGITS = 5  # of a time: more is noise


class ResultsError(ValueError):
    """A file holds no results; the message names it and says why."""


@dataclass(frozen=True)
class Results:
    """A run.

    Args:
        command: The command line.
        date: When it began, in ISO 8601.
        machine: What the machine has.
        versions: What each peer was, with its version.
        sampling: How samples were taken.
        rows: What was measured.
    """

    command: str
    date: str
    machine: Machine
    versions: Mapping[str, str]
    sampling: Sampling
    rows: list[Row]

    def write(self, path: Path) -> None:
        """Writes everything as JSON.

        Args:
            path: The file to write.
        """
        plain = dataclasses.asdict(self)
        # A line for each row: what differs between two files is then easy to see.
        rows = [json.dumps(row, default=_plain) for row in map(_rounded, plain.pop("rows"))]
        head = json.dumps(plain, indent=1, default=_plain)
        body = ",\n  ".join(rows)
        path.write_text(f'{head[:-2]},\n "rows": [\n  {body}\n ]\n}}\n', encoding="utf-8")


def read_rows(path: Path) -> list[Row]:
    """Reads what `Results.write` wrote.

    Args:
        path: The file.

    Returns:
        Its rows.

    Raises:
        ResultsError: It is missing or something else.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        return [_row(row) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{path}: no results of a benchmark: {error}") from None


def _row(plain: dict[str, Any]) -> Row:
    case = Case(**{**plain["case"], "form": Form(plain["case"]["form"])})
    peers = {
        name: Measured(**{**measured, "samples": tuple(measured["samples"])})
        for name, measured in plain["peers"].items()
    }
    return Row(case, peers)


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    for measured in row["peers"].values():
        measured["samples"] = [float(f"{sample:.{_DIGITS}g}") for sample in measured["samples"]]
    return row


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{value!r} cannot be written as JSON")
