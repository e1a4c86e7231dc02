"""Builds and runs the C++ test programs, one pytest case for each."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted(path.stem for path in Path(__file__).parent.glob("*.cpp"))


@pytest.fixture(scope="module")
def built() -> None:
    """What make builds, it builds only if something changed."""
    done = subprocess.run(
        ["make", "-C", ROOT / "csrc", "-j2", "tests"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


# Programs with a planted fault are for the sanitizers: see run.sh.
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("name", [name for name in PROGRAMS if not name.startswith("planted_")])
def test_program(name: str) -> None:
    """It says what is wrong, if anything."""
    program = ROOT / "build" / "tests" / name
    done = subprocess.run([program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
