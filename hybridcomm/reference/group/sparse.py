"""All-reduce of sparse COO tensors.

First every rank says how many elements it has, then indices and values are gathered, and each rank
adds them up in rank order. As csrc/torch/sparse.cpp does it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hybridcomm.programs.layout import Collective

from ..numerics import RedOp
from .errors import FailedError, Identity, Kind
from .operation import Collect
from .tensors import CallSite


class SparseSum:
    """One sparse all-reduce.

    Args:
        site: Names it in refusals.
        tensor: The caller's.
        number: torch's number of the reduction.
        identity: Which rank of which group.

    Raises:
        ValueError: The tensor or the reduction cannot be used.
    """

    def __init__(self, site: CallSite, tensor: Tensor, number: int, identity: Identity) -> None:
        if tensor.layout is not torch.sparse_coo:
            site.refuse("tensor", "it is not sparse in the COO format; pass tensor.to_sparse_coo()")
        if tensor.device.type != "cpu":
            site.refuse(
                "tensor", "sparse tensors are reduced in host memory only; pass tensor.cpu()"
            )
        if number not in (RedOp.SUM, RedOp.AVG):
            site.refuse("op", "sparse tensors are summed or averaged only")
        self._identity = identity
        self._tensor = tensor
        with torch.no_grad():
            coalesced = tensor.detach().coalesce()
            self._indices = coalesced.indices().contiguous()
            self._values = coalesced.values().contiguous()
        site.check(self._values, "tensor")
        op = site.check_reduction(self._values, "tensor", number)
        if op is RedOp.AVG and not (tensor.is_floating_point() or tensor.is_complex()):
            site.refuse("op", "AVG of sparse integers; use SUM and divide")
        self._average = op is RedOp.AVG
        self._gathered: list[tuple[Tensor, Tensor]] = []

    def phases(self, algorithm: str) -> Iterator[Collect]:
        """The two gathers.

        Args:
            algorithm: Of an all-gather.

        Yields:
            One after the other.

        Raises:
            FailedError: The ranks' tensors differ in size.
        """
        tensor, world = self._tensor, self._identity.world
        facts = [self._indices.shape[1], tensor.sparse_dim(), tensor.dense_dim(), *tensor.shape]
        own = torch.tensor(facts, dtype=torch.int64)
        shapes = [torch.empty_like(own) for _ in range(world)]
        yield Collect(Collective.ALL_GATHER, algorithm, torch.int64, len(own), [own], shapes)
        counts = self._counts([shape.tolist() for shape in shapes])
        for parts in zip(
            self._gather(self._indices.T.contiguous(), counts),
            self._gather(self._values, counts),
            strict=True,
        ):
            self._gathered.append(parts)
        for which in (0, 1):
            mine = (self._indices.T.contiguous(), self._values)[which]
            outputs = [parts[which].view(-1).view(torch.uint8) for parts in self._gathered]
            digest = hash(tuple(counts)) % (1 << 63) | 1
            yield Collect(
                Collective.ALL_GATHER,
                algorithm,
                torch.uint8,
                sum(map(len, outputs)),
                [mine.view(-1).view(torch.uint8)],
                outputs,
                splits=digest,
            )

    def _gather(self, model: Tensor, counts: list[int]) -> list[Tensor]:
        return [torch.empty((count, *model.shape[1:]), dtype=model.dtype) for count in counts]

    def _counts(self, shapes: list[list[int]]) -> list[int]:
        """How many elements each rank has. The sizes must be the same everywhere."""
        rank = self._identity.rank
        for other, shape in enumerate(shapes):
            if shape[1:] != shapes[rank][1:]:
                raise FailedError(
                    Kind.MISMATCH,
                    other,
                    f"the ranks disagree: rank {rank} gave a sparse tensor of "
                    f"{_words(shapes[rank])}, rank {other} one of {_words(shape)}",
                )
        return [shape[0] for shape in shapes]

    def finish(self) -> None:
        """Adds up what was gathered, into the caller's tensor."""
        with torch.no_grad():
            indices = torch.cat([indices for indices, _ in self._gathered]).T
            values = torch.cat([values for _, values in self._gathered])
            total = torch.sparse_coo_tensor(indices, values, self._tensor.shape).coalesce()
            if self._average:
                total.values().div_(self._identity.world)
            self._tensor.copy_(total)


def _words(shape: list[int]) -> str:
    return f"sizes {shape[3:]} with {shape[1]} sparse dimensions"
