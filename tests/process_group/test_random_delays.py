"""Timing makes no difference: mixed calls in several groups, each rank late at its own moments."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch.distributed as dist

import hybridcomm
from tests.process_group.calls import Performed, begin
from tests.process_group.cases import Case, Setting, expected, for_gloo, matrix, settings
from tests.support.ranks import RankPool
from tests.support.tensors import digest
from tests.support.worker import rank_of_call

_WORLD = 4
_REPEATS = 200
# Calls of one repeat, over all groups.
_CALLS = 5
# How many asynchronous calls a rank leaves unfinished before it waits for one.
_WINDOW = 4


class Team(NamedTuple):
    """A group of the test.

    Args:
        members: Its ranks in the default group.
        setting: What it is.
    """

    members: tuple[int, ...]
    setting: Setting


_TEAMS = (
    Team((0, 1, 2, 3), settings(4)[0]),
    Team((0, 1, 2, 3), settings(4)[3]),
    Team((1, 3), settings(2)[1]),
    Team((0, 1, 2), settings(3)[2]),
)


class Planned(NamedTuple):
    """A call and its results: one digest per member."""

    team: int
    case: Case
    digests: tuple[bytes, ...]


def _plan(backend: str, sharers: int) -> list[Planned]:
    """This rank's share of the calls, with what the reference makes of them."""
    chance = random.Random(rank_of_call())
    calls = []
    for number, team in enumerate(_TEAMS):
        every = [case for setting, case in matrix(len(team.members)) if setting == team.setting]
        if backend == "gloo":
            every = list(filter(for_gloo, every))
        for case in chance.sample(every, 100 // sharers):
            results = expected(case, team.setting)
            digests = tuple(digest(result) for result in results)
            calls.append(Planned(number, case, digests))
    return calls


def _run_late(calls: Sequence[Planned]) -> list[str]:
    """Makes the calls of this rank's teams, with delays of its own; says what was wrong."""
    rank = dist.get_rank()
    own = random.Random(rank)  # this rank's delays and order of waiting
    common = random.Random(0)  # which calls: the same on all ranks
    groups = [dist.new_group([*team.members], pg_options=_options(team)) for team in _TEAMS]
    pending: deque[tuple[Planned, Callable[[], Performed]]] = deque()
    wrong: list[str] = []

    def finish(planned: Planned, end: Callable[[], Performed]) -> None:
        done = end()
        team = _TEAMS[planned.team]
        if done.damage or digest(done.result) != planned.digests[team.members.index(rank)]:
            wrong.append(f"{planned.case} in {team.members}: {done.damage or 'wrong result'}")

    for _ in range(_REPEATS):
        for _ in range(_CALLS):
            planned = common.choice(calls)
            asynchronous = common.random() < 0.5
            team = _TEAMS[planned.team]
            if rank not in team.members:
                continue
            if own.random() < 0.3:
                time.sleep(own.uniform(0, 0.003))
            end = begin(
                planned.case, team.setting, async_op=asynchronous, group=groups[planned.team]
            )
            pending.append((planned, end))
            if not asynchronous:
                finish(*pending.pop())
            while len(pending) > _WINDOW:
                pending.rotate(own.randrange(len(pending)))
                finish(*pending.popleft())
        if own.random() < 0.1:
            time.sleep(own.uniform(0, 0.02))
    while pending:
        finish(*pending.popleft())
    return wrong


def _options(team: Team) -> hybridcomm.Options | None:
    ours = dist.get_backend() == "hybridcomm"
    return hybridcomm.Options(**team.setting.options()) if ours else None


def test_random_delays_change_nothing(pool: RankPool) -> None:
    sharers = 2
    shares = pool.run(sharers, _plan, pool.backend, sharers, group=False, timeout=120)
    calls = [planned for share in shares for planned in share]
    assert pool.run(_WORLD, _run_late, calls, timeout=100) == [[]] * _WORLD
