"""Whole collectives on the reference executor: tensors in, tensors out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybridcomm.programs.ir import Program
from hybridcomm.programs.registry import build

from .executor import Choose, Staging, execute, in_order
from .numerics import RedOp
from .tables import chunk_table, output_shape, own_part


def run_program(
    program: Program,
    inputs: Sequence[Tensor],
    *,
    op: RedOp = RedOp.SUM,
    in_place: bool = False,
    slots: int | None = None,
    slot_bytes: int = 256,
    staging: Staging = "buffered",
    choose: Choose = in_order,
) -> list[Tensor]:
    """Run a program over one tensor of each rank.

    Args:
        program: The program.
        inputs: Each rank's tensor, any strides; all of one shape and type. They stay as they are.
            Only the root's matters to a broadcast, and none to a barrier.
        op: The reduction, for a collective that reduces.
        in_place: Let the program's inputs and outputs share memory, as most callers do.
        slots: Slots per link; the program's ``min_slots`` by default.
        slot_bytes: Bytes of a slot, a multiple of the element's size.
        staging: Whether a send copies into its slot or leaves a reference.
        choose: Which lane does the next slot.

    Returns:
        Each rank's result, in the inputs' shape; an all-gather's has a dimension of N ranks before
        it. What no step writes, as all of a barrier's, holds bytes of 0xA5 unless it is in place.

    Raises:
        DeadlockError: No lane can go on.
        TypeError: The reduction is not defined for the elements' type, or not by this program.
        ValueError: An argument is wrong, or a step is not well formed.
    """
    if len(inputs) != program.world:
        raise ValueError(f"inputs: {len(inputs)} tensors for {program.world} ranks")
    shape, dtype = inputs[0].shape, inputs[0].dtype
    if any(tensor.shape != shape or tensor.dtype != dtype for tensor in inputs):
        raise ValueError("inputs: every rank's tensor must have the same shape and type")
    results, tables = [], []
    for rank, tensor in enumerate(inputs):
        result = _unwritten(output_shape(program, tuple(shape)), dtype)
        source = tensor.contiguous()
        if in_place:
            source = own_part(program, rank, result).copy_(source)
        results.append(result)
        tables.append(chunk_table(program, rank, source, result))
    execute(
        program,
        tables,
        op=op,
        slots=slots,
        slot_bytes=slot_bytes,
        staging=staging,
        choose=choose,
    )
    return results


def run_collective(
    collective: str,
    algorithm: str,
    inputs: Sequence[Tensor],
    *,
    op: RedOp = RedOp.SUM,
    root: int | None = None,
    channels: int = 1,
    in_place: bool = False,
    slots: int | None = None,
    slot_bytes: int = 256,
    staging: Staging = "buffered",
    choose: Choose = in_order,
) -> list[Tensor]:
    """Run a collective by name; as many ranks as there are tensors.

    Args:
        collective: For instance ``"all_reduce"``.
        algorithm: One of ``programs.algorithms(collective)``.
        inputs: Each rank's tensor; see ``run_program``.
        op: The reduction, for a collective that reduces.
        root: Root rank, for a collective that has one.
        channels: Number of channels.
        in_place: Let the program's inputs and outputs share memory, as most callers do.
        slots: Slots per link; the program's ``min_slots`` by default.
        slot_bytes: Bytes of a slot, a multiple of the element's size.
        staging: Whether a send copies into its slot or leaves a reference.
        choose: Which lane does the next slot.

    Returns:
        Each rank's result; see ``run_program``.

    Raises:
        TypeError: The reduction is not defined for the elements' type, or not by this program.
        ValueError: An argument is wrong.
    """
    program = build(collective, algorithm, len(inputs), channels=channels, root=root)
    return run_program(
        program,
        inputs,
        op=op,
        in_place=in_place,
        slots=slots,
        slot_bytes=slot_bytes,
        staging=staging,
        choose=choose,
    )


def _unwritten(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory in which an element that nobody writes shows."""
    result = torch.empty(shape, dtype=dtype)
    result.view(-1).view(torch.uint8).fill_(0xA5)
    return result
