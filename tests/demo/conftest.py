"""A text, a model and a run small enough for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridcomm.demo.settings import ModelShape, Settings

TINY = Settings(
    model=ModelShape(width=16, heads=2, layers=1, context=8),
    batch=2,
    steps=8,
    warm_up=2,
    validate_every=4,
    validation_windows=4,
    probe_every=2,
)


@pytest.fixture
def tiny() -> Settings:
    """Settings of a run of a second."""
    return TINY


@pytest.fixture
def corpus_file(tmp_path: Path) -> Path:
    """A file for tests to read a text from."""
    path = tmp_path / "readers_bible.py"
    write_corpus(path)
    return path


def write_corpus(path: Path) -> None:
    """Writes a file like the one the demonstration reads, with other things around the text."""
    words = [f"and the {number}th said unto the {number + 1}th" for number in range(60)]
    path.write_text(
        "from a_package_that_is_not_there import Bible, Book\n"
        f'bible = Bible("KJV", """\n{"; ".join(words)}\n""", {{Book.GENESIS: "a title"}}, False)\n'
    )
