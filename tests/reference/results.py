"""What every collective must come to, computed without programs, and inputs to compute it from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybridcomm.reference.executor import Staging
from tests.programs.editing import is_rooted

WORLDS = range(1, 9)
SIZES = (0, 1, 7, 129, 1000)
REDUCED = [
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
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
MOVED = [*REDUCED, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.complex32]
MOVING = ("broadcast", "all_gather", "all_to_all", "gather", "scatter")
STAGINGS: tuple[Staging, ...] = ("buffered", "rendezvous")


def raw(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def distinct(dtype: torch.dtype, rank: int, count: int) -> Tensor:
    """Values that differ from element to element and from rank to rank, whatever the type.

    As bytes, so that types which only move have them too; none of the bytes is that of unwritten
    memory.
    """
    size = count * dtype.itemsize
    data = (torch.arange(size) * 37 + rank * 11 + torch.arange(size) // 251) % 0xA5
    if dtype is torch.bool:
        data = (data * 7 + rank) % 2
    return data.to(torch.uint8).view(dtype)


def exact(dtype: torch.dtype, rank: int, count: int) -> Tensor:
    """Small whole numbers: their sums over 8 ranks are exact in every type and every order."""
    pattern = (torch.arange(count) * 5 + torch.arange(count) // 7 + rank * 3) % 3
    if dtype.is_complex:
        return torch.complex(pattern.double(), (2 - pattern).double()).to(dtype)
    return pattern.to(torch.float32).to(dtype)


def exact_sum(inputs: Sequence[Tensor]) -> Tensor:
    """The sum by way of 64-bit floats, without any code of ours."""
    dtype = inputs[0].dtype
    if dtype.is_complex:
        return torch.stack(list(inputs)).to(torch.complex128).sum(0).to(dtype)
    # By way of float32, because float8 converts to and from nothing else.
    total = torch.stack([tensor.to(torch.float32) for tensor in inputs]).double().sum(0)
    return total.to(torch.float32).to(dtype)


def wanted_results(
    collective: str, inputs: Sequence[Tensor], root: int | None, total: Tensor | None = None
) -> list[Tensor]:
    """What each rank must have at the end, computed without programs.

    Args:
        collective: Which.
        inputs: Each rank's tensor; one that is cut for the ranks has them as first dimension.
        root: The root, if there is one.
        total: The inputs' reduction, for a collective that reduces.
    """
    world = len(inputs)
    nothing = inputs[0].new_empty(0)
    if collective in ("all_reduce", "reduce", "reduce_scatter"):
        assert total is not None
        if collective == "reduce_scatter":
            return list(total)
        return [total if root in (None, rank) else nothing for rank in range(world)]
    if collective == "broadcast":
        return [inputs[root or 0]] * world
    if collective == "scatter":
        return list(inputs[root or 0])
    if collective == "all_to_all":
        return [torch.stack([tensor[rank] for tensor in inputs]) for rank in range(world)]
    together = torch.stack(list(inputs))  # all_gather and gather
    return [together if root in (None, rank) else nothing for rank in range(world)]


def rows(collective: str, tensor: Tensor, world: int) -> Tensor:
    """The tensor as this collective takes it: with a row for each rank where it is cut so."""
    cut = collective in ("reduce_scatter", "scatter", "all_to_all")
    return tensor.view(world, tensor.numel() // world) if cut else tensor


def root_of(collective: str, world: int) -> int | None:
    return world - 1 if is_rooted(collective) else None


def staging_of(collective: str, algorithm: str, number: int) -> Staging:
    """Buffered for even numbers, else by reference, which a one-shot cannot bear in place."""
    return STAGINGS[number % 2] if algorithm != "one_shot" else "buffered"
