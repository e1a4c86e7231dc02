"""A rank killed while messages go around a ring: the others know at once, say who, and go on."""

from __future__ import annotations

import pytest

from tests.driver.driver import Outcome, run

pytestmark = pytest.mark.usefixtures("built")

# Phases that sends and receives have.
PHASES = {"idle", "connect", "send", "receive", "blocked", "complete"}


def kill(world: int, rounds: int, *arguments: object, limit: float = 100) -> Outcome:
    """Kill a rank in each round; messages of many slots, so that ranks are often in the middle."""
    options = ["--messages", "--rounds", rounds, "--count", 3000, "--slots", 2]
    options += ["--slot-bytes", 1024, *arguments]
    return run("kill", world, *options, limit=limit)


@pytest.mark.parametrize("engine", [[], ["--async"]], ids=["sync", "async"])
@pytest.mark.parametrize("world", [2, 4])
def test_survivors_name_the_dead_and_go_on(world: int, engine: list[str]) -> None:
    """Whether they waited for the dead rank, for one that waited for it, or had yet to join."""
    outcome = kill(world, 36, "--seed", 7, *engine)
    assert outcome.status == 0, outcome.complaints
    assert outcome.report["failures"] == 0
    deaths = outcome.report["killed_in"]
    assert sum(deaths.values()) == 36
    # Every second round aims at a phase, each three times.
    hit = {phase for phase, count in deaths.items() if count > 0}
    assert hit <= PHASES
    assert len(hit) >= 4
    assert outcome.report["raised_after_ms"]["max"] <= 1000


def test_a_rank_that_nobody_killed_is_missed() -> None:
    """The planted fault: with nobody dead, the checks of a round must fail."""
    outcome = kill(3, 2, "--plant", "spare", "--timeout-ms", 300)
    assert outcome.status == 1
    assert "round 0" in outcome.complaints
    assert "round 1" in outcome.complaints


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [2, 3, 5])
def test_every_phase_is_hit(world: int) -> None:
    """300 deaths, some in each phase in which a rank can be."""
    outcome = kill(world, 300, "--seed", 100 + world, limit=850)
    print(outcome.report)
    assert outcome.status == 0, outcome.complaints
    deaths = outcome.report["killed_in"]
    assert {phase for phase, count in deaths.items() if count > 0} == PHASES
