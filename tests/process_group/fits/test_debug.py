"""TORCH_DISTRIBUTED_DEBUG: torch's own checks around the group, and what it logs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import DebugLevel, set_debug_level
from torch.nn.parallel import DistributedDataParallel

from tests.process_group.fits.small import batch, loss_of, network
from tests.support.caught import Caught, caught
from tests.support.ranks import RankPool
from tests.support.worker import rank_of_call, regroup


def _regroup(level: str, world: int) -> None:
    # torch has read the variable when it was imported, long before this call.
    set_debug_level(getattr(DebugLevel, level))
    regroup(range(world), level)


def _everything(level: str, world: int) -> list[Any]:
    """A bit of everything; its results."""
    try:
        _regroup(level, world)
        rank = dist.get_rank()
        wrapped = type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__  # type: ignore[union-attr]
        total = torch.full((5,), 10.0**rank)
        dist.all_reduce(total)
        rows = torch.empty(world, 2)
        dist.all_gather_into_tensor(rows, torch.full((1, 2), float(rank)))
        part = torch.empty(2)
        dist.reduce_scatter_tensor(part, torch.arange(2.0 * world))
        exchanged = torch.empty(world)
        dist.all_to_all_single(exchanged, torch.arange(float(world)) + 10 * rank)
        came = torch.empty(1)
        work = dist.irecv(came, (rank - 1) % world)
        assert work is not None
        dist.send(torch.tensor([7.0 + rank]), (rank + 1) % world)
        work.wait()
        model = DistributedDataParallel(network())
        for step in range(2):
            loss_of(model, batch(step, rank)).backward()
        weight = next(model.parameters())
        assert weight.grad is not None
        dist.barrier()
        results = [wrapped, total, rows, part, exchanged, came, weight.grad]
        return [value.tolist() if isinstance(value, torch.Tensor) else value for value in results]
    finally:
        set_debug_level(DebugLevel.OFF)


@pytest.mark.parametrize("level", ["INFO", "DETAIL"])
def test_everything_goes_on_as_without(ours: RankPool, level: str) -> None:
    found = ours.run(3, _everything, level, 3, group=False)
    plain = ours.run(3, _everything, "OFF", 3, group=False)
    for checked, unchecked in zip(found, plain, strict=True):
        # torch wraps backends; the group in plain Python is a process group itself.
        if ours.implementation == "compiled":
            assert (checked[0] == "_ProcessGroupWrapper") == (level == "DETAIL")
        assert checked[1:] == unchecked[1:]


def _mismatch(kind: str) -> Caught:
    try:
        _regroup("DETAIL", 2)
        dist.all_reduce(torch.ones(4))
        odd = rank_of_call() == 1
        if kind == "shape":
            return caught(lambda: dist.all_reduce(torch.ones(5 if odd else 4)))
        return caught(dist.barrier if odd else lambda: dist.all_reduce(torch.ones(4)))
    finally:
        set_debug_level(DebugLevel.OFF)


@pytest.mark.parametrize("kind", ["shape", "operation"])
def test_a_mismatch_is_raised_on_all_ranks(compiled: RankPool, kind: str) -> None:
    for error in compiled.run(2, _mismatch, kind, group=False):
        assert "RuntimeError" in error.classes
        assert "mismatch" in error.message.lower()
