"""Every collective gives, bit for bit, what the reference executor gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.process_group.calls import Performed, begin
from tests.process_group.cases import (
    WORLDS,
    Case,
    Setting,
    expected,
    for_gloo,
    legal_ops,
    matrix,
    meetings,
    settings,
    thinned,
)
from tests.support.ranks import RankPool
from tests.support.tensors import DTYPES, canonical, difference, digest, shape_for
from tests.support.worker import rank_of_call

# How many wrong results a rank brings back; each may be large.
_SHOWN = 3


@dataclass(frozen=True)
class Wrong:
    """A result that is not what it should be.

    Args:
        case: The call.
        rank: On which rank.
        result: What came out, as canonical bytes.
        damage: What `Performed.damage` says.
    """

    case: Case
    rank: int
    result: Tensor
    damage: str


@dataclass(frozen=True)
class Fault:
    """A fault to plant in the results of one case, to see whether it is found.

    Args:
        case: The case.
        rank: On which rank.
        kind: Which fault.
    """

    case: Case
    rank: int
    kind: str


def _expected_digests(cases: Sequence[Case], setting: Setting, sharers: int) -> list[list[bytes]]:
    """What this rank's share of the cases should give on each rank of the setting."""
    share = cases[rank_of_call() :: sharers]
    return [[digest(result) for result in expected(case, setting)] for case in share]


def _wrong_results(
    cases: Sequence[Case], setting: Setting, digests: Sequence[Sequence[bytes]], fault: Fault | None
) -> list[Wrong]:
    """Makes the calls on this rank. Every other one is asynchronous."""
    rank = dist.get_rank()
    wrong: list[Wrong] = []
    for number, case in enumerate(cases):
        done = begin(case, setting, async_op=number % 2 == 1)()
        if fault is not None and (fault.case, fault.rank) == (case, rank):
            done = _planted(fault.kind, done, case, setting)
        if (done.damage or digest(done.result) != digests[number][rank]) and len(wrong) < _SHOWN:
            wrong.append(Wrong(case, rank, canonical(done.result), done.damage))
    return wrong


def _planted(kind: str, done: Performed, case: Case, setting: Setting) -> Performed:
    if kind == "damage":
        return replace(done, damage="planted")
    bad = done.result.clone()
    if kind == "bit":
        bad.view(-1).view(torch.uint8)[0] ^= 1
    elif kind == "transposed":
        bad = bad.view(shape_for("transposed", bad.numel())).T.reshape(-1)
    else:
        assert kind == "stale"
        bad.view(-1)[-1] = case.data(setting, dist.get_rank())[0].view(-1)[-1]
    return replace(done, result=bad)


def _compare(
    pool: RankPool, cases: Sequence[Case], setting: Setting, fault: Fault | None = None
) -> list[str]:
    """Runs cases and tells what is wrong, one line each."""
    sharers = 2
    shares = pool.run(sharers, _expected_digests, cases, setting, sharers, group=False, timeout=600)
    digests = [shares[i % sharers][i // sharers] for i in range(len(cases))]
    options = setting.options() if pool.backend == "hybridcomm" else {}
    found = pool.run(
        setting.world, _wrong_results, cases, setting, digests, fault, timeout=600, **options
    )
    return [_explain(wrong, setting) for of_rank in found for wrong in of_rank]


def _explain(wrong: Wrong, setting: Setting) -> str:
    right = canonical(expected(wrong.case, setting)[wrong.rank])
    as_elements = DTYPES[wrong.case.dtype]
    what = difference(wrong.result.view(-1).view(as_elements), right.view(-1).view(as_elements))
    return f"{wrong.case}, rank {wrong.rank} of {setting}: " + "; ".join(
        filter(None, (what, wrong.damage))
    )


# What runs through the slower implementation: the first of so many cases.
_REFERENCE_STEP = 16


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world", WORLDS)
def test_equal_to_the_reference(
    pool: RankPool, world: int, request: pytest.FixtureRequest, case_count: list[int]
) -> None:
    every = matrix(world)
    strength = request.config.getoption("--strength")
    calls = list(thinned(every, world, strength)) if strength else every
    if pool.backend == "gloo":
        calls = [(setting, case) for setting, case in calls if for_gloo(case)]
    if pool.implementation == "reference":
        calls = calls[::_REFERENCE_STEP]
    case_count[0] += len(calls)
    case_count[1] += len(every)
    wrong = []
    for setting in settings(world):
        wrong += _compare(pool, [case for its, case in calls if its == setting], setting)
    assert not wrong, "\n".join(wrong)


_PLANTED = Case("all_reduce", "int32", "SUM", "1031", "contiguous", 0)


@pytest.mark.parametrize("kind", ["bit", "stale", "damage"])
def test_a_planted_fault_is_found(pool: RankPool, kind: str) -> None:
    setting = settings(3)[0]
    around = [replace(_PLANTED, size=size) for size in ("7", "1031", "1")]
    assert _compare(pool, around, setting) == []
    (line,) = _compare(pool, around, setting, Fault(_PLANTED, rank=2, kind=kind))
    assert line.startswith(
        "all_reduce SUM int32 size 1031 contiguous, rank 2 of neighbours, 3 ranks: "
    )
    places = {"bit": "[0]", "stale": "[1030]", "damage": "planted"}
    assert places[kind] in line


def test_a_planted_transposition_is_found(pool: RankPool) -> None:
    if pool.backend == "gloo":
        pytest.skip("Gloo takes no strided tensors")
    setting = settings(2)[2]
    case = Case("broadcast", "float32", "", "slot", "transposed", 1)
    assert _compare(pool, [case], setting) == []
    (line,) = _compare(pool, [case], setting, Fault(case, rank=0, kind="transposed"))
    assert "elements differ" in line


@pytest.mark.parametrize("strength", [2, 3])
def test_thinning_keeps_what_meets(strength: int) -> None:
    calls = [(setting, case) for setting, case in matrix(2) if case.dtype in ("int32", "bfloat16")]
    left = list(thinned(calls, 1, strength))

    def met(some: Sequence[tuple[Setting, Case]]) -> set[object]:
        return set().union(*(meetings(call, strength) for call in some))

    assert met(calls) == met(left)
    assert len(left) < len(calls) / 2
    assert list(thinned(calls, 1, strength)) == left


def test_legal_reductions_are_the_reference_s() -> None:
    from hybridcomm.reference import RedOp, refusal

    for (name, dtype), op in product(DTYPES.items(), RedOp):
        assert (refusal(op, dtype) is None) == (op.name in legal_ops(name)), (name, op)
