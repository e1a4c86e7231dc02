"""8-bit floats: every code, every tie, saturation, infinities, NaN and signed zeros."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hybridcomm.reference.float8 import FORMATS

DTYPES = list(FORMATS)
CODES = torch.arange(256, dtype=torch.uint8)


def same(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, any NaN being equal to any NaN."""
    nan = one.isnan() & other.isnan()
    return bool((nan | (one.view(torch.int32) == other.view(torch.int32))).all())


def encoded(dtype: torch.dtype, *values: float) -> list[int]:
    codes: list[int] = FORMATS[dtype].encode(torch.tensor(values, dtype=torch.float32)).tolist()
    return codes


@pytest.mark.parametrize("dtype", DTYPES)
def test_decodes_like_torch(dtype: torch.dtype) -> None:
    assert same(FORMATS[dtype].decode(CODES), CODES.view(dtype).to(torch.float32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_code_comes_back(dtype: torch.dtype) -> None:
    values = FORMATS[dtype].decode(CODES)
    codes = FORMATS[dtype].encode(values)
    assert torch.equal(codes[~values.isnan()], CODES[~values.isnan()])
    assert FORMATS[dtype].decode(codes[values.isnan()]).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounds_to_the_nearest_and_ties_to_even(dtype: torch.dtype) -> None:
    """Between each pair of neighbours: just below, at and just above the middle."""
    largest = FORMATS[dtype].largest
    values = FORMATS[dtype].decode(CODES[: largest + 1])
    middle = (values[:-1] + values[1:]) / 2
    lower = CODES[:largest]
    infinity = torch.tensor(torch.inf)
    for sign, bit in ((1, 0), (-1, 0x80)):
        encode = FORMATS[dtype].encode
        below = torch.nextafter(middle, -infinity)
        above = torch.nextafter(middle, infinity)
        assert torch.equal(encode(sign * below), lower + bit)
        assert torch.equal(encode(sign * above), lower + 1 + bit)
        assert torch.equal(encode(sign * middle), lower + lower % 2 + bit)


@pytest.mark.parametrize("dtype", DTYPES)
def test_agrees_with_torch_where_torch_is_right(dtype: torch.dtype) -> None:
    """Every float16 that is finite and not above the largest value."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16).to(torch.float32)
    limit = FORMATS[dtype].decode(CODES[FORMATS[dtype].largest]).item()
    every = every[every.abs() <= limit]
    assert torch.equal(FORMATS[dtype].encode(every), every.to(dtype).view(torch.uint8))


def test_e4m3_has_no_infinity() -> None:
    finite = encoded(torch.float8_e4m3fn, 448.0, 449.0, 1e30, -465.0, -3e38)
    assert finite == [0x7E, 0x7E, 0x7E, 0xFE, 0xFE]
    special = encoded(torch.float8_e4m3fn, torch.inf, -torch.inf, torch.nan)
    assert [code & 0x7F for code in special] == [0x7F, 0x7F, 0x7F]


def test_e5m2_keeps_infinity_and_saturates() -> None:
    finite = encoded(torch.float8_e5m2, 57344.0, 61440.0, 1e30, -3e38)
    assert finite == [0x7B, 0x7B, 0x7B, 0xFB]
    assert encoded(torch.float8_e5m2, torch.inf, -torch.inf) == [0x7C, 0xFC]
    assert encoded(torch.float8_e5m2, torch.nan)[0] & 0x7F > 0x7C


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_and_the_smallest(dtype: torch.dtype) -> None:
    smallest = FORMATS[dtype].decode(CODES[1]).item()
    assert encoded(dtype, 0.0, -0.0, smallest, -smallest) == [0, 0x80, 1, 0x81]
    assert encoded(dtype, smallest / 2, -smallest / 2, smallest * 0.51) == [0, 0x80, 1]
