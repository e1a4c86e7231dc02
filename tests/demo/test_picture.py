"""The picture is drawn, from one backend or several, and the raw numbers are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hybridcomm.demo.exchange import Row
from hybridcomm.demo.picture import draw
from hybridcomm.demo.results import Results, Run
from hybridcomm.demo.settings import Settings, TableSettings
from hybridcomm.demo.train import Division, Step, Validation
from hybridcomm.info import look


def results(backends: tuple[str, ...]) -> Results:
    """Made-up results."""
    sizes = (4, 1 << 16, 100 << 20)
    rows = [
        Row(size, {name: [(size + 1000) / (order + 1)] for order, name in enumerate(backends)})
        for size in sizes
    ]
    runs = []
    for order, name in enumerate(backends):
        run = Run(name, tokens_per_step=64)
        for step in range(10):
            run.add(Step(name, step + 1, (step + 1) / (order + 1), 4.0 - step / 5))
            run.add(Validation(name, step + 1, (step + 1) / (order + 1), 4.1 - step / 5))
        run.add(Division(name, 0.5, 0.3, 0.2))
        runs.append(run)
    return Results(look(), 2, Settings(), TableSettings(), rows, runs)


@pytest.mark.parametrize("backends", [("gloo",), ("gloo", "hybridcomm"), tuple("abcde")])
def test_a_picture_is_drawn(tmp_path: Path, backends: tuple[str, ...]) -> None:
    """A PNG of three panels."""
    path = tmp_path / "demo.png"
    draw(results(backends), path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    assert path.stat().st_size > 20_000


def test_the_raw_numbers_are_written(tmp_path: Path) -> None:
    """With every sample, and what they were measured on."""
    path = tmp_path / "demo.json"
    results(("gloo", "hybridcomm")).write(path)
    written = json.loads(path.read_text())
    assert written["rows"][1]["samples"]["gloo"] == [(1 << 16) + 1000]
    last = {"backend": "hybridcomm", "step": 10, "seconds": 5.0, "train_loss": 2.2}
    assert written["runs"][1]["steps"][9] == last
    assert written["settings"]["model"]["width"] == Settings().model.width
    assert written["machine"]["usable_cores"] > 0


def test_rates() -> None:
    """Tokens/s is that of the whole run; turns share its time."""
    run = results(("gloo", "hybridcomm")).runs[1]
    assert run.seconds_per_step == 0.5
    assert run.tokens_per_second == 128
    assert run.turns(4) == [2.0, 2.0, 1.0]
    assert run.turns(5) == [2.5, 2.5]
    assert run.turns(25) == [5.0]
