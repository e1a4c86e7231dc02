"""What a reduction of elements is, bit for bit: the rules that every executor keeps.

* Operands are taken in the order given, which is ascending rank order.
* float16, bfloat16 and float8 are accumulated in float32 and rounded once, to nearest even, when
  the step writes. float32, float64 and complex numbers are accumulated in their own type. Nothing
  is fused.
* Integers wrap in SUM and PRODUCT.
* AVG divides the sum by the world size in the step that finishes the value. Integers are summed
  exactly there and divided toward zero; complex numbers are divided component by component.
* MIN and MAX give NaN if any operand is NaN (one NaN is as good as another), and order -0 below +0.
* A bool is true if its byte is not 0, and a result is 0 or 1. SUM and MAX are OR, PRODUCT and MIN
  are AND.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import reduce as fold
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .float8 import FORMATS

Array = npt.NDArray[Any]


class RedOp(IntEnum):
    """Reductions, with the codes that all executors share (torch's order)."""

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7


_ARITHMETIC = frozenset({RedOp.SUM, RedOp.AVG, RedOp.PRODUCT})
_ORDER = frozenset({RedOp.MIN, RedOp.MAX})
_BITWISE = frozenset({RedOp.BAND, RedOp.BOR, RedOp.BXOR})

_INTEGERS = frozenset(
    {
        torch.uint8,
        torch.int8,
        torch.uint16,
        torch.int16,
        torch.uint32,
        torch.int32,
        torch.uint64,
        torch.int64,
    }
)
_ACCUMULATOR = {
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}
_COMPLEX = frozenset({torch.complex64, torch.complex128})


def refusal(op: RedOp, dtype: torch.dtype) -> str | None:
    """Why a reduction is not defined.

    Args:
        op: The reduction.
        dtype: The elements' type.

    Returns:
        None if it is defined, otherwise why not.
    """
    if dtype is torch.bool:
        return "AVG of bool has no meaning" if op is RedOp.AVG else None
    if dtype in _INTEGERS:
        return None
    if dtype in _ACCUMULATOR:
        return f"{op.name} needs integers or bool, not {dtype}" if op in _BITWISE else None
    if dtype in _COMPLEX:
        return None if op in _ARITHMETIC else f"{op.name} is not defined for {dtype}"
    return f"{dtype} can be moved but not reduced"


def is_integer(dtype: torch.dtype) -> bool:
    """Whether a type is an integer type other than bool.

    Args:
        dtype: The type.

    Returns:
        True for the signed and unsigned integers of 8 to 64 bits.
    """
    return dtype in _INTEGERS


def reduce(operands: Sequence[Tensor], op: RedOp, divisor: int | None = None) -> Tensor:
    """Reduce tensors element by element.

    Args:
        operands: At least one; CPU tensors of one shape and type, in ascending rank order.
        op: The reduction.
        divisor: In the step that finishes an AVG, the world size; otherwise None.

    Returns:
        A new tensor of that shape and type.

    Raises:
        TypeError: The reduction is not defined for the type.
    """
    dtype = operands[0].dtype
    why = refusal(op, dtype)
    if why is not None:
        raise TypeError(why)
    if dtype is torch.bool:
        return _reduce_bool(operands, op)
    if dtype in _INTEGERS:
        return torch.from_numpy(_reduce_integers([t.numpy() for t in operands], op, divisor))
    if dtype in _COMPLEX:
        return _reduce_complex(operands, op, divisor)
    total = fold(_FLOAT[op], map(_load, operands))
    if divisor is not None:
        total = total / divisor
    return _store(total, dtype)


def _reduce_bool(operands: Sequence[Tensor], op: RedOp) -> Tensor:
    truths = [operand.view(torch.uint8) != 0 for operand in operands]
    if op in (RedOp.SUM, RedOp.MAX, RedOp.BOR):
        return fold(torch.logical_or, truths)
    if op is RedOp.BXOR:
        return fold(torch.logical_xor, truths)
    return fold(torch.logical_and, truths)


def _reduce_integers(operands: Sequence[Array], op: RedOp, divisor: int | None) -> Array:
    if divisor is None:
        # NumPy, because torch lacks most operations on uint16, uint32 and uint64.
        return fold(_INTEGER[op], operands).copy()
    dtype = operands[0].dtype
    # Sums of 64-bit integers need Python's; those of shorter ones fit into 64 bits.
    wide = np.dtype(object) if dtype.itemsize == 8 else np.dtype(np.int64)
    total = fold(np.add, [operand.astype(wide) for operand in operands])
    toward_zero = np.where(total < 0, -(-total // divisor), total // divisor)
    return toward_zero.astype(dtype)


def _reduce_complex(operands: Sequence[Tensor], op: RedOp, divisor: int | None) -> Tensor:
    parts = [torch.view_as_real(operand) for operand in operands]
    total = fold(_complex_product if op is RedOp.PRODUCT else torch.add, parts)
    if divisor is not None:
        total = total / divisor
    return torch.view_as_complex(total.clone())


def _complex_product(x: Tensor, y: Tensor) -> Tensor:
    """The plain formula: (ac - bd) + (ad + bc) i, each operation rounded."""
    a, b, c, d = x[..., 0], x[..., 1], y[..., 0], y[..., 1]
    return torch.stack([a * c - b * d, a * d + b * c], dim=-1)


def _load(operand: Tensor) -> Tensor:
    if operand.dtype in FORMATS:
        return FORMATS[operand.dtype].decode(operand.view(torch.uint8))
    return operand.to(_ACCUMULATOR[operand.dtype], copy=True)


def _store(total: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype in FORMATS:
        return FORMATS[dtype].encode(total).view(dtype)
    return total.to(dtype)


def _minimum(x: Tensor, y: Tensor) -> Tensor:
    # torch leaves open which zero it takes.
    return torch.where(x == y, torch.where(x.signbit(), x, y), torch.minimum(x, y))


def _maximum(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x == y, torch.where(x.signbit(), y, x), torch.maximum(x, y))


_FLOAT: dict[RedOp, Callable[[Tensor, Tensor], Tensor]] = {
    RedOp.SUM: torch.add,
    RedOp.AVG: torch.add,
    RedOp.PRODUCT: torch.mul,
    RedOp.MIN: _minimum,
    RedOp.MAX: _maximum,
}
_INTEGER: dict[RedOp, Callable[[Array, Array], Array]] = {
    RedOp.SUM: np.add,
    RedOp.AVG: np.add,
    RedOp.PRODUCT: np.multiply,
    RedOp.MIN: np.minimum,
    RedOp.MAX: np.maximum,
    RedOp.BAND: np.bitwise_and,
    RedOp.BOR: np.bitwise_or,
    RedOp.BXOR: np.bitwise_xor,
}
