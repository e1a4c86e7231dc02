"""Modes pace and copy give samples when asked, and their ends are told."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from hybridcomm.benchmark.cases import COLLECTIVES, Form, make_case
from hybridcomm.benchmark.driver_team import CopyTeam, DriverTeam, bytes_to_copy
from hybridcomm.benchmark.team import TeamError

from .driver import DRIVER

pytestmark = pytest.mark.usefixtures("built")


@pytest.mark.parametrize("world", [2, 3, 5])
def test_every_program_is_sampled(world: int) -> None:
    """In the form that the driver has, after its result was checked."""
    done = []
    with DriverTeam("driver", world, "") as team:
        for name, traits in COLLECTIVES.items():
            for form in traits.forms:
                case = make_case(name, "float32", "sum", 4096, world, form)
                if DriverTeam.refuses(case):
                    continue
                assert team.prepare(case) == 0
                assert all(0 < team.sample(calls) < 1 for calls in (1, 10))
                done.append(name)
    assert done == [name for name in COLLECTIVES if name not in ("send_recv", "ping_pong")]


@pytest.mark.parametrize("stores", ["plain", "nontemporal"])
def test_copying_is_sampled(stores: str) -> None:
    """Also what begins and ends within a cache line."""
    with CopyTeam("bound", 2, stores) as team:
        for size in (4, 1004, 1 << 20):
            case = make_case("all_reduce", "float32", "sum", size, 2, Form.IN_PLACE)
            assert bytes_to_copy(case) == size
            assert team.prepare(case) == 0
            assert 0 < team.sample(10) < 1


def test_a_driver_that_dies_is_named() -> None:
    """Killed between two samples."""
    case = make_case("all_reduce", "float32", "sum", 64, 2, Form.IN_PLACE)
    with DriverTeam("driver", 2, "") as team:
        team.prepare(case)
        assert team._process is not None
        os.killpg(team._process.pid, signal.SIGKILL)
        with pytest.raises(TeamError, match=r"driver: all_reduce sum of 16 .* has ended"):
            team.sample(1)


@pytest.mark.parametrize("line", ["many", "-1", "9" * 30])
def test_a_line_that_is_no_number_is_refused(line: str) -> None:
    """And the other rank ends too."""
    done = subprocess.run(
        [DRIVER, "copy", "--world", "2", "--count", "8"],
        input=line + "\n",
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode != 0
    assert f"'{line}' is no number of calls" in done.stderr
