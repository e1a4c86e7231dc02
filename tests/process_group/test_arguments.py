"""Odd arguments: the legal ones give the right result, the others are refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from tests.support.caught import Caught, caught
from tests.support.ranks import RankPool

_OPS = dist.ReduceOp


def _gather_nothing() -> list[tuple[int, ...]]:
    outputs = [torch.empty(1, 0, 2) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, torch.empty(1, 0, 2))
    return [tuple(output.shape) for output in outputs]


def test_a_gather_of_empty_tensors_is_empty(pool: RankPool) -> None:
    assert pool.run(4, _gather_nothing) == [[(1, 0, 2)] * 4] * 4


def _reduce_nothing() -> tuple[int, ...]:
    values = torch.empty(0)
    dist.all_reduce(values)
    return tuple(values.shape)


def test_a_sum_of_no_elements_is_empty(pool: RankPool) -> None:
    assert pool.run(4, _reduce_nothing) == [(0,)] * 4


def _scalar() -> float:
    value = torch.tensor(float(dist.get_rank() + 1))
    dist.all_reduce(value)
    return value.item()


def test_a_tensor_without_dimensions_is_reduced(pool: RankPool) -> None:
    assert pool.run(3, _scalar) == [6.0] * 3


def _average(dtype: torch.dtype, values: list[list[int]]) -> list[int]:
    mine = torch.tensor(values[dist.get_rank()], dtype=dtype)
    dist.all_reduce(mine, _OPS.AVG)
    return [int(value) for value in mine.tolist()]


@pytest.mark.parametrize("algorithm", ["ring", "two_shot"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.uint64], ids=str)
def test_the_average_of_integers_is_the_exact_sum_divided_toward_zero(
    ours: RankPool, dtype: torch.dtype, algorithm: str
) -> None:
    most = torch.iinfo(dtype).max
    least = torch.iinfo(dtype).min
    values = [[most, least, 5, most, 1], [most, least, 2, least, 0], [most, least, 0, 0, 1]]
    columns = list(zip(*values, strict=True))
    expected = [abs(sum(column)) // 3 * (1 if sum(column) >= 0 else -1) for column in columns]
    algorithms = {"all_reduce": algorithm}
    assert ours.run(3, _average, dtype, values, algorithms=algorithms) == [expected] * 3


def _ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def _all_reduce(tensor: torch.Tensor, op: _OPS.RedOpType) -> None:
    """Goes past dist.all_reduce, which has its own word on complex numbers."""
    options = dist.AllreduceOptions()
    options.reduceOp = _OPS(op)
    group = dist.group.WORLD
    assert group is not None
    group.allreduce([tensor], options).wait()


def _freed(count: int) -> torch.Tensor:
    """A tensor without memory, as FSDP leaves them."""
    tensor = torch.ones(count)
    tensor.untyped_storage().resize_(0)
    return tensor


def _columns(*starts: int) -> list[torch.Tensor]:
    """Every other element of one tensor, from each start on."""
    whole = torch.zeros(20)
    return [whole[start : start + 10 : 2] for start in starts]


# Calls that must be refused, each with words that the message must hold.
_REFUSED: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "AVG of bool": (
        lambda: dist.all_reduce(_ones(3, dtype=torch.bool), _OPS.AVG),
        ("AVG", "bool"),
    ),
    "MIN of complex": (
        lambda: _all_reduce(_ones(3, dtype=torch.complex64), _OPS.MIN),
        ("MIN", "complex64"),
    ),
    "BAND of floats": (
        lambda: dist.all_reduce(_ones(3), _OPS.BAND),
        ("BAND", "float32"),
    ),
    "SUM of a type that is only moved": (
        lambda: dist.all_reduce(torch.zeros(8, dtype=torch.uint8).view(torch.float8_e4m3fnuz)),
        ("SUM", "float8_e4m3fnuz"),
    ),
    "a tensor whose storage was freed": (
        lambda: dist.all_reduce(_freed(100)),
        ("0 bytes", "100", "freed"),
    ),
    "strided outputs with elements in common": (
        lambda: dist.all_gather(_columns(0, 4), _ones(5)),
        ("tensor_list[1]", "tensor_list[0]"),
    ),
    "output too small": (
        lambda: dist.all_gather_into_tensor(_ones(5), _ones(3)),
        ("output", "5", "6"),
    ),
    "output of another type": (
        lambda: dist.all_gather_into_tensor(_ones(6, dtype=torch.float64), _ones(3)),
        ("output", "float64", "float32"),
    ),
    "an output of another size": (
        lambda: dist.all_gather([_ones(4), _ones(4)], _ones(3)),
        ("tensor_list[", "4", "3"),
    ),
    "too few outputs": (
        lambda: dist.all_gather([_ones(3)], _ones(3)),
        ("tensor_list", "1", "2"),
    ),
    "elements that share memory": (
        lambda: dist.all_reduce(_ones(1).expand(4)),
        ("memory",),
    ),
    "outputs that share memory": (
        lambda: dist.all_gather([out := _ones(3), out], _ones(3)),
        ("memory",),
    ),
    "MAX of sparse tensors": (
        lambda: dist.all_reduce(_ones(3, 3).to_sparse(), _OPS.MAX),
        ("sparse", "summed"),
    ),
}


def _refused(name: str) -> tuple[Caught, float]:
    action, _ = _REFUSED[name]
    error = caught(action)
    total = torch.ones(1)
    dist.all_reduce(total)
    return error, total.item()


@pytest.mark.parametrize("name", _REFUSED)
def test_a_wrong_argument_is_named_and_the_group_stays_usable(ours: RankPool, name: str) -> None:
    for error, total in ours.run(2, _refused, name, timeout=20):
        assert "ValueError" in error.classes, error
        for word in _REFUSED[name][1]:
            assert word in error.message, error.message
        assert total == 2


def _gather_interleaved() -> list[list[float]]:
    columns = _columns(0, 1)
    dist.all_gather(columns, torch.arange(5.0) + 10 * dist.get_rank())
    return [column.tolist() for column in columns]


def test_outputs_may_interleave(ours: RankPool) -> None:
    for columns in ours.run(2, _gather_interleaved, timeout=20):
        assert columns == [[0, 1, 2, 3, 4], [10, 11, 12, 13, 14]]
