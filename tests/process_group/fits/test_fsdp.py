"""FSDP trains over hybridcomm, bit for bit, what one process trains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.process_group.fits.small import RATE, batch, loss_of, network, train_alone
from tests.support.ranks import RankPool

_STEPS = 5


def _sharded(mesh: DeviceMesh | None = None, **how: Any) -> Any:
    """The network with each layer sharded."""
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **how)
    return fully_shard(model, mesh=mesh, **how)


def _sharded_modules(model: Any) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _train(
    model: Any,
    parts: int = 1,
    compute: torch.dtype = torch.float32,
    rate: float = RATE,
    rank: int | None = None,
) -> list[float]:
    """Trains on the data of a rank, by default this one; returns the loss of each step."""
    if rank is None:
        rank = dist.get_rank()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for step in range(_STEPS):
        total = 0.0
        for part in range(parts):
            if parts > 1:
                model.set_requires_gradient_sync(part == parts - 1)
            loss = loss_of(model, batch(step * parts + part, rank, compute)) / parts
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def _whole(model: Any) -> list[Tensor]:
    """The parameters, put together from all ranks."""
    return [parameter.full_tensor().detach() for parameter in model.parameters()]


def _fully_shard(mode: str) -> tuple[list[float], list[float], bool]:
    """This rank's losses, those of one process, and whether the parameters are equal."""
    rank, world = dist.get_rank(), dist.get_world_size()
    parts, compute, rate = 1, torch.float32, RATE
    if mode == "mixed precision":
        compute = torch.bfloat16
        policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
        model = _sharded(mp_policy=policy)
    else:
        model = _sharded(reshard_after_forward=mode != "parameters kept")
    if mode == "accumulation":
        parts = 3
    elif mode == "PREMUL_SUM":
        for module in _sharded_modules(model):
            module.set_gradient_divide_factor(2.0 * world)
        rate = 2 * RATE
    losses = _train(model, parts, compute, rate)
    alone, parameters = train_alone(world, _STEPS, parts, compute)
    same = all(torch.equal(a, b) for a, b in zip(_whole(model), parameters, strict=True))
    return losses, [of_ranks[rank] for of_ranks in alone], same


def test_the_comparison_would_tell_a_rank_left_out() -> None:
    (both, with_both), (one, with_one) = (train_alone(world, _STEPS) for world in (2, 1))
    assert both[0][0] == one[0][0]
    assert all(a[0] != b[0] for a, b in zip(both[1:], one[1:], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(with_both, with_one, strict=True))


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("mode", ["plain", "parameters kept", "accumulation", "mixed precision"])
def test_fsdp2_trains_what_one_process_trains(ours: RankPool, mode: str, world: int) -> None:
    for losses, alone, same_parameters in ours.run(world, _fully_shard, mode):
        assert losses == alone
        assert same_parameters


def test_fsdp2_with_a_factor_of_its_own_reduces_by_premul_sum(ours: RankPool) -> None:
    # Factors are powers of two here, so that nothing is rounded otherwise.
    for losses, alone, same_parameters in ours.run(4, _fully_shard, "PREMUL_SUM"):
        assert losses == alone
        assert same_parameters


def _hybrid() -> tuple[list[float], list[float]]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    losses = _train(_sharded(mesh))
    alone, _ = train_alone(4, _STEPS)
    return losses, [of_ranks[dist.get_rank()] for of_ranks in alone]


def test_fsdp2_shards_within_pairs_and_replicates_across(ours: RankPool) -> None:
    for losses, alone in ours.run(4, _hybrid):
        assert losses == pytest.approx(alone, rel=1e-5)


def _with_tensor_parallel() -> tuple[list[float], list[float]]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model: Any = parallelize_module(network(hidden=12), mesh["tensor"], plan)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh["data"])
    rank = mesh.get_local_rank("data")
    losses = _train(model, rank=rank)
    alone, _ = train_alone(2, _STEPS, hidden=12)
    return losses, [of_ranks[rank] for of_ranks in alone]


def test_fsdp2_of_a_network_split_by_tensor_parallelism(ours: RankPool) -> None:
    for losses, alone in ours.run(4, _with_tensor_parallel):
        assert losses == pytest.approx(alone, rel=1e-5)


def _sums_only() -> list[float]:
    model = _sharded()
    for module in _sharded_modules(model):
        module.set_force_sum_reduction_for_comms(True)  # Gloo has no AVG
    return _train(model)


def test_fsdp2_gives_the_losses_of_gloo(pool: RankPool) -> None:
    assert pool.run(2, _sums_only) == pool.run(2, _sums_only, backend="gloo")


def _fsdp1(strategy: str) -> tuple[list[float], list[float]]:
    model = FullyShardedDataParallel(
        network(),
        sharding_strategy=ShardingStrategy[strategy],
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    losses = _train(model)
    alone, _ = train_alone(dist.get_world_size(), _STEPS)
    return losses, [of_ranks[dist.get_rank()] for of_ranks in alone]


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
def test_fsdp1(pool: RankPool, strategy: str) -> None:
    for losses, alone in pool.run(2, _fsdp1, strategy):
        assert losses == pytest.approx(alone, rel=1e-5)
