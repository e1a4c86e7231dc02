"""Test data: values that differ by element and rank, in every memory layout a caller may have."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.uint16,
        torch.int16,
        torch.uint32,
        torch.int32,
        torch.uint64,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex32,
        torch.complex64,
        torch.complex128,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
    )
}

# The floats that a complex number consists of.
_PARTS = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}

LAYOUTS = ("contiguous", "transposed", "column", "every_other", "offset")

# One element in so many is a special number: NaN, an infinity, a zero of either sign.
_SPECIAL_EVERY = 16
_GUARD = 0xA5


@dataclass(frozen=True)
class Placed:
    """A tensor in some layout, with the memory around it.

    Args:
        view: What a collective is given.
        memory: All of its storage as bytes; the bytes outside `view` are guards.
    """

    view: Tensor
    memory: Tensor

    def damaged(self) -> str | None:
        """Looks at the memory around the tensor.

        Returns:
            What is wrong with it, or None.
        """
        outside = self.memory.clone()
        # A tensor over the copy that lies as the view does.
        inside = torch.as_strided(
            outside.view(self.view.dtype),
            self.view.shape,
            self.view.stride(),
            self.view.storage_offset(),
        )
        _bytes_of_strided(inside).fill_(_GUARD)
        wrong = (outside != _GUARD).nonzero()
        if len(wrong) == 0:
            return None
        return f"{len(wrong)} bytes outside the tensor changed, the first at {int(wrong[0])}"


def values(dtype: torch.dtype, count: int, seed: int, rank: int) -> Tensor:
    """Makes the data of one rank.

    Floats are of one magnitude, so that each addition rounds and a wrong order shows, with special
    numbers sprinkled in: at other places on each rank, and sometimes at the same.

    Args:
        dtype: Any of `DTYPES`.
        count: Number of elements.
        seed: Number of the case.
        rank: The rank; another has other values.

    Returns:
        A contiguous tensor of shape (count,).
    """
    generator = torch.Generator().manual_seed(seed * 1009 + rank)
    part = _PARTS.get(dtype)
    if part is not None:
        floats = _floats(part, 2 * count, generator)
        return floats.view(dtype)
    if dtype.is_floating_point:
        return _floats(dtype, count, generator)
    random = torch.randint(
        0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator
    )
    return (random & 1).view(dtype) if dtype is torch.bool else random.view(dtype)


def shape_for(layout: str, count: int) -> tuple[int, ...]:
    """Chooses a shape in which a layout differs from others.

    Args:
        layout: One of `LAYOUTS`.
        count: Number of elements.

    Returns:
        Two dimensions, as near to a square as can be, for "transposed", otherwise one.
    """
    if layout != "transposed" or count == 0:
        return (count,)
    rows = next(d for d in range(math.isqrt(count), 0, -1) if count % d == 0)
    return (rows, count // rows)


def place(layout: str, data: Tensor) -> Placed:
    """Lays data out in memory as a caller might have it.

    Args:
        layout: One of `LAYOUTS`: as torch would; as the transpose of a contiguous tensor; as a
            column of a wider tensor; as every other element; or not at the storage's begin.
        data: Contiguous tensor of any shape.

    Returns:
        A tensor equal to `data`, and its surroundings.
    """
    stride = data.stride()
    if layout == "transposed":
        stride = torch.empty(tuple(reversed(data.shape)), device="meta").stride()[::-1]
    spread = {"column": 3, "every_other": 2}.get(layout, 1)
    offset, tail = (3, 2) if layout == "offset" else (0, 0)
    size = (offset + data.numel() * spread + tail) * data.dtype.itemsize
    memory = torch.full((size,), _GUARD, dtype=torch.uint8)
    view = torch.as_strided(
        memory.view(data.dtype), data.shape, [step * spread for step in stride], offset
    )
    _bytes_of_strided(view).copy_(_bytes_of_strided(data))
    return Placed(view, memory)


def canonical(tensor: Tensor) -> Tensor:
    """Brings a tensor into the form in which equal means equal bit for bit, any NaN as any other.

    Args:
        tensor: Any dtype and layout.

    Returns:
        Its elements as bytes, of shape (elements, bytes of one element), NaNs made the same.
    """
    dtype = tensor.dtype
    elements = _bytes_of_strided(tensor.detach()).reshape(-1, dtype.itemsize)
    part = _PARTS.get(dtype, dtype)
    if part.is_floating_point:
        elements = elements.clone()
        nans = elements.view(-1).view(part).to(torch.float64).isnan()
        one_nan = torch.tensor([math.nan], dtype=torch.float64).to(part).view(torch.uint8)
        elements.view(-1, part.itemsize)[nans] = one_nan
    return elements


def digest(tensor: Tensor) -> bytes:
    """Condenses what `difference` compares, apart from the shape.

    Args:
        tensor: Any dtype and layout.

    Returns:
        16 bytes; two tensors that differ give others.
    """
    return hashlib.blake2b(canonical(tensor).numpy().tobytes(), digest_size=16).digest()


def difference(actual: Tensor, expected: Tensor) -> str | None:
    """Compares two tensors bit for bit; any NaN equals any NaN.

    Args:
        actual: A result.
        expected: What it should be.

    Returns:
        None if they are equal, else what differs: shape, dtype, or which elements.
    """
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return (
            f"{actual.dtype} of shape {tuple(actual.shape)}, "
            f"expected {expected.dtype} of shape {tuple(expected.shape)}"
        )
    left, right = canonical(actual), canonical(expected)
    wrong = (left != right).any(dim=1).nonzero().reshape(-1).tolist()
    if not wrong:
        return None
    shown = ", ".join(
        f"[{index}] {_hex(left[index])}, expected {_hex(right[index])}" for index in wrong[:4]
    )
    return f"{len(wrong)} of {len(left)} elements differ: {shown}"


def _floats(dtype: torch.dtype, count: int, generator: torch.Generator) -> Tensor:
    random = torch.randn(count, generator=generator, dtype=torch.float64)
    result = random.to(dtype)
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0], dtype=torch.float64)
    chosen = torch.randint(0, len(special) * _SPECIAL_EVERY, (count,), generator=generator)
    places = chosen < len(special)
    bits = result.view(torch.uint8).reshape(-1, dtype.itemsize)
    table = special.to(dtype).view(torch.uint8).reshape(-1, dtype.itemsize)
    bits[places] = table[chosen[places]]
    return result


def _bytes_of_strided(tensor: Tensor) -> Tensor:
    """The same memory as bytes, one more dimension: torch moves any layout of bytes exactly."""
    size = tensor.dtype.itemsize
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return torch.as_strided(
        whole,
        (*tensor.shape, size),
        (*(stride * size for stride in tensor.stride()), 1),
        tensor.storage_offset() * size,
    )


def _hex(element: Tensor) -> str:
    return "0x" + bytes(reversed(element.tolist())).hex()  # most significant byte first
