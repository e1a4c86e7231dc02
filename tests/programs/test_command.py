"""``python -m hybridcomm program``."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from hybridcomm.programs import build, compile_flat
from hybridcomm.programs.command import add_arguments, run
from hybridcomm.programs.text import format_program


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(words))


def test_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("all_reduce", "--algorithm", "ring", "--world", "6") == 0
    assert capsys.readouterr().out == format_program(build("all_reduce", "ring", 6))


def test_prints_one_rank(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("broadcast", "--world", "5", "--rank", "2", "--root", "3", "--channels", "2")
    assert command(*words) == 0
    program = build("broadcast", "direct", 5, root=3, channels=2)
    assert capsys.readouterr().out == format_program(program, 2)


def test_verifies(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("all_reduce", "--world", "3", "--verify") == 0
    out = capsys.readouterr().out
    assert out.startswith("all_reduce two_shot, world 3: verified")
    assert "roundings      1" in out


def test_writes_flat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("all_gather", "--world", "3", "--flat", str(tmp_path / "gather")) == 0
    for rank in range(3):
        written = (tmp_path / f"gather.rank{rank}").read_bytes()
        assert written == compile_flat("all_gather", "direct", 3, rank)
    assert command("barrier", "--world", "3", "--rank", "1", "--flat", str(tmp_path / "b")) == 0
    assert (tmp_path / "b").read_bytes() == compile_flat("barrier", "dissemination", 3, 1)
    assert capsys.readouterr().out.count("wrote ") == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("all_reduce", "--algorithm", "star"), "algorithm: all_reduce has no 'star'"),
        (("all_reduce", "--rank", "4"), "rank: 4 is not a rank; 0 to 3"),
        (("all_reduce", "--root", "0"), "root: all_reduce has no root"),
        (("barrier", "--flat", "/nowhere/at/all"), "No such file or directory"),
    ],
)
def test_says_what_is_wrong(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--world", "2000"), ("--world", "300", "--verify")])
def test_refuses_what_would_take_for_ever(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("all_reduce", *words) == 2
    assert "--world" in capsys.readouterr().err
