"""A backend of torch.distributed: ours, Gloo, or `fake`, which returns at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

import hybridcomm

from ..buffers import Array, is_root, neighbour, stored_dtype
from ..cases import Case

_OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


def make(backend: str, rank: str, world: str, store: str) -> ProcessGroupCaller:
    """Joins the other ranks.

    Args:
        backend: Name of the torch.distributed backend.
        rank: This rank.
        world: Number of ranks.
        store: File through which the ranks find each other.

    Returns:
        The caller.
    """
    return ProcessGroupCaller(backend, int(rank), int(world), store)


class ProcessGroupCaller:
    """One rank of a torch.distributed backend.

    Args:
        backend: Name of the backend.
        rank: This rank.
        world: Number of ranks.
        store: File through which the ranks find each other.
    """

    def __init__(self, backend: str, rank: int, world: int, store: str) -> None:
        torch.set_num_threads(1)
        self.rank = rank
        self.communicates = backend != "fake"
        own = f"hybridcomm {hybridcomm.__version__}, "
        self.version = f"{own if backend == 'hybridcomm' else ''}torch {torch.__version__}"
        if self.communicates:
            hybridcomm.register()  # torch does this by itself, unless its autoload is switched off
            dist.init_process_group(
                backend, init_method=f"file://{store}", rank=rank, world_size=world
            )
        else:
            from torch.testing._internal.distributed.fake_pg import FakeStore

            dist.init_process_group(backend, store=FakeStore(), rank=rank, world_size=world)

    def allocate(self, elements: int, dtype: str) -> Array:
        """Gives memory as torch gives it to a tensor."""
        tensor = torch.empty(elements, dtype=getattr(torch, dtype))
        array: Array = tensor.view(torch.uint8).numpy().view(stored_dtype(dtype))
        return array

    def call(self, case: Case, source: Array, result: Array) -> Callable[[], object]:
        """Gives what makes one call."""
        dtype: torch.dtype = getattr(torch, case.dtype)
        into, out = (torch.from_numpy(array).view(dtype) for array in (source, result))
        op = _OPS.get(case.reduction, dist.ReduceOp.SUM)
        match case.collective:
            case "all_reduce":
                return partial(dist.all_reduce, out, op)
            case "broadcast":
                return partial(dist.broadcast, out, 0)
            case "reduce":
                return partial(dist.reduce, out, 0, op)
            case "all_gather":
                return partial(dist.all_gather_into_tensor, out, into)
            case "reduce_scatter":
                return partial(dist.reduce_scatter_tensor, out, into, op)
            case "all_to_all":
                return partial(dist.all_to_all_single, out, into)
            case "gather":
                parts = list(out.chunk(case.world)) if is_root(self.rank) else None
                return partial(dist.gather, into, parts, 0)
            case "scatter":
                parts = list(into.chunk(case.world)) if is_root(self.rank) else None
                return partial(dist.scatter, out, parts, 0)
            case "send_recv":
                to, of = (self.rank + 1) % case.world, (self.rank - 1) % case.world
                return partial(_send_recv, into, out, to, of)
            case "ping_pong":
                return self._ping_pong(case, into, out)
            case "barrier":
                return dist.barrier
        raise ValueError(f"case.collective: there is no {case.collective!r}")

    def _ping_pong(self, case: Case, into: Tensor, out: Tensor) -> Callable[[], object]:
        other = neighbour(case, self.rank)
        if other is None:
            return lambda: None
        if self.rank < other:
            return partial(_serve_and_return, into, out, other)
        return partial(_return, into, out, other)

    def barrier(self) -> None:
        """Returns when all ranks are there."""
        dist.barrier()

    def close(self) -> None:
        """Destroys the group."""
        dist.destroy_process_group()


def _send_recv(into: Tensor, out: Tensor, to: int, of: int) -> None:
    sending = dist.isend(into, to)
    dist.recv(out, of)
    if sending is not None:
        sending.wait()


def _serve_and_return(into: Tensor, out: Tensor, other: int) -> None:
    dist.send(into, other)
    dist.recv(out, other)


def _return(into: Tensor, out: Tensor, other: int) -> None:
    dist.recv(out, other)
    dist.send(into, other)
