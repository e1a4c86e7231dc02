"""The examples run, and the README shows what is run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hybridcomm import _compiled

REPOSITORY = Path(__file__).resolve().parents[1]
EXAMPLE = REPOSITORY / "examples" / "ddp_torchrun.py"


def test_ddp_torchrun() -> None:
    """The loss falls to next to nothing."""
    try:
        _compiled.load()
    except ImportError as error:
        pytest.skip(str(error))
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", done.stdout)]
    assert len(losses) == 4
    assert losses[-1] < 0.1 < losses[0]


def test_the_readme_shows_the_example() -> None:
    """To the letter."""
    assert f"```python\n{EXAMPLE.read_text()}```" in (REPOSITORY / "README.md").read_text()
