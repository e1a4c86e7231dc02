"""Cuts tensors into the chunk tables of a program."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hybridcomm.programs.ir import Program
from hybridcomm.programs.layout import Chunk, Collective, Space
from hybridcomm.programs.partition import partition


@dataclass(frozen=True)
class ChunkTable:
    """One rank's chunks: 1-D contiguous tensors of one type, by space.

    Attributes:
        inputs: ``in[0]``, ``in[1]``, ...
        outputs: ``out[0]``, ``out[1]``, ...
        temporaries: ``tmp[0]``, ``tmp[1]``, ...
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    temporaries: tuple[Tensor, ...] = ()

    def chunk(self, chunk: Chunk) -> Tensor:
        """The memory of a chunk.

        Args:
            chunk: Which chunk.

        Returns:
            Its tensor, not a copy.
        """
        return (self.inputs, self.outputs, self.temporaries)[chunk.space][chunk.number]

    def all_chunks(self) -> tuple[Tensor, ...]:
        """Every chunk.

        Returns:
            ``in``, then ``out``, then ``tmp`` chunks.
        """
        return self.inputs + self.outputs + self.temporaries


def output_shape(program: Program, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a rank's result.

    Args:
        program: The program.
        shape: The shape of the rank's own tensor.

    Returns:
        With a dimension of N ranks before it for an all-gather, else the same.
    """
    return (program.world, *shape) if program.collective is Collective.ALL_GATHER else shape


def own_part(program: Program, rank: int, output: Tensor) -> Tensor:
    """The part of a rank's result that is its input's memory when the call is in place.

    Args:
        program: The program.
        rank: The rank.
        output: Its result, of ``output_shape``.

    Returns:
        A view of the result.
    """
    return output[rank] if program.collective is Collective.ALL_GATHER else output


def chunk_table(program: Program, rank: int, source: Tensor, target: Tensor) -> ChunkTable:
    """Cut one rank's tensors as every executor does.

    The rank's tensor is cut into as many pieces as it has ``in`` chunks. An all-gather's result
    is cut so rank by rank, any other result like the tensor.

    Args:
        program: The program.
        rank: The rank.
        source: Its input, contiguous.
        target: Its result, contiguous and of ``output_shape``; in place, ``source`` is its own
            part.

    Returns:
        The table, with new memory for temporaries.
    """
    layout = program.layout
    if not layout.n_in:
        return ChunkTable((), ())

    def cut(tensor: Tensor) -> list[Tensor]:
        pieces = partition(source.numel(), source.itemsize, layout.n_in)
        return [tensor.view(-1).narrow(0, begin, elements) for begin, elements in pieces]

    if program.collective is Collective.ALL_GATHER:
        rows = [cut(row) for row in target]
        # out[c * N + r] is piece c of rank r's row.
        outputs = tuple(row[piece] for piece in range(layout.n_in) for row in rows)
    else:
        outputs = tuple(cut(target))
    temporaries = tuple(
        torch.empty_like(outputs[layout.piece(rank, Chunk(Space.TMP, number))])
        for number in range(program.n_tmp)
    )
    return ChunkTable(tuple(cut(source)), outputs, temporaries)
