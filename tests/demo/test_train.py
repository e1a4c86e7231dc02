"""Training: the same batches, weights and losses for every backend, and the step's division."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from hybridcomm.demo import corpus
from hybridcomm.demo.ranks import Place, Ranks
from hybridcomm.demo.results import Run, largest_difference
from hybridcomm.demo.settings import Settings
from hybridcomm.demo.train import (
    Division,
    TrainJob,
    TrainReport,
    learning_rate,
    train,
    train_windows,
    validation_windows,
)
from tests.demo.backends import BACKENDS


def train_over(backend: str, settings: Settings, corpus_file: Path) -> Run:
    """Trains over one backend and collects the reports."""
    return train_in_turns((backend,), settings, corpus_file)[0]


def train_in_turns(backends: tuple[str, ...], settings: Settings, corpus_file: Path) -> list[Run]:
    """Trains over several backends and collects the reports."""
    runs = {backend: Run(backend, 0) for backend in backends}
    job = TrainJob(backends, settings, corpus_file)
    ranks: Ranks[TrainJob, TrainReport] = Ranks(train, 2, job)
    with ranks:
        for report in ranks:
            runs[report.backend].add(report)
    return list(runs.values())


@pytest.fixture(scope="module")
def gloo_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, Path, Run]:
    """A run over Gloo that others are compared with."""
    from tests.demo.conftest import TINY, write_corpus

    path = tmp_path_factory.mktemp("corpus") / "readers_bible.py"
    write_corpus(path)
    return TINY, path, train_over("gloo", TINY, path)


def test_what_a_run_reports(gloo_run: tuple[Settings, Path, Run]) -> None:
    """Every step, the validations that were asked for and the division, and the loss falls."""
    settings, _, run = gloo_run
    assert [report.step for report in run.steps] == list(range(1, settings.steps + 1))
    assert [report.step for report in run.validations] == [0, 4, 8]
    assert run.validations[-1].loss < run.validations[0].loss
    seconds = [report.seconds for report in run.steps]
    assert seconds == sorted(seconds)
    assert run.division is not None
    assert 0 < run.division.compute < 1
    assert 0 < run.division.optimizer < 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_seeds_give_equal_losses(gloo_run: tuple[Settings, Path, Run], backend: str) -> None:
    """Over any backend: with two ranks there is but one order to add in, so to the last bit."""
    settings, path, run = gloo_run
    again = train_over(backend, settings, path)
    assert largest_difference(run, again) == 0
    assert [report.loss for report in again.validations] == [
        report.loss for report in run.validations
    ]


def test_plain_python_gives_the_same_losses(
    gloo_run: tuple[Settings, Path, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The implementation without anything compiled, to the last bit as well."""
    settings, path, run = gloo_run
    monkeypatch.setenv("HYBRIDCOMM_IMPL", "reference")
    assert largest_difference(run, train_over("hybridcomm", settings, path)) == 0


@pytest.mark.parametrize("backend", [BACKENDS[-1]])
def test_turns_do_not_change_training(gloo_run: tuple[Settings, Path, Run], backend: str) -> None:
    """Taking turns with another backend gives the losses of training alone."""
    settings, path, run = gloo_run
    for again in train_in_turns(("gloo", backend), dataclasses.replace(settings, turn=3), path):
        assert [report.step for report in again.steps] == list(range(1, settings.steps + 1))
        assert largest_difference(run, again) == 0
        assert again.division is not None


def test_another_seed_gives_other_losses(gloo_run: tuple[Settings, Path, Run]) -> None:
    """So the comparison above can fail."""
    settings, path, run = gloo_run
    other = train_over("gloo", dataclasses.replace(settings, seed=2), path)
    assert largest_difference(run, other) > 0


def test_probes_do_not_change_training(gloo_run: tuple[Settings, Path, Run]) -> None:
    """Without them the losses are the same, and there is no division."""
    settings, path, run = gloo_run
    unprobed = train_over("gloo", dataclasses.replace(settings, first_probe=settings.steps), path)
    assert largest_difference(run, unprobed) == 0
    assert run.division is not None
    assert unprobed.division is None


def test_batches_are_fixed_and_differ_between_ranks(tiny: Settings, corpus_file: Path) -> None:
    """They are windows of the text, the same in every run."""
    numbers = corpus.load(corpus_file).train
    one, again = (train_windows(numbers, tiny, rank=0) for _ in range(2))
    other = train_windows(numbers, tiny, rank=1)
    for step in range(tiny.steps):
        assert one(step).shape == (tiny.batch, tiny.model.context + 1)
        assert torch.equal(one(step), again(step))
        assert not torch.equal(one(step), other(step))
        assert all(bytes(window.tolist()) in numbers for window in one(step))


def test_ranks_share_the_validation_windows(tiny: Settings, corpus_file: Path) -> None:
    """Two ranks have, between them, what one rank would have."""
    numbers = corpus.load(corpus_file).validation
    alone = validation_windows(numbers, tiny, Place(0, 1, Path()))
    first, second = (validation_windows(numbers, tiny, Place(rank, 2, Path())) for rank in (0, 1))
    assert torch.equal(torch.stack((first, second), 1).flatten(0, 1), alone)
    assert bytes(alone[0].tolist()) == numbers[: tiny.model.context + 1]
    assert bytes(alone[-1].tolist()) == numbers[-tiny.model.context - 1 :]


def test_learning_rate(tiny: Settings) -> None:
    """Up in a line, down in a cosine to a tenth."""
    settings = dataclasses.replace(tiny, steps=100, warm_up=10, learning_rate=1.0)
    rates = [learning_rate(step, settings) for step in range(101)]
    assert rates[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[55] == pytest.approx(0.55)
    assert rates[100] == pytest.approx(0.1)


def test_division() -> None:
    """The parts make the step."""
    division = Division("gloo", compute=0.5, exchange=0.3, optimizer=0.2)
    assert division.step == 1
    assert division.exchange_share == 0.3
