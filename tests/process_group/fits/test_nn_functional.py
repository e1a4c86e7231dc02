"""torch.distributed.nn.functional: what backward gives is what autograd gives in one process.

Each collective is written a second time as plain torch, on the inputs of all ranks; its gradients
are the expected ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.nn import functional

from tests.support.ranks import RankPool

_ROOT = 1
_ROWS = 2  # of each rank's part


def _parts(tensor: Tensor) -> list[Tensor]:
    return [part.contiguous() for part in tensor.split(_ROWS)]


def _scatter(x: Tensor) -> Tensor:
    part: Tensor = functional.scatter(_parts(x), src=_ROOT)
    return part


def _gather(x: Tensor) -> Tensor:
    gathered = torch.cat(functional.gather(x, dst=_ROOT))
    return gathered if dist.get_rank() == _ROOT else 0 * gathered


def _reduce(x: Tensor) -> Tensor:
    reduced: Tensor = functional.reduce(x, dst=_ROOT)
    return reduced if dist.get_rank() == _ROOT else 0 * reduced


def _all_to_all(x: Tensor) -> Tensor:
    outputs = [torch.empty_like(part) for part in _parts(x)]
    return torch.cat(functional.all_to_all(outputs, _parts(x)))


def _reduce_scatter(x: Tensor) -> Tensor:
    part: Tensor = functional.reduce_scatter(torch.empty_like(_parts(x)[0]), _parts(x))
    return part


_OURS: dict[str, Callable[[Tensor], Tensor]] = {
    "all_reduce": functional.all_reduce,
    "broadcast": lambda x: functional.broadcast(x, src=_ROOT),
    "reduce": _reduce,
    "all_gather": lambda x: torch.cat(functional.all_gather(x)),
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": lambda x: functional.all_to_all_single(torch.empty_like(x), x),
    "gather": _gather,
    "scatter": _scatter,
}


def _exchanged(xs: Sequence[Tensor]) -> list[Tensor]:
    return [torch.cat([x.split(_ROWS)[rank] for x in xs]) for rank in range(len(xs))]


def _at_root(value: Tensor, world: int) -> list[Tensor]:
    return [value if rank == _ROOT else 0 * value for rank in range(world)]


# What each rank gets, of what all ranks give.
_PLAIN: dict[str, Callable[[Sequence[Tensor]], list[Tensor]]] = {
    "all_reduce": lambda xs: [sum(xs[1:], xs[0])] * len(xs),
    "broadcast": lambda xs: [xs[_ROOT]] * len(xs),
    "reduce": lambda xs: _at_root(sum(xs[1:], xs[0]), len(xs)),
    "all_gather": lambda xs: [torch.cat(list(xs))] * len(xs),
    "reduce_scatter": lambda xs: list(sum(xs[1:], xs[0]).split(_ROWS)),
    "all_to_all": _exchanged,
    "all_to_all_single": _exchanged,
    "gather": lambda xs: _at_root(torch.cat(list(xs)), len(xs)),
    "scatter": lambda xs: list(xs[_ROOT].split(_ROWS)),
}


def _input(rank: int, world: int) -> Tensor:
    """Whole numbers, so that every order of adding gives the same."""
    generator = torch.Generator().manual_seed(rank)
    values = torch.randperm(_ROWS * world * 3, generator=generator).reshape(-1, 3)
    return (values + 100.0 * ((rank + values) % world)).requires_grad_()


def _weight(output: Tensor, rank: int) -> Tensor:
    return torch.arange(float(output.numel())).reshape(output.shape) + 50 * (rank + 1)


def _both(name: str) -> list[list[Any]]:
    """Output and gradient of this rank, over the group and in plain torch."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = _input(rank, world)
    output = _OURS[name](mine)
    (output * _weight(output, rank)).sum().backward()

    inputs = [_input(of, world) for of in range(world)]
    plain = _PLAIN[name](inputs)
    total = torch.stack([(y * _weight(y, of)).sum() for of, y in enumerate(plain)]).sum()
    total.backward()
    gradients = [
        x.grad if x.grad is not None else torch.zeros_like(x) for x in (mine, inputs[rank])
    ]
    return [
        [output.tolist(), gradients[0].tolist()],
        [plain[rank].tolist(), gradients[1].tolist()],
    ]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", _OURS)
def test_outputs_and_gradients(pool: RankPool, name: str, world: int) -> None:
    for ours, plain in pool.run(world, _both, name):
        assert ours == plain
