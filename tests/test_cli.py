"""The command line finds its commands, quickly, and ends as a program should."""

from __future__ import annotations

import argparse
import subprocess
import sys
from types import ModuleType

import pytest

from hybridcomm import __version__, cli


def plant(monkeypatch: pytest.MonkeyPatch, outcome: int | BaseException) -> None:
    """Puts a command named `planted` beside the others."""
    module = ModuleType("planted_command")

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--ranks", type=int, default=2)

    def run(arguments: argparse.Namespace) -> int:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome + int(arguments.ranks)

    module.add_arguments = add_arguments  # type: ignore[attr-defined]
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "planted_command", module)
    monkeypatch.setitem(cli._COMMANDS, "planted", cli._Command("planted_command", "planted"))


def test_a_command_gets_its_arguments_and_gives_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status of the command is that of the program."""
    plant(monkeypatch, 3)
    assert cli.main(["planted", "--ranks", "4"]) == 7


def test_ctrl_c_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """130, as shells expect."""
    plant(monkeypatch, KeyboardInterrupt())
    assert cli.main(["planted"]) == 130


@pytest.mark.parametrize("arguments", [[], ["no_such_command"], ["planted", "--no-such-option"]])
def test_a_wrong_argument_is_an_error(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """With argparse's status."""
    plant(monkeypatch, 0)
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2


@pytest.mark.parametrize("command", sorted(cli._COMMANDS))
def test_each_command_exists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its module loads and explains itself."""
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    assert f"hybridcomm {command}" in capsys.readouterr().out


def test_help_and_version_import_no_command() -> None:
    """And so no torch."""
    code = (
        "import sys, hybridcomm.cli as cli\n"
        "try: cli.main(sys.argv[1:])\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'torch', 'numpy', 'hybridcomm.demo', 'hybridcomm.programs'} & {*sys.modules}\n"
    )
    for option, word in (("--help", "program"), ("--version", __version__)):
        done = subprocess.run(
            [sys.executable, "-c", code, option], capture_output=True, text=True, check=True
        )
        assert word in done.stdout


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """`hybridcomm program ... | head -1`."""
    command = f"{sys.executable} -m hybridcomm program all_reduce --algorithm ring --world 64"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | head -1"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
