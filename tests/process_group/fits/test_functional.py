"""Functional collectives give the same eagerly and compiled, and the same as plain torch gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor

from tests.support.ranks import RankPool

_WIDTH = 3


def _input(rank: int, world: int) -> Tensor:
    """Two rows for each rank; whole numbers, so that any order of adding gives the same."""
    count = 2 * world * _WIDTH
    return torch.arange(float(count)).reshape(-1, _WIDTH) * (rank + 1) + 7 * rank


def _group() -> Any:
    return dist.group.WORLD


def _single(x: Tensor) -> list[Tensor]:
    """One call of each; every result is used by something that is no collective."""
    world = dist.get_world_size()
    even = [2] * world
    return [
        funcol.all_reduce(x + 1, "sum", _group()) * 2,
        funcol.all_reduce(x, "avg", _group()) - 1,
        funcol.all_reduce(x, "max", _group()) + 1,
        funcol.broadcast(x * 3, world - 1, _group()) + x,
        funcol.all_gather_tensor(x, 0, _group()) + 1,
        funcol.all_gather_tensor(x, 1, _group()) + 1,
        funcol.reduce_scatter_tensor(x * 2, "sum", 0, _group()) - 3,
        funcol.reduce_scatter_tensor(x.T.contiguous(), "sum", 1, _group()) - 3,
        funcol.all_to_all_single(x, even, even, _group()) * 5,
    ]


def _single_expected(xs: list[Tensor], rank: int) -> list[Tensor]:
    world = len(xs)
    total = torch.stack(xs).sum(0)
    return [
        (total + world) * 2,
        total / world - 1,
        torch.stack(xs).amax(0) + 1,
        xs[-1] * 3 + xs[rank],
        torch.cat(xs, 0) + 1,
        torch.cat(xs, 1) + 1,
        total.split(2)[rank] * 2 - 3,
        total.split(2)[rank].T - 3,
        torch.cat([x.split(2)[rank] for x in xs]) * 5,
    ]


def _coalesced(x: Tensor) -> list[Tensor]:
    both = [x, x[:, :1] + 5]
    return [
        *funcol.all_reduce_coalesced(both, "sum", _group()),
        *funcol.all_gather_into_tensor_coalesced(both, _group()),
        *funcol.reduce_scatter_tensor_coalesced(both, "sum", [0, 0], _group()),
    ]


def _coalesced_expected(xs: list[Tensor], rank: int) -> list[Tensor]:
    results: list[Tensor] = []
    for total in (sum(xs[1:], xs[0]), sum(x[:, :1] + 5 for x in xs)):
        results.append(torch.as_tensor(total))
    results += [torch.cat(xs), torch.cat([x[:, :1] + 5 for x in xs])]
    return results + [total.split(2)[rank] for total in results[:2]]


def _uneven(x: Tensor) -> list[Tensor]:
    """Rank r sends r + 1 rows to every rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = x.repeat(world, 1)[: world * (rank + 1)]
    takes = [other + 1 for other in range(world)]
    return [funcol.all_to_all_single(rows, takes, [rank + 1] * world, _group()) + 1]


def _uneven_expected(xs: list[Tensor], rank: int) -> list[Tensor]:
    world = len(xs)
    rows = [x.repeat(world, 1)[rank * (of + 1) : (rank + 1) * (of + 1)] for of, x in enumerate(xs)]
    return [torch.cat(rows) + 1]


def _in_place(x: Tensor) -> list[Tensor]:
    """What torch.compile makes functional by itself."""
    world = dist.get_world_size()
    summed = x.clone()
    dist.all_reduce(summed)
    gathered = x.new_empty(world * len(x), _WIDTH)
    dist.all_gather_into_tensor(gathered, x)
    part = x.new_empty(2, _WIDTH)
    dist.reduce_scatter_tensor(part, x)
    exchanged = torch.empty_like(x)
    dist.all_to_all_single(exchanged, x)
    return [summed + 1, gathered * 2, part - 1, exchanged + 3]


def _in_place_expected(xs: list[Tensor], rank: int) -> list[Tensor]:
    total = torch.stack(xs).sum(0)
    exchanged = torch.cat([x.split(2)[rank] for x in xs])
    return [total + 1, torch.cat(xs) * 2, total.split(2)[rank] - 1, exchanged + 3]


_Expected = Callable[[list[Tensor], int], list[Tensor]]
_CASES: dict[str, tuple[Callable[[Tensor], list[Tensor]], _Expected]] = {
    "single": (_single, _single_expected),
    "coalesced": (_coalesced, _coalesced_expected),
    "uneven": (_uneven, _uneven_expected),
    "in place": (_in_place, _in_place_expected),
}


def _wrong(case: str, compiler: str | None) -> list[int]:
    """Which results of this rank are wrong."""
    rank, world = dist.get_rank(), dist.get_world_size()
    function, expected = _CASES[case]
    if compiler is not None:
        torch._dynamo.reset()
        # With fullgraph, nothing is left to be done eagerly.
        function = torch.compile(function, backend=compiler, fullgraph=True)
    wrong: list[int] = []
    for shift in (0, 10):  # the second call runs what the first one compiled
        xs = [_input(of, world) + shift for of in range(world)]
        results = function(xs[rank])
        wanted = expected(xs, rank)
        assert len(results) == len(wanted)
        pairs = enumerate(zip(results, wanted, strict=True))
        wrong += [number for number, (a, b) in pairs if not torch.equal(a, b)]
    return wrong


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("case", _CASES)
def test_eagerly(ours: RankPool, case: str, world: int) -> None:
    assert ours.run(world, _wrong, case, None) == [[]] * world


@pytest.mark.parametrize("case", _CASES)
def test_traced(ours: RankPool, case: str) -> None:
    assert ours.run(2, _wrong, case, "aot_eager") == [[]] * 2


@pytest.mark.slow  # a compiler of C++ is at work
def test_compiled(ours: RankPool, tmp_path: Path) -> None:
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    wrong = ours.run(2, _wrong, "single", "inductor", environment=environment, timeout=100)
    assert wrong == [[]] * 2


def _gradient() -> tuple[list[float], list[float]]:
    """Of the autograd-able forms: input gradient and the expected one."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x = _input(rank, world).requires_grad_()
    gathered = funcol.all_gather_tensor_autograd(x, 0, _group())
    part = funcol.reduce_scatter_tensor_autograd(gathered * (rank + 1), "sum", 0, _group())
    exchanged = funcol.all_to_all_single_autograd(part, [2] * world, [2] * world, _group())
    weights = torch.arange(float(exchanged.numel())).reshape_as(exchanged)
    (exchanged * weights * (rank + 1)).sum().backward()
    assert x.grad is not None
    # The exchange gives rank r's rows to it with weight r + 1, the scatter sums all ranks' factors.
    factors = sum(range(1, world + 1))
    rows = [weights.split(2)[rank] * (to + 1) for to in range(world)]
    return x.grad.flatten().tolist(), (torch.cat(rows) * factors).flatten().tolist()


def test_gradients(ours: RankPool) -> None:
    for gradient, expected in ours.run(2, _gradient):
        assert gradient == expected
