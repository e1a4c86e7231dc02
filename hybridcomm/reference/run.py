"""Whole collectives on the reference executor: tensors in, tensors out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hybridcomm.programs.ir import Program
from hybridcomm.programs.layout import Collective, Space
from hybridcomm.programs.registry import build

from .executor import Choose, Staging, execute, in_order
from .numerics import RedOp
from .tables import chunk_table

# Elements of each rank's part, or, for an all-to-all, of what each rank (row) sends to each.
Splits = Sequence[int] | Sequence[Sequence[int]]

# What comes from, or goes to, each rank apart.
_JOINS = (Collective.ALL_GATHER, Collective.GATHER, Collective.ALL_TO_ALL)
_PARTS = (Collective.REDUCE_SCATTER, Collective.SCATTER, Collective.ALL_TO_ALL)


def run_program(
    program: Program,
    inputs: Sequence[Tensor],
    *,
    op: RedOp = RedOp.SUM,
    splits: Splits | None = None,
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
            Only the root's matters to a broadcast or scatter, and none to a barrier. What goes to
            rank r (reduce-scatter, all-to-all, scatter) is row r of a first dimension of N ranks.
        op: The reduction, for a collective that reduces.
        splits: Elements of each rank's part, where these differ (all-gather, reduce-scatter,
            gather, scatter), or, for an all-to-all, of what rank s sends to rank d in row s and
            column d. The inputs then have one dimension, with the parts one after the other.
        in_place: Let the program's inputs and outputs share memory, as most callers do. An
            all-to-all has no such form; it runs as ever.
        slots: Slots per link; the program's ``min_slots`` by default.
        slot_bytes: Bytes of a slot, a multiple of the element's size.
        staging: Whether a send copies into its slot or leaves a reference.
        choose: Which lane does the next slot.

    Returns:
        Each rank's result, in the inputs' shape, with a dimension of N ranks before it for an
        all-gather or gather and without the first dimension for a reduce-scatter or scatter; with
        ``splits`` of one dimension. A rank that gets nothing (of a reduce or gather, all but the
        root) has an empty tensor. What no step writes, as all of a barrier's, holds bytes of 0xA5
        unless it is in place.

    Raises:
        DeadlockError: No lane can go on.
        TypeError: The reduction is not defined for the elements' type, or not by this program.
        ValueError: An argument is wrong, or a step is not well formed.
    """
    shapes = _shapes(program, inputs, splits)
    results, tables = [], []
    for rank, tensor in enumerate(inputs):
        shape = shapes[rank]
        has_input = program.layout.has(rank, Space.IN)
        has_output = program.layout.has(rank, Space.OUT)
        source = tensor.contiguous().view(-1)
        if (
            in_place
            and has_input
            and has_output
            and program.collective is not Collective.ALL_TO_ALL
        ):
            source, result = _shared(shape, rank, source)
        else:
            result = _unwritten(sum(shape.outputs) if has_output else 0, tensor.dtype)
        results.append(result.view(shape.result) if has_output else result)
        sources, targets = (), ()
        if program.layout.n_in and has_input:
            sources = source.split(shape.inputs)
        if program.layout.n_out and has_output:
            targets = result.split(shape.outputs)
        tables.append(chunk_table(program.rank_program(rank), sources, targets))
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
    splits: Splits | None = None,
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
        splits: Elements of each rank's part, where these differ; see ``run_program``.
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
        splits=splits,
        in_place=in_place,
        slots=slots,
        slot_bytes=slot_bytes,
        staging=staging,
        choose=choose,
    )


class _Shape(NamedTuple):
    """Elements of one rank's buffers, and the shape of its result."""

    inputs: list[int]
    outputs: list[int]
    result: tuple[int, ...]


def _shapes(program: Program, inputs: Sequence[Tensor], splits: Splits | None) -> list[_Shape]:
    if len(inputs) != program.world:
        raise ValueError(f"inputs: {len(inputs)} tensors for {program.world} ranks")
    if any(tensor.dtype != inputs[0].dtype for tensor in inputs):
        raise ValueError("inputs: every rank's tensor must have the same shape and type")
    if splits is not None:
        return _uneven_shapes(program, inputs, splits)

    shape, world = tuple(inputs[0].shape), program.world
    if any(tensor.shape != shape for tensor in inputs):
        raise ValueError("inputs: every rank's tensor must have the same shape and type")
    result = shape
    parts_in = parts_out = [inputs[0].numel()]
    if program.collective in _PARTS:
        if shape[:1] != (world,):
            raise ValueError(f"inputs: the first dimension must be one of {world} ranks")
        parts_in = parts_out = [inputs[0].numel() // world]
        parts_in, result = parts_in * world, shape[1:]
    if program.collective in _JOINS:
        parts_out, result = parts_out * world, (world, *result)
    return [_Shape(parts_in, parts_out, result)] * world


def _uneven_shapes(program: Program, inputs: Sequence[Tensor], splits: Splits) -> list[_Shape]:
    world, collective = program.world, program.collective
    if collective in (Collective.GATHER, Collective.SCATTER) and program.n_tmp:
        raise ValueError(
            f"splits: in {program.algorithm} ranks pass on what others give or get, and know no "
            f"lengths but their own; use direct"
        )
    # Elements that go from each rank (row) to each (column). For all but an all-to-all one of the
    # two makes no difference.
    given = torch.as_tensor(splits, dtype=torch.int64)
    dimensions = 2 if collective is Collective.ALL_TO_ALL else 1
    if collective not in {*_JOINS, *_PARTS} or given.shape != (world,) * dimensions:
        raise ValueError(f"splits: not of the form that {collective.word} of {world} ranks has")
    if dimensions == 1:
        given = given[:, None] if collective in _JOINS else given[None, :]
    table: list[list[int]] = given.expand(world, world).tolist()
    shapes = []
    for rank, tensor in enumerate(inputs):
        sent, taken = table[rank], [row[rank] for row in table]
        parts_in = sent if collective in _PARTS else sent[:1]
        parts_out = taken if collective in _JOINS else taken[:1]
        if program.layout.has(rank, Space.IN) and tuple(tensor.shape) != (sum(parts_in),):
            raise ValueError(f"inputs: rank {rank}'s must have {sum(parts_in)} elements in a row")
        shapes.append(_Shape(parts_in, parts_out, (sum(parts_out),)))
    return shapes


def _shared(shape: _Shape, rank: int, source: Tensor) -> tuple[Tensor, Tensor]:
    """Input and result in one memory: the smaller one is its rank's part of the larger."""
    larger = max(shape.inputs, shape.outputs, key=len)
    memory = _unwritten(sum(larger), source.dtype)
    own = memory.split(larger)[rank if len(larger) > 1 else 0]
    if larger is shape.inputs and len(larger) > 1:
        return memory.copy_(source), own
    own.copy_(source)
    return own, memory


def _unwritten(elements: int, dtype: torch.dtype) -> Tensor:
    """Memory in which an element that nobody writes shows."""
    result = torch.empty(elements, dtype=dtype)
    result.view(torch.uint8).fill_(0xA5)
    return result
