"""The examples run, and the README shows what is run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hybridcomm import _compiled

REPOSITORY = Path(__file__).resolve().parents[1]
EXAMPLES = REPOSITORY / "examples"


def _run(name: str) -> str:
    """What an example prints on two ranks."""
    try:
        _compiled.load()
    except ImportError as error:
        pytest.skip(str(error))
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *command, str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _losses(printed: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", printed)]


def test_ddp_torchrun() -> None:
    """The loss falls to next to nothing."""
    losses = _losses(_run("ddp_torchrun.py"))
    assert len(losses) == 4
    assert losses[-1] < 0.1 < losses[0]


def test_fsdp2_torchrun() -> None:
    """The loss falls, and each rank keeps half of the parameters."""
    printed = _run("fsdp2_torchrun.py")
    losses = _losses(printed)
    assert len(losses) == 4
    assert losses[-1] < 0.1 < losses[0]
    kept = re.findall(r"rank \d keeps (\d+) of (\d+) parameters", printed)
    assert [total for _, total in kept] == ["16897"] * 2
    assert [int(here) for here, _ in kept] == [8577, 8320]


def test_dtensor_tensor_parallel() -> None:
    """Half of the weights is here, and nothing differs."""
    printed = _run("dtensor_tensor_parallel.py")
    assert "rank 0 has (128, 64) of the first layer's (256, 64) weights" in printed
    assert _difference(printed) < 1e-6


def test_compile_functional() -> None:
    """What is compiled does what is not."""
    printed = _run("compile_functional.py")
    assert "mean 0.000, variance 1.000" in printed
    assert _difference(printed) < 1e-4


def _difference(printed: str) -> float:
    found = re.search(r"greatest difference .*: ([\d.e+-]+)", printed)
    assert found is not None
    return float(found[1])


def test_the_readme_shows_the_example() -> None:
    """To the letter."""
    assert (
        f"```python\n{(EXAMPLES / 'ddp_torchrun.py').read_text()}```"
        in (REPOSITORY / "README.md").read_text()
    )
