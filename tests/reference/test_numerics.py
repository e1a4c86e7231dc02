"""Reductions of elements, against plain Python and NumPy arithmetic on the same operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import reduce as fold
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from hybridcomm.reference import RedOp, reduce, refusal

INTEGERS = [
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
]
NARROW = [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
WIDE = [torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]


def any_bits(dtype: torch.dtype, seed: int, count: int = 200) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator)
    return data.to(torch.uint8).view(dtype)


def normal(dtype: torch.dtype, seed: int, count: int = 500) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(count, generator=generator, dtype=torch.float64) * 8).to(dtype)


def bits(tensor: Tensor) -> list[int]:
    out: list[int] = tensor.contiguous().view(torch.uint8).tolist()
    return out


@pytest.mark.parametrize("op", list(RedOp))
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("operands", [1, 2, 5])
def test_integers_are_pythons_modulo_two_to_the_bits(
    dtype: torch.dtype, op: RedOp, operands: int
) -> None:
    inputs = [any_bits(dtype, seed) for seed in range(operands)]
    inputs[0][:2] = torch.tensor([torch.iinfo(dtype).min, torch.iinfo(dtype).max], dtype=dtype)
    combine: dict[RedOp, Callable[[int, int], int]] = {
        RedOp.SUM: lambda a, b: a + b,
        RedOp.AVG: lambda a, b: a + b,
        RedOp.PRODUCT: lambda a, b: a * b,
        RedOp.MIN: min,
        RedOp.MAX: max,
        RedOp.BAND: lambda a, b: a & b,
        RedOp.BOR: lambda a, b: a | b,
        RedOp.BXOR: lambda a, b: a ^ b,
    }
    lowest, span = torch.iinfo(dtype).min, 1 << torch.iinfo(dtype).bits
    divisor = operands if op is RedOp.AVG else None
    wanted = []
    for column in zip(*(tensor.tolist() for tensor in inputs), strict=True):
        total = fold(combine[op], column)
        if divisor is not None:
            total = math.trunc(Fraction(total, divisor))
        wanted.append((total - lowest) % span + lowest)
    assert reduce(inputs, op, divisor).tolist() == wanted


def test_integer_average_neither_wraps_nor_rounds_down() -> None:
    top = torch.tensor([2**63 - 1, -(2**63), -1, 1], dtype=torch.int64)
    other = torch.tensor([2**63 - 2, -(2**63), -2, 2], dtype=torch.int64)
    assert reduce([top, other], RedOp.AVG, 2).tolist() == [2**63 - 2, -(2**63), -1, 1]
    assert reduce([top, other], RedOp.AVG).tolist() == [-3, 0, -3, 3]  # a sum, until it is finished


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_narrow_floats_are_summed_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    inputs = [normal(torch.float32, seed).to(dtype) for seed in range(6)]
    total = np.zeros(500, np.float32)
    for operand in inputs:
        total = (total + operand.to(torch.float32).numpy()).astype(np.float32)
    # Every sum here is finite and small, where torch's cast is right for all four.
    assert bits(reduce(inputs, RedOp.SUM)) == bits(torch.from_numpy(total).to(dtype))
    average = (total / np.float32(6)).astype(np.float32)
    assert bits(reduce(inputs, RedOp.AVG, 6)) == bits(torch.from_numpy(average).to(dtype))


def test_one_rounding_is_seen() -> None:
    """Where rounding after each operand would give another result."""
    inputs = [torch.tensor([value], dtype=torch.float16) for value in (2048.0, 1.0, 1.0)]
    assert reduce(inputs, RedOp.SUM).item() == 2050.0
    assert reduce([reduce(inputs[:2], RedOp.SUM), inputs[2]], RedOp.SUM).item() == 2048.0


def test_narrow_floats_overflow() -> None:
    half = torch.tensor([65504.0], dtype=torch.float16)
    assert reduce([half, half], RedOp.SUM).item() == torch.inf
    assert reduce([half, half], RedOp.AVG, 2).item() == 65504.0
    for dtype, largest in ((torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)):
        top = torch.tensor([largest], dtype=torch.float32).to(dtype)
        assert reduce([top, top], RedOp.SUM).to(torch.float32).item() == largest
        assert reduce([top, top], RedOp.AVG, 2).to(torch.float32).item() == largest


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("op", [RedOp.SUM, RedOp.PRODUCT, RedOp.AVG])
def test_wide_floats_in_order(dtype: torch.dtype, op: RedOp) -> None:
    inputs = [normal(dtype, seed) for seed in range(5)]
    arrays = [operand.numpy() for operand in inputs]
    wanted = fold(np.multiply if op is RedOp.PRODUCT else np.add, arrays)
    if op is RedOp.AVG:
        wanted = wanted / wanted.dtype.type(5)
    assert bits(reduce(inputs, op, 5 if op is RedOp.AVG else None)) == bits(
        torch.from_numpy(wanted)
    )


@pytest.mark.parametrize("dtype", [*NARROW, *WIDE], ids=str)
@pytest.mark.parametrize("op", [RedOp.MIN, RedOp.MAX])
def test_order_of_floats(dtype: torch.dtype, op: RedOp) -> None:
    """Every pair of these, both ways: NaN wins, and -0 lies below +0."""
    values = [torch.nan, -torch.inf, -2.0, -0.0, 0.0, 1.0, torch.inf]
    if dtype is torch.float8_e4m3fn:
        values = [value for value in values if not math.isinf(value)]
    for a in values:
        for b in values:
            pair = [torch.tensor([value], dtype=torch.float32).to(dtype) for value in (a, b)]
            result = reduce(pair, op).to(torch.float32).item()
            if math.isnan(a) or math.isnan(b):
                assert math.isnan(result)
            else:
                # values is in ascending order behind its NaN.
                wanted = (min if op is RedOp.MIN else max)((a, b), key=values[1:].index)
                if a == b == 0.0:
                    negative = [math.copysign(1, v) < 0 for v in (a, b)]
                    least = any(negative) if op is RedOp.MIN else all(negative)
                    assert math.copysign(1, result) == (-1 if least else 1)
                else:
                    assert result == wanted


Pair = tuple[npt.NDArray[Any], npt.NDArray[Any]]  # real and imaginary parts


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex(dtype: torch.dtype) -> None:
    def add(x: Pair, y: Pair) -> Pair:
        return x[0] + y[0], x[1] + y[1]

    def multiply(x: Pair, y: Pair) -> Pair:
        return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]

    def joined(pair: Pair) -> Tensor:
        return torch.view_as_complex(torch.from_numpy(np.stack(pair, axis=-1)))

    real = dtype.to_real()
    parts: list[Pair] = [(normal(real, s).numpy(), normal(real, s + 9).numpy()) for s in range(4)]
    inputs = [joined(pair) for pair in parts]
    assert inputs[0].dtype is dtype
    total, product = fold(add, parts), fold(multiply, parts)
    four = total[0].dtype.type(4)
    assert bits(reduce(inputs, RedOp.SUM)) == bits(joined(total))
    assert bits(reduce(inputs, RedOp.PRODUCT)) == bits(joined(product))
    mean = (total[0] / four, total[1] / four)
    assert bits(reduce(inputs, RedOp.AVG, 4)) == bits(joined(mean))


@pytest.mark.parametrize(
    ("op", "truth"),
    [
        (RedOp.SUM, any),
        (RedOp.MAX, any),
        (RedOp.BOR, any),
        (RedOp.PRODUCT, all),
        (RedOp.MIN, all),
        (RedOp.BAND, all),
        (RedOp.BXOR, lambda row: sum(row) % 2 == 1),
    ],
)
def test_bool(op: RedOp, truth: Callable[[list[bool]], bool]) -> None:
    """Any byte but 0 is true; a result is 0 or 1."""
    rows = [[0, 0, 0], [1, 0, 0], [2, 0, 255], [128, 1, 3], [0, 7, 0]]
    columns = torch.tensor(rows, dtype=torch.uint8).t().contiguous()
    result = reduce([column.view(torch.bool) for column in columns], op)
    assert bits(result) == [int(truth([byte != 0 for byte in row])) for row in rows]


def test_refusals() -> None:
    everything = [torch.bool, *INTEGERS, *NARROW, *WIDE, *COMPLEX, torch.complex32]
    everything += [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
    refused = {
        (op.name, dtype) for dtype in everything for op in RedOp if refusal(op, dtype) is not None
    }
    names = [op.name for op in RedOp]
    wanted = {("AVG", torch.bool)}
    wanted |= {(name, dtype) for name in ("BAND", "BOR", "BXOR") for dtype in NARROW + WIDE}
    wanted |= {(name, dtype) for name in names[3:] for dtype in COMPLEX}
    moved = [torch.complex32, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
    wanted |= {(name, dtype) for name in names for dtype in moved}
    assert refused == wanted
    with pytest.raises(TypeError, match="AVG of bool has no meaning"):
        reduce([torch.zeros(3, dtype=torch.bool)] * 2, RedOp.AVG)


@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS, *NARROW, *WIDE, *COMPLEX], ids=str)
def test_operands_stay_as_they_are(dtype: torch.dtype) -> None:
    inputs = [any_bits(dtype, seed) for seed in range(3)]
    before = [bits(operand) for operand in inputs]
    result = reduce(inputs, RedOp.SUM)
    alone = reduce(inputs[:1], RedOp.SUM)
    assert [bits(operand) for operand in inputs] == before
    assert result.dtype == dtype
    assert alone.data_ptr() != inputs[0].data_ptr()
