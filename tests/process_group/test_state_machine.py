"""Random plans of mixed operations on groups that come and go: every result is exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.process_group import mixed
from tests.process_group.mixed import Call, Calls, Destroy, NewGroup, Plan, Step
from tests.support.ranks import RankPool

_WORLD = 4
_STEPS = 40
_GROUPS = 5  # that there may be at a time
_COUNTS = (0, 1, 3, 17, 260, 3001)


@st.composite
def _calls(draw: st.DrawFn, number: int, groups: dict[int, int]) -> Calls:
    """One to four calls in groups of these sizes."""
    how = draw(st.sampled_from(mixed.HOW))
    made = []
    for place in range(draw(st.integers(1, 4))):
        group = draw(st.sampled_from(sorted(groups)))
        name = draw(st.sampled_from(mixed.NAMES))
        reduces = name in mixed.REDUCING
        dtype = draw(st.sampled_from(mixed.SUMMED if reduces else mixed.MOVED))
        floating = "float" in dtype
        ops = [op for op in mixed.OPS if not (floating and op in ("BAND", "BXOR"))]
        made.append(
            Call(
                number + place,
                group,
                name,
                dtype,
                draw(st.sampled_from(ops)) if reduces else "",
                draw(st.sampled_from(_COUNTS)),
                draw(st.integers(0, groups[group] - 1)),
                draw(st.booleans()) if name in mixed.MAY_BE_UNEVEN else False,
                draw(st.sampled_from(("contiguous", "contiguous", "every_other", "offset"))),
            )
        )
    return Calls(how, tuple(made))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans of some length, on the default group and on groups that are made and destroyed."""
    sizes = {0: _WORLD}
    steps: list[Step] = []
    made = 1
    number = 0
    for _ in range(draw(st.integers(_STEPS // 2, _STEPS))):
        kind = draw(st.integers(0, 9))
        if kind == 0 and len(sizes) < _GROUPS:
            members = draw(st.permutations(range(_WORLD)))[: draw(st.integers(1, _WORLD))]
            steps.append(NewGroup(tuple(members), draw(st.integers(0, 6))))
            sizes[made] = len(members)
            made += 1
        elif kind == 1 and len(sizes) > 2:
            group = draw(st.sampled_from(sorted(set(sizes) - {0})))
            steps.append(Destroy(group))
            del sizes[group]
        else:
            steps.append(draw(_calls(number, sizes)))
            number += 4
    return steps


def _play(plan: Plan, altered: int | None, on: int) -> list[str]:
    return mixed.Player(altered, on).play(plan)


def _wrong(pool: RankPool, plan: Plan, altered: int | None = None, on: int = 0) -> list[str]:
    found = pool.run(_WORLD, _play, plan, altered, on, timeout=40, group_timeout=20)
    return [line for of_rank in found for line in of_rank]


def _explore(pool: RankPool, examples: int) -> int:
    """Tries plans; returns how many steps they had."""
    steps = 0

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[*HealthCheck],
    )
    @given(plan=plans())
    def try_plan(plan: Plan) -> None:
        nonlocal steps
        steps += len(plan)
        assert _wrong(pool, plan) == []

    explore: Callable[[], Any] = try_plan
    explore()
    return steps


def test_mixed_operations_are_exact(ours: RankPool) -> None:
    """Several hundred steps."""
    assert _explore(ours, 12) > 200


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_more_mixed_operations_are_exact(ours: RankPool) -> None:
    """Ten thousand steps."""
    assert _explore(ours, 340) >= 10_000


def _every_call() -> Plan:
    """Each kind of call once, in each of the ways of making calls."""
    steps: list[Step] = [NewGroup((2, 0, 3), 1), NewGroup((3, 1), 4)]
    number = 0
    for how in mixed.HOW:
        for name in mixed.NAMES:
            call = Call(number, number % 3, name, "int32", "SUM", 9, 1, False, "contiguous")
            other = replace(call, number=number + 1, group=(number + 1) % 3)
            steps.append(Calls(how, (call, other)))
            number += 2
    return [*steps, Destroy(1), Destroy(2)]


def test_every_kind_of_call_is_exact(ours: RankPool) -> None:
    assert _wrong(ours, _every_call()) == []


@pytest.mark.parametrize("name", [name for name in mixed.NAMES if name != "barrier"])
def test_a_result_altered_on_one_rank_is_found(ours: RankPool, name: str) -> None:
    """The planted fault: one operation of many, on one rank."""
    plan = _every_call()
    calls = [call for step in plan if isinstance(step, Calls) for call in step.calls]
    # In the default group, whose second rank is the root.
    (number, *_) = [call.number for call in calls if (call.name, call.group) == (name, 0)]
    (line,) = _wrong(ours, plan, altered=number, on=1)
    assert f"name='{name}'" in line
    assert f"number={number}," in line
    assert "on rank 1 of 4" in line
