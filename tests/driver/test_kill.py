"""A rank killed at any moment: the others know at once, say who, leave nothing, and go on."""

from __future__ import annotations

import pytest

from tests.driver.driver import Outcome, prefixes, run

pytestmark = pytest.mark.usefixtures("built")


def kill(world: int, rounds: int, *arguments: object, limit: float = 100) -> Outcome:
    """Kill a rank in each round; those that are left make a new group if there are two or more."""
    # Few and small slots, so that ranks wait for each other in the middle of their operations.
    options = ["--rounds", rounds, "--count", 3000, "--slots", 2, "--slot-bytes", 1024, *arguments]
    if world > 2:
        options += ["--survivors", ",".join(prefixes(world - 1))]
    return run("kill", world, *options, limit=limit)


@pytest.mark.parametrize("engine", [[], ["--async"]], ids=["sync", "async"])
def test_survivors_name_the_dead_and_go_on(engine: list[str]) -> None:
    """The driver checks every round; a latency above 1 s is a failure of its own."""
    outcome = kill(3, 60, "--seed", 5, *engine)
    assert outcome.status == 0, outcome.complaints
    assert outcome.report["failures"] == 0
    assert sum(outcome.report["killed_in"].values()) == 60
    # Every second round aims at a program, most often in time, the others at a phase.
    during = outcome.report["killed_during"]
    hit = {name.split(".")[0] for name, count in during.items() if count}
    assert hit == {name.split(".")[0] for name in during}
    assert sum(count > 0 for count in outcome.report["killed_in"].values()) >= 6
    assert outcome.report["raised_after_ms"]["max"] <= 1000


def test_a_rank_that_nobody_killed_is_missed() -> None:
    """The planted fault: with nobody dead, the checks of a round must fail."""
    outcome = kill(3, 2, "--plant", "spare", "--timeout-ms", 300)
    assert outcome.status == 1
    assert outcome.report["failures"] > 0
    assert "round 0" in outcome.complaints
    assert "round 1" in outcome.complaints


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [2, 3, 4])
def test_every_phase_is_hit(world: int) -> None:
    """300 deaths, some in each program and in each phase in which a rank can be."""
    outcome = kill(world, 300, "--seed", 100 + world, limit=850)
    print(outcome.report)
    assert outcome.status == 0, outcome.complaints
    deaths = outcome.report["killed_in"]
    assert sum(deaths.values()) == 300
    # Two ranks have nobody to pass anything on to.
    never = {"forward"} if world == 2 else set()
    assert {phase for phase, count in deaths.items() if count == 0} == never
    assert all(outcome.report["killed_during"].values())
