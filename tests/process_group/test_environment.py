"""Slips in the names of environment variables are told."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from hybridcomm.process_group import environment

_ROOT = Path(__file__).resolve().parents[2]


def test_the_list_is_that_of_the_sources() -> None:
    """Every variable that some source file names is known, and none besides."""
    named = set()
    for folder in ("csrc", "hybridcomm"):
        for path in (_ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".h", ".cpp"} and path.name != "environment.py":
                named |= set(re.findall(r'"(HYBRIDCOMM_[A-Z_]+)"', path.read_text()))
    named |= set(re.findall(r"HYBRIDCOMM_[A-Z_]+", (_ROOT / "csrc" / "Makefile").read_text()))
    named |= set(re.findall(r'"(HYBRIDCOMM_[A-Z_]+)"', (_ROOT / "setup.py").read_text()))
    assert named == environment.VARIABLES


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "HYBRIDCOMM_SLOT_BYTE",
            "reads no variable HYBRIDCOMM_SLOT_BYTE; did you mean HYBRIDCOMM_",
        ),
        ("HYBRIDCOMM_ALGORITHMS", "did you mean HYBRIDCOMM_ALGORITHM?"),
        ("HYBRIDCOMM_XYZ", "there are HYBRIDCOMM_ALGORITHM, "),
    ],
)
def test_a_slip_is_told(name: str, sentence: str) -> None:
    [told] = environment.unknown({name: "1", "HYBRIDCOMM_SLOTS": "4", "OTHER_SLOTS": "4"})
    assert sentence in told


def test_it_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_looked", False)
    monkeypatch.setenv("HYBRIDCOMM_SLOTZ", "1")
    with pytest.warns(UserWarning, match="HYBRIDCOMM_SLOTZ"):
        environment.warn_of_unknown()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        environment.warn_of_unknown()
