"""The codes of element types, which all executors share."""

from __future__ import annotations

import torch

CODES: dict[torch.dtype, int] = {
    torch.bool: 0,
    torch.uint8: 1,
    torch.int8: 2,
    torch.uint16: 3,
    torch.int16: 4,
    torch.uint32: 5,
    torch.int32: 6,
    torch.uint64: 7,
    torch.int64: 8,
    torch.float16: 9,
    torch.bfloat16: 10,
    torch.float32: 11,
    torch.float64: 12,
    torch.complex64: 13,
    torch.complex128: 14,
    torch.float8_e4m3fn: 15,
    torch.float8_e5m2: 16,
    torch.float8_e4m3fnuz: 17,
    torch.float8_e5m2fnuz: 18,
    torch.complex32: 19,
}
_NAMES = {code: str(dtype).removeprefix("torch.") for dtype, code in CODES.items()}


def name_of(dtype: torch.dtype) -> str:
    """A type's name without torch's: "float32"."""
    return str(dtype).removeprefix("torch.")


def name_of_code(code: int) -> str:
    """The name of the type with a code, which may come from another process."""
    return _NAMES.get(code, f"type {code}")
