"""The command measures real ranks, and says what is wrong with an argument or a rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hybridcomm import cli
from hybridcomm.benchmark import command
from hybridcomm.benchmark.cases import Form, make_case
from hybridcomm.benchmark.measure import Measured, measure
from hybridcomm.benchmark.peers import Peer
from hybridcomm.benchmark.results import read_rows
from hybridcomm.benchmark.team import RankTeam, TeamError

QUICK = ("--pairs", "2", "--sample-ms", "1")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "hybridcomm", "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_every_collective_is_measured_beside_gloo(tmp_path: Path) -> None:
    """Three ranks, results checked; the samples and a picture are written."""
    numbers, picture = tmp_path / "b.json", tmp_path / "b.svg"
    done = bench(
        "--compare", "gloo,torch", "--sizes", "4,1001", "--ranks", "3", *QUICK,
        "--json", str(numbers), "--plot", str(picture),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for word in ("size (B)", "algbw", "busbw", "#wrong", "is faster", "all_to_all, 3 ranks"):
        assert word in done.stdout
    assert picture.read_text().startswith("<?xml")
    written = json.loads(numbers.read_text())
    assert written["command"].startswith("python -m hybridcomm bench --compare gloo,torch")
    assert set(written["versions"]) == {"hybridcomm", "gloo", "torch"}
    rows = read_rows(numbers)
    assert len(rows) == 25  # 10 collectives with a size, twice; 2 of them in both forms; barrier
    for row in rows:
        for name, measured in row.peers.items():
            assert measured.wrong == (None if name == "torch" else 0)
            assert len(measured.samples) == 2
            assert min(measured.samples) > 0


def test_a_wrong_result_is_told_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planted: a peer whose results are wrong."""
    wrong = Measured((1.0, 1.0), 1, 17)

    def planted(case, teams, refusals, sampling, progress):  # type: ignore[no-untyped-def]
        row = measure(case, teams, refusals, sampling, progress)
        return type(row)(row.case, dict.fromkeys(row.peers, wrong))

    monkeypatch.setattr(command, "measure", planted)
    assert cli.main(["bench", "all_reduce", "--sizes", "4", *QUICK]) == 1
    assert "all_reduce sum of 1 float32, in place, 2 ranks: 17 elements were wrong" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("all_reduces",), "'all_reduces' is none of all_reduce,"),
        (("--compare", "nccl"), "there is no peer 'nccl'; there are hybridcomm, gloo"),
        (("--compare", "gloo/ring"), "there is no peer 'gloo/ring'"),
        (("--measure", "hybridcomm/rings"), "no collective has an algorithm 'rings'"),
        (("--sizes", "4,big"), "'big' is no size"),
        (("--ranks", "1"), "'1' is no number from 2"),
        (("--dtype", "float33"), "'float33' is none of"),
    ],
)
def test_a_wrong_argument_is_named(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is started."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", *arguments])
    assert stopped.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--json", "/no/such/folder/b.json"), "there is no folder /no/such/folder"),
        (("--plot", "b.jpeg"), "the ending must be .png, .svg or .pdf"),
        (("all_to_all", "--form", "in"), "none of the collectives is offered so"),
    ],
)
def test_what_cannot_be_done_is_said_first(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the status is 1."""
    assert cli.main(["bench", *arguments]) == 1
    assert complaint in capsys.readouterr().err


def test_a_rank_that_dies_is_named_and_nothing_is_left() -> None:
    """Killed between two samples."""
    team = Peer("gloo").team(2)
    assert isinstance(team, RankTeam)
    case = make_case("all_reduce", "float32", "sum", 64, 2, Form.IN_PLACE)
    with team:
        team.prepare(case)
        pids = team._pids
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(TeamError, match=r"gloo: all_reduce sum of 16 .*rank 1 has died"):
            team.sample(1)
    for pid in pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
