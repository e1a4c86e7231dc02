"""The comparer must see every fault it is there for, and the test data must be fit to show them."""

from __future__ import annotations

import pytest
import torch

from tests.support.tensors import DTYPES, LAYOUTS, canonical, difference, place, shape_for, values

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf")

_FLOATS = [dtype for dtype in DTYPES.values() if dtype.is_floating_point]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_one_flipped_bit_is_seen(dtype: torch.dtype) -> None:
    good = values(dtype, 64, seed=1, rank=0)
    wide = good.to(torch.complex128 if dtype.is_complex else torch.float64)
    number = int(wide.isnan().logical_not().nonzero()[5])
    raw = good.clone().view(torch.uint8)
    raw[number * dtype.itemsize] ^= 1
    found = difference(raw.view(dtype), good)
    assert found is not None
    assert found.startswith(f"1 of 64 elements differ: [{number}] 0x")


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_a_transposed_result_is_seen(dtype: torch.dtype) -> None:
    good = values(dtype, 36, seed=2, rank=0).view(6, 6)
    assert difference(good.clone(), good) is None
    assert difference(good.T, good) is not None
    assert difference(good[:4], good) is not None


def test_a_stale_element_is_seen() -> None:
    before = values(torch.int32, 100, seed=3, rank=0)
    good = values(torch.int32, 100, seed=3, rank=1)
    bad = good.clone()
    bad[99] = before[99]
    assert "1 of 100 elements differ: [99]" in (difference(bad, good) or "")


@pytest.mark.parametrize("dtype", _FLOATS, ids=str)
def test_any_nan_equals_any_nan_and_signs_of_zero_count(dtype: torch.dtype) -> None:
    every_code = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    if dtype.itemsize == 1:
        numbers = every_code[:256].to(torch.uint8).view(dtype)
    elif dtype.itemsize == 2:
        numbers = every_code.view(dtype)
    else:
        numbers = torch.tensor([0.0, -0.0, 1.0, torch.nan, -torch.nan], dtype=dtype)
    nan = numbers.to(torch.float64).isnan()
    forms = torch.unique(canonical(numbers), dim=0)
    assert len(forms) == len(numbers) - int(nan.sum()) + 1


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_values_differ_by_element_and_rank(dtype: torch.dtype) -> None:
    ranks = [canonical(values(dtype, 512, seed=4, rank=rank)) for rank in range(3)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        # Of one-byte types many elements must agree by chance, of bool half of them.
        assert (ranks[one] != ranks[other]).any(dim=1).float().mean() > 0.4
    repeated = canonical(values(dtype, 512, seed=4, rank=0))
    assert torch.equal(repeated, ranks[0])
    if dtype.itemsize >= 4:
        assert len(torch.unique(ranks[0], dim=0)) > 450


@pytest.mark.parametrize("dtype", _FLOATS, ids=str)
def test_values_hold_every_special_number(dtype: torch.dtype) -> None:
    numbers = values(dtype, 2048, seed=5, rank=0).to(torch.float64)
    assert numbers.isnan().any()
    assert (numbers == 0).any()
    if dtype in (torch.float16, torch.float32, torch.float64, torch.bfloat16, torch.float8_e5m2):
        assert numbers.isposinf().any()
        assert numbers.isneginf().any()
        assert (numbers[numbers == 0].signbit()).any()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("count", [0, 1, 7, 30])
def test_placing_keeps_values_and_damage_is_seen(
    layout: str, dtype: torch.dtype, count: int
) -> None:
    data = values(dtype, count, seed=6, rank=0).view(shape_for(layout, count))
    placed = place(layout, data)
    assert torch.equal(canonical(placed.view), canonical(data))
    assert placed.damaged() is None
    if layout in ("column", "every_other", "offset") and count:
        placed.memory[-1] ^= 1
        assert "1 bytes outside the tensor changed" in (placed.damaged() or "")


def test_layouts_are_what_they_are_called() -> None:
    data = values(torch.float32, 30, seed=7, rank=0).view(5, 6)
    assert shape_for("transposed", 30) == (5, 6)
    assert place("contiguous", data).view.is_contiguous()
    for layout in ("transposed", "column", "every_other"):
        assert not place(layout, data).view.is_contiguous()
    assert place("transposed", data).view.T.is_contiguous()
    assert place("offset", data).view.storage_offset() == 3
