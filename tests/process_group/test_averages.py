"""Averages and sums with a factor, in every collective that reduces."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _make_nccl_premul_sum
from torch.distributed import distributed_c10d

from tests.support.ranks import RankPool
from tests.support.tensors import difference

_OPS = dist.ReduceOp

# How a tensor per rank becomes a result: each takes (input, op) and returns what the rank got,
# which is `slice(rank)` of the reduction of all inputs, or None.
_Reducer = Callable[[Tensor, "_OPS"], Tensor | None]


def _all_reduce(tensor: Tensor, op: _OPS) -> Tensor | None:
    dist.all_reduce(tensor, op)
    return tensor


def _reduce(tensor: Tensor, op: _OPS) -> Tensor | None:
    dist.reduce(tensor, 1, op)
    return tensor if dist.get_rank() == 1 else None


def _reduce_scatter(tensor: Tensor, op: _OPS) -> Tensor | None:
    output = torch.zeros_like(tensor.chunk(dist.get_world_size())[0])
    dist.reduce_scatter(output, [*tensor.chunk(dist.get_world_size())], op)
    return output


def _reduce_scatter_tensor(tensor: Tensor, op: _OPS) -> Tensor | None:
    output = torch.zeros_like(tensor.chunk(dist.get_world_size())[0])
    dist.reduce_scatter_tensor(output, tensor, op)
    return output


def _all_reduce_coalesced(tensor: Tensor, op: _OPS) -> Tensor | None:
    halves = [*tensor.split(tensor.numel() // 2)]
    with distributed_c10d._coalescing_manager():
        for half in halves:
            dist.all_reduce(half, op)
    return tensor


_REDUCERS: dict[str, _Reducer] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "all_reduce coalesced": _all_reduce_coalesced,
}


def _compare(name: str, inputs: list[Tensor], expected: Tensor, op: _OPS) -> str | None:
    rank, world = dist.get_rank(), dist.get_world_size()
    result = _REDUCERS[name](inputs[rank].clone(), op)
    if result is None:
        return None
    return difference(result, expected.chunk(world)[rank] if "scatter" in name else expected)


# ---- averages -----------------------------------------------------------------------------------


def _average_integers(name: str, inputs: list[Tensor], expected: Tensor) -> str | None:
    return _compare(name, inputs, expected, _OPS(_OPS.AVG))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", _REDUCERS)
def test_integers_are_summed_exactly_and_divided_toward_zero(
    ours: RankPool, name: str, world: int, dtype: torch.dtype
) -> None:
    """In all forms, with sums that the type cannot hold (torchcomms#287)."""
    chance = random.Random(1)
    bounds = torch.iinfo(dtype)
    columns = [[bounds.max] * world, [bounds.min] * world, [bounds.min] * (world - 1) + [1]]
    columns += [[chance.randint(bounds.min, bounds.max) for _ in range(world)] for _ in range(21)]
    means = [abs(sum(column)) // world * (1 if sum(column) >= 0 else -1) for column in columns]
    inputs = [torch.tensor([column[r] for column in columns], dtype=dtype) for r in range(world)]
    expected = torch.tensor(means, dtype=dtype)
    assert ours.run(world, _average_integers, name, inputs, expected) == [None] * world


@pytest.mark.parametrize("name", ["reduce_scatter", "reduce_scatter_tensor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_reduce_scatter_takes_the_mean_of_two(
    ours: RankPool, name: str, dtype: torch.dtype
) -> None:
    """pytorch#162338."""
    inputs = [torch.tensor([2, 4, 6, 8], dtype=dtype), torch.tensor([4, 10, 0, 0], dtype=dtype)]
    expected = torch.tensor([3, 7, 3, 4], dtype=dtype)
    assert ours.run(2, _average_integers, name, inputs, expected) == [None] * 2


# ---- sums with a factor -------------------------------------------------------------------------


def _with_a_factor(
    name: str, inputs: list[Tensor], expected: Tensor, factor: float | Tensor
) -> str | None:
    return _compare(name, inputs, expected, _make_nccl_premul_sum(factor))


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64],
    ids=str,
)
@pytest.mark.parametrize("factor", [0.3, torch.tensor(-2.5)], ids=["number", "tensor"])
@pytest.mark.parametrize("name", _REDUCERS)
def test_premul_sum_multiplies_and_then_sums(
    ours: RankPool, name: str, factor: float | Tensor, dtype: torch.dtype
) -> None:
    """Each product rounded to the type, the sum with one rounding more, in the order of ranks."""
    world = 3
    generator = torch.Generator().manual_seed(5)
    inputs = [torch.randn(6006, generator=generator).to(dtype) for _ in range(world)]
    if dtype.is_complex:
        inputs = [torch.complex(tensor.real, tensor.real.flip(0)) for tensor in inputs]
    number = float(factor)
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    products = [(tensor * number).to(wide) for tensor in inputs]
    expected = (products[0] + products[1] + products[2]).to(dtype)
    algorithms = {"all_reduce": "two_shot", "reduce": "direct", "reduce_scatter": "direct"}
    results = ours.run(world, _with_a_factor, name, inputs, expected, factor, algorithms=algorithms)
    assert results == [None] * world


# ---- precision ----------------------------------------------------------------------------------


def _sum_of_halves(count: int) -> tuple[float, float]:
    """The largest error of a sum in fp16, as a part of what fp32 would make; and with fp16 sums."""
    rank, world = dist.get_rank(), dist.get_world_size()

    def data(of: int) -> Tensor:
        return torch.randn(count, generator=torch.Generator().manual_seed(of)).half()

    total = data(rank)
    dist.all_reduce(total)
    inputs = [data(r) for r in range(world)]
    worst, worst_of_halves = 0.0, 0.0
    for start in range(0, count, 1 << 18):
        piece = slice(start, start + (1 << 18))
        exact = torch.zeros_like(total[piece], dtype=torch.float64)
        magnitude = torch.zeros_like(exact)
        halves = torch.zeros_like(total[piece])
        for tensor in inputs:
            exact += tensor[piece]
            magnitude += tensor[piece].abs()
            halves += tensor[piece]
        # Half a unit in the last place of fp16: 10 bits follow the leading one, none below 2^-24.
        exponent = torch.frexp(exact).exponent - 1
        rounding = torch.ldexp(torch.ones_like(exact), exponent.clamp(min=-14) - 11)
        allowed = rounding + (world - 1) * 2**-24 * magnitude
        worst = max(worst, float(((total[piece] - exact).abs() / allowed).max()))
        worst_of_halves = max(worst_of_halves, float(((halves - exact).abs() / allowed).max()))
    return worst, worst_of_halves


def test_a_sum_of_halves_has_the_error_of_fp32_and_one_rounding(ours: RankPool) -> None:
    """24 million elements of fp16 against a sum in float64 (pytorch#152300)."""
    for worst, worst_of_halves in ours.run(4, _sum_of_halves, 24_000_000, timeout=80):
        assert worst <= 1
        # The planted fault: a sum that is rounded after each addition would be found.
        assert worst_of_halves > 1.5
