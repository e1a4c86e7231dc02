"""Cuts buffers into the chunk tables of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hybridcomm.programs.ir import RankProgram
from hybridcomm.programs.layout import Chunk, Collective, Space
from hybridcomm.programs.partition import partition


@dataclass(frozen=True)
class ChunkTable:
    """One rank's chunks: 1-D contiguous tensors of one type, by space. A space may be empty.

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


def chunk_table(
    part: RankProgram, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> ChunkTable:
    """Cut one rank's buffers as every executor does.

    One buffer holds a space's chunks one after the other. A space with C * N chunks may have N
    buffers instead, one for each rank: chunk ``c * N + r`` is then part c of C of buffer r. So all
    collectives have it but an all-reduce, whose pieces are parts of one tensor.

    Args:
        part: The rank's program.
        inputs: 1-D contiguous buffers, all of one type; none where the rank has no ``in`` chunks.
        outputs: Likewise. In place, they share memory with inputs as ``layout.py`` says.

    Returns:
        The table, with new memory for the temporaries that a step names.

    Raises:
        ValueError: There are not as many buffers as the collective has.
    """
    layout = part.layout
    sources = _cut(part, Space.IN, inputs, layout.n_in)
    targets = _cut(part, Space.OUT, outputs, layout.n_out)
    lengths = {
        layout.piece(part.rank, Chunk(space, number)): chunk.numel()
        for space, chunks in ((Space.IN, sources), (Space.OUT, targets))
        for number, chunk in enumerate(chunks)
    }
    named = {chunk for lane in part.lanes for step in lane for chunk in (step.src, step.dst)}
    temporaries = []
    for number in range(part.n_tmp):
        chunk = Chunk(Space.TMP, number)
        length = 0
        if chunk in named:
            piece = layout.piece(part.rank, chunk)
            # What another rank gives or gets in a gather or scatter is as long as what this one
            # does: on the same channel, for those are parts of one cut.
            alike = (other for other in lengths if other // part.world == piece // part.world)
            length = lengths[piece if piece in lengths else next(alike)]
        temporaries.append(torch.empty(length, dtype=(*inputs, *outputs)[0].dtype))
    return ChunkTable(sources, targets, tuple(temporaries))


def _cut(
    part: RankProgram, space: Space, buffers: Sequence[Tensor], chunks: int
) -> tuple[Tensor, ...]:
    if not part.layout.has(part.rank, space):
        chunks = 0
    alone = chunks == part.channels or part.collective is Collective.ALL_REDUCE
    wanted = 0 if not chunks else 1 if alone else part.world
    if len(buffers) != wanted:
        raise ValueError(
            f"{space.name.lower()}: {len(buffers)} buffers given; rank {part.rank} of this "
            f"{part.collective.word} has {wanted}"
        )
    if not chunks:
        return ()
    parts = chunks // wanted
    cuts = [
        [
            buffer.narrow(0, begin, elements)
            for begin, elements in partition(buffer.numel(), buffer.itemsize, parts)
        ]
        for buffer in buffers
    ]
    return tuple(cut[place] for place in range(parts) for cut in cuts)
