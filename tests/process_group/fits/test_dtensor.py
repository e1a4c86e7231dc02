"""DTensor over meshes of hybridcomm groups computes what plain tensors compute."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tests.support.ranks import RankPool

_SHAPE = (7, 5)  # no world size here divides either


def _whole() -> Tensor:
    return torch.arange(35.0).reshape(_SHAPE) - 11


def _place(placement: Placement, mesh: DeviceMesh) -> DTensor:
    """A DTensor that stands for `_whole()`, in a placement."""
    if placement.is_partial():
        # Whole numbers that differ by rank and add up.
        rank, world = mesh.get_local_rank(), mesh.size()
        part = torch.full(_SHAPE, float(rank + 1)).tril(rank)
        others = sum(torch.full(_SHAPE, float(of + 1)).tril(of) for of in range(1, world))
        return DTensor.from_local(part if rank else _whole() - others, mesh, [placement])
    return distribute_tensor(_whole(), mesh, [placement])


_PLACEMENTS = {"shard 0": Shard(0), "shard 1": Shard(1), "replicate": Replicate(), "sum": Partial()}


def _redistribute() -> list[str]:
    """Which pairs of placements give something wrong."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rank = dist.get_rank()
    wrong = []
    for name, placement in _PLACEMENTS.items():
        for other, target in _PLACEMENTS.items():
            if target.is_partial():
                continue
            moved = _place(placement, mesh).redistribute(mesh, [target])
            local = moved.to_local()
            expected = _whole()
            if isinstance(target, Shard):
                chunks = expected.chunk(mesh.size(), target.dim)
                empty = expected.narrow(target.dim, 0, 0)
                expected = chunks[rank] if rank < len(chunks) else empty
            if not torch.equal(local, expected) or not torch.equal(moved.full_tensor(), _whole()):
                wrong.append(f"{name} to {other}")
    return wrong


@pytest.mark.parametrize("world", [2, 3, 4])
def test_redistributions(ours: RankPool, world: int) -> None:
    assert ours.run(world, _redistribute) == [[]] * world


def _operations() -> list[float]:
    """Greatest differences from plain tensors, with gradients."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(3)
    a, b = torch.randn(9, 5), torch.randn(5, 7)
    found = []
    for place_a, place_b in (
        (Shard(0), Replicate()),
        (Shard(1), Shard(0)),
        (Replicate(), Shard(1)),
    ):
        plain = [a.clone().requires_grad_(), b.clone().requires_grad_()]
        ours = [
            distribute_tensor(a, mesh, [place_a]).requires_grad_(),
            distribute_tensor(b, mesh, [place_b]).requires_grad_(),
        ]
        outputs = []
        for x, y in (plain, ours):
            output = torch.softmax(x @ y, 1).std() + (x.sum(0) @ y).mean()
            output.backward()
            outputs.append(output)
        pairs: list[tuple[Tensor | None, Tensor | None]] = [(outputs[1], outputs[0])]
        pairs += [(mine.grad, theirs.grad) for mine, theirs in zip(ours, plain, strict=True)]
        found += [float((_full(x) - _full(y)).abs().max()) for x, y in pairs]
    return found


@pytest.mark.parametrize("world", [2, 3])
def test_operations_and_their_gradients(ours: RankPool, world: int) -> None:
    for found in ours.run(world, _operations):
        assert max(found) < 1e-5


def _full(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class _Block(nn.Module):
    """What tensor parallelism is made for.

    Args:
        hidden: Number of hidden features.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.up = nn.Linear(6, hidden)
        self.down = nn.Linear(hidden, 6)

    def forward(self, inputs: Tensor) -> Tensor:
        """Computes the outputs.

        Args:
            inputs: Shape (batch, positions, 6).

        Returns:
            The same shape.
        """
        outputs: Tensor = self.down(torch.relu(self.up(self.norm(inputs))))
        return outputs


def _plan(sequence: bool) -> dict[str, Any]:
    if not sequence:
        return {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(),
        "": PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=False
        ),
    }


def _tensor_parallel(sequence: bool) -> list[float]:
    """Greatest differences from the plain block: output, then each parameter after two steps."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tensor",))
    torch.manual_seed(1)
    plain = _Block(hidden=12)
    parallel = parallelize_module(copy.deepcopy(plain), mesh, _plan(sequence))
    inputs = torch.randn(4, 6, 6)
    found = []
    for model in (plain, parallel):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            outputs = model(inputs)
            optimizer.zero_grad()
            outputs.square().mean().backward()
            optimizer.step()
        found.append([_full(outputs), *(_full(parameter) for parameter in model.parameters())])
    return [float((b - a).abs().max()) for a, b in zip(*found, strict=True)]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("sequence", [False, True], ids=["plain", "sequence parallel"])
def test_tensor_parallel(ours: RankPool, sequence: bool, world: int) -> None:
    for found in ours.run(world, _tensor_parallel, sequence):
        assert max(found) < 1e-5


def _mesh() -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    rank = dist.get_rank()
    row, column = mesh["data"], mesh["tensor"]
    both = distribute_tensor(_whole(), mesh, [Shard(0), Shard(1)])
    moved = both.redistribute(mesh, [Replicate(), Shard(0)])
    flat = mesh._flatten("all")
    sums = {}
    for name, of in (("data", row), ("tensor", column), ("all", flat)):
        value = torch.tensor([10.0**rank])
        dist.all_reduce(value, group=of.get_group())
        sums[name] = value.item()
    return {
        "coordinate": mesh.get_coordinate(),
        "backends": {dist.get_backend(of.get_group()) for of in (row, column, flat)},
        "sums": sums,
        "local": both.to_local().tolist(),
        "moved": moved.to_local().tolist(),
        "whole": torch.equal(both.full_tensor(), _whole()),
    }


def test_a_mesh_of_two_dimensions(ours: RankPool) -> None:
    for rank, found in enumerate(ours.run(4, _mesh)):
        data, tensor = divmod(rank, 2)
        assert list(found["coordinate"]) == [data, tensor]
        assert found["backends"] == {"hybridcomm"}
        assert found["sums"] == {
            "data": 10.0**tensor + 10.0 ** (2 + tensor),
            "tensor": 10.0 ** (2 * data) + 10.0 ** (2 * data + 1),
            "all": 1111.0,
        }
        assert found["local"] == _whole().chunk(2, 0)[data].chunk(2, 1)[tensor].tolist()
        assert found["moved"] == _whole().chunk(2, 0)[tensor].tolist()
        assert found["whole"]
