"""Every algorithm in C++ alone: right elements at every world size, and wrong ones are seen."""

from __future__ import annotations

import subprocess

import pytest

from tests.driver.driver import DRIVER, prefixes, run

pytestmark = pytest.mark.usefixtures("built")

# Slots of one cache line, so that a few hundred elements are many segments.
SMALL = ("--slots", 2, "--slot-bytes", 64)


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("engine", ["", "--async"], ids=["sync", "async"])
@pytest.mark.parametrize("channels", [1, 2])
def test_all_algorithms(world: int, engine: str, channels: int) -> None:
    """Ranks as processes, small slots, random pauses."""
    options = [engine] if engine else []
    outcome = run(
        "run",
        world,
        *SMALL,
        *options,
        *("--count", 333, "--iterations", 70, "--delay-us", 200, "--seed", world),
        channels=channels,
    )
    assert outcome.status == 0, outcome.complaints
    assert outcome.report == {
        "mode": "run",
        "world": world,
        "operations": 70,
        "failed_ranks": 0,
    }


@pytest.mark.parametrize(
    "collective",
    [
        "all_reduce.",
        "broadcast.",
        "all_gather.",
        "barrier.",
        "reduce_scatter.",
        "all_to_all.",
        "reduce.",
        "gather.",
        "scatter.",
    ],
)
def test_far_more_ranks_than_cores(collective: str) -> None:
    """64 processes: no algorithm needs a core for each rank to get on."""
    programs = len(prefixes(64, collective=collective))
    small = ("--slots", 2, "--slot-bytes", 256, "--count", 333, "--iterations", 2 * programs)
    outcome = run("run", 64, *small, collective=collective)
    assert outcome.status == 0, outcome.complaints
    assert outcome.report["operations"] == 2 * programs > 0
    assert outcome.report["failed_ranks"] == 0


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 5000])
@pytest.mark.parametrize(
    ("dtype", "op"), [("bfloat16", "MAX"), ("int8", "MIN"), ("float64", "SUM")]
)
def test_sizes_and_types(count: int, dtype: str, op: str) -> None:
    """Nothing, one element, about a slot, and many segments."""
    outcome = run("run", 3, *SMALL, "--count", count, "--dtype", dtype, "--op", op)
    assert outcome.status == 0, outcome.complaints


@pytest.mark.parametrize("ranks", [[], ["--threads"]], ids=["processes", "threads"])
@pytest.mark.parametrize("world", [1, 4])
def test_a_stale_element_is_seen(world: int, ranks: list[str]) -> None:
    """Every rank spoils its fourth operation."""
    outcome = run("run", world, *ranks, "--plant", "stale")
    assert outcome.status == 1
    assert outcome.report["failed_ranks"] == world
    assert outcome.complaints.count("wrong: ") == world
    assert "operation 3, rank 0, element 0" in outcome.complaints


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["walk"], "'walk' is none of run, kill, bench"),
        (["run", "--world", "2"], "--programs is missing"),
        (["run", "--world", "two"], "--world must be a number"),
        (["run", "--world", "9999", "--programs", "x"], "world size 9999"),
        (["run", "--world", "2", "--colour", "red"], "--colour is unknown"),
        (["run", "--world", "2", "--programs", "x", "--op"], "lacks its value"),
        (["run", "--world", "2", "--programs", "x", "--dtype", "float5"], "float5"),
        (["kill", "--world", "1", "--programs", "x"], "--world of 2 to 256"),
    ],
)
def test_a_wrong_call_is_explained(arguments: list[str], complaint: str) -> None:
    """Exit status 2 and a sentence."""
    done = subprocess.run([DRIVER, *arguments], capture_output=True, text=True, timeout=10)
    assert done.returncode == 2
    assert complaint in done.stderr


def test_a_program_that_is_not_there_is_named() -> None:
    """Each rank says which file it cannot read."""
    call = [str(DRIVER), "run", "--world", "2", "--programs", "nowhere/ring"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=10)
    assert done.returncode == 1
    assert "cannot read nowhere/ring.rank1" in done.stderr


def test_programs_of_another_world_are_refused() -> None:
    """A program says for how many ranks it is."""
    call = [str(DRIVER), "run", "--world", "2", "--programs", prefixes(3)[0]]
    done = subprocess.run(call, capture_output=True, text=True, timeout=10)
    assert done.returncode == 1
    assert "of 3, this is rank" in done.stderr
