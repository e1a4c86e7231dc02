"""An MPI, through mpi4py's calls on buffers, which are its quick ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from ..buffers import Array, is_root, neighbour, stored_dtype
from ..cases import Case, Form

_TYPES = {
    "float64": MPI.DOUBLE,
    "float32": MPI.FLOAT,
    "int64": MPI.INT64_T,
    "int32": MPI.INT32_T,
    "int8": MPI.INT8_T,
    "uint8": MPI.UINT8_T,
    # Of the dtypes that MPI does not know it moves the bytes; `peers` asks for no sums of them.
    "float16": MPI.UINT16_T,
    "bfloat16": MPI.UINT16_T,
}
_OPS = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX}


def make() -> MpiCaller:
    """Joins the other ranks, which mpiexec has started.

    Returns:
        The caller.
    """
    return MpiCaller()


class MpiCaller:
    """One rank of MPI's world."""

    def __init__(self) -> None:
        self._world = MPI.COMM_WORLD
        self.rank = self._world.Get_rank()
        self.communicates = True
        self.version = MPI.Get_library_version().splitlines()[0].split(",")[0].strip("\0 ")

    def allocate(self, elements: int, dtype: str) -> Array:
        """Gives memory as numpy gives it."""
        return np.empty(elements, stored_dtype(dtype))

    def call(self, case: Case, source: Array, result: Array) -> Callable[[], object]:
        """Gives what makes one call."""
        kind, comm = _TYPES[case.dtype], self._world
        # MPI has a word of its own for an input that is where the output goes.
        here = case.form is Form.IN_PLACE
        into: Any = MPI.IN_PLACE if here else [source, kind]
        out: Any = [result, kind]
        op = _OPS.get(case.reduction, MPI.SUM)
        root = is_root(self.rank)
        match case.collective:
            case "all_reduce":
                return partial(comm.Allreduce, into, out, op)
            case "broadcast":
                return partial(comm.Bcast, out, 0)
            case "reduce":
                if here and not root:
                    return partial(comm.Reduce, out, None, op, 0)
                return partial(comm.Reduce, into, out if root else None, op, 0)
            case "all_gather":
                return partial(comm.Allgather, into, out)
            case "reduce_scatter":
                return partial(comm.Reduce_scatter_block, into, out, op)
            case "all_to_all":
                return partial(comm.Alltoall, into, out)
            case "gather":
                return partial(comm.Gather, into, out if root else None, 0)
            case "scatter":
                return partial(comm.Scatter, into if root else None, out, 0)
            case "send_recv":
                to, of = (self.rank + 1) % case.world, (self.rank - 1) % case.world
                return partial(comm.Sendrecv, into, to, 0, out, of, 0)
            case "ping_pong":
                other = neighbour(case, self.rank)
                if other is None:
                    return lambda: None
                return partial(self._ping_pong, into, out, other, self.rank < other)
            case "barrier":
                return partial(comm.Barrier)
        raise ValueError(f"case.collective: there is no {case.collective!r}")

    def _ping_pong(self, into: Any, out: Any, other: int, first: bool) -> None:
        if first:
            self._world.Send(into, other)
            self._world.Recv(out, other)
        else:
            self._world.Recv(out, other)
            self._world.Send(into, other)

    def barrier(self) -> None:
        """Returns when all ranks are there."""
        self._world.Barrier()

    def close(self) -> None:
        """Finalizes MPI, without which mpiexec would take the end for a failure."""
        MPI.Finalize()
