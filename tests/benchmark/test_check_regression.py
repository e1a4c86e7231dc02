"""The gate looks at ratios alone, and what it has no baseline for fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hybridcomm.benchmark.cases import Form, make_case
from hybridcomm.benchmark.measure import Measured, Row, Sampling
from hybridcomm.benchmark.results import Results
from hybridcomm.info import look

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "check_regression.py"


def write(path: Path, ours: dict[int, float], gloo: float = 8.0) -> Path:
    """A run: our time by size, and Gloo's."""
    rows = [
        Row(
            make_case("all_reduce", "float32", "sum", size, 2, Form.IN_PLACE),
            {"hybridcomm": Measured((seconds,) * 3, 1, 0), "gloo": Measured((gloo,) * 3, 1, 0)},
        )
        for size, seconds in ours.items()
    ]
    Results("bench", "2026-01-01", look(), {}, Sampling(3), rows).write(path)
    return path


def check(baseline: Path, new: Path) -> tuple[int, str]:
    """Runs the gate."""
    done = subprocess.run(
        [sys.executable, SCRIPT, baseline, new], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("ours", "gloo", "status", "said"),
    [
        ({4: 1.0, 64: 1.0}, 8.0, 0, "2 ratios: none has become worse"),
        ({4: 10.0, 64: 10.0}, 80.0, 0, "none has become worse"),  # a slower machine
        ({4: 1.0, 64: 2.0}, 8.0, 1, "all_reduce sum of 16 float32, in place, 2 ranks"),
        ({4: 1.0}, 8.0, 1, "only the baseline has it"),
        ({4: 1.0, 64: 1.0, 256: 1.0}, 8.0, 1, "the baseline has nothing to compare with"),
    ],
)
def test_ratios_are_gated(
    tmp_path: Path, ours: dict[int, float], gloo: float, status: int, said: str
) -> None:
    """A planted slowdown fails; a slower machine does not."""
    baseline = write(tmp_path / "baseline.json", {4: 1.0, 64: 1.0})
    found = check(baseline, write(tmp_path / "new.json", ours, gloo))
    assert found[0] == status
    assert said in found[1]


def test_a_missing_baseline_fails(tmp_path: Path) -> None:
    """As does a file of something else."""
    new = write(tmp_path / "new.json", {4: 1.0})
    assert check(tmp_path / "none.json", new)[0] == 2
    (tmp_path / "other.json").write_text("[]")
    status, said = check(tmp_path / "other.json", new)
    assert status == 2
    assert "no results of a benchmark" in said
