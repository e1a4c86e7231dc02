"""What comes with DistributedDataParallel trains over hybridcomm as it does over Gloo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.process_group.fits.small import RATE, batch, loss_of, network
from tests.support.ranks import RankPool

_STEPS = 8

Model = DistributedDataParallel
Optimizer = torch.optim.Optimizer


def _sgd(model: Model) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)


def _zero(model: Model) -> Optimizer:
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)


def _fp16(model: Model) -> Optimizer:
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return _sgd(model)


def _hook(model: Model) -> Optimizer:
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    return _sgd(model)


def _power_sgd(model: Model) -> Optimizer:
    # Every matrix, by one of a rank that leaves nothing out.
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=11, start_powerSGD_iter=2, min_compression_rate=1e-9
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return _sgd(model)


def _local_sgd(model: Model) -> Optimizer:
    pair = dist.new_subgroups(group_size=1)[0]  # steps alone, with an average in every third
    model.register_comm_hook(
        PostLocalSGDState(None, pair, start_localSGD_iter=2), post_localSGD_hook
    )
    averager = PeriodicModelAverager(period=3, warmup_steps=2)
    return PostLocalSGDOptimizer(optim=_sgd(model), averager=averager)


# What may be set up, with the arguments of DDP.
_MODES: dict[str, tuple[Callable[[Model], Optimizer], dict[str, Any]]] = {
    "gradients in buckets": (_sgd, {"gradient_as_bucket_view": True}),
    "buckets of one layer": (_sgd, {"bucket_cap_mb": 1e-5}),
    "unused parameters": (_sgd, {"find_unused_parameters": True}),
    "ZeRO": (_zero, {}),
    "fp16": (_fp16, {}),
    "a hook": (_hook, {"static_graph": True}),
    "local SGD": (_local_sgd, {}),
}


def _train(mode: str) -> list[float]:
    """Losses, then the sums of all parameters."""
    set_up, arguments = (_power_sgd, {}) if mode == "PowerSGD" else _MODES[mode]
    model = Model(network(), **arguments)
    optimizer = set_up(model)
    losses = []
    for step in range(_STEPS):
        loss = loss_of(model, batch(step, dist.get_rank()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses + [parameter.sum().item() for parameter in model.parameters()]


@pytest.mark.parametrize("mode", _MODES)
def test_two_ranks_train_as_over_gloo(pool: RankPool, mode: str) -> None:
    # The sum of two is the same in any order.
    assert pool.run(2, _train, mode) == pool.run(2, _train, mode, backend="gloo")


@pytest.mark.parametrize("mode", ["gradients in buckets", "ZeRO", "local SGD"])
def test_three_ranks_train_as_over_gloo(pool: RankPool, mode: str) -> None:
    ours = pool.run(3, _train, mode)
    theirs = pool.run(3, _train, mode, backend="gloo")
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("world", [2, 3])
def test_power_sgd_trains_as_all_reduce(ours: RankPool, world: int) -> None:
    # Over Gloo it ends the process now and then: a thread of the group joins itself.
    compressed = ours.run(world, _train, "PowerSGD")
    plain = ours.run(world, _train, "a hook")
    assert compressed != plain  # it did something else
    for values, expected in zip(compressed, plain, strict=True):
        assert values == pytest.approx(expected, rel=1e-5)


def _zero_in_the_hook(in_the_hook: bool) -> list[float]:
    """SGD that steps while the backward pass goes on, or after it; Gloo is refused the former."""
    model = Model(network(), bucket_cap_mb=1e-5, gradient_as_bucket_view=True)
    optimizer: Optimizer
    if in_the_hook:
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, lr=RATE, overlap_with_ddp=True
        )
        hook = hook_with_zero_step(default_hooks.allreduce_hook, model, optimizer)
        model.register_comm_hook(None, hook)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for step in range(_STEPS):
        loss = loss_of(model, batch(step, dist.get_rank()))
        loss.backward()
        # The hook learns in two steps which buckets there are, and leaves the parameters alone.
        if in_the_hook or step >= 2:
            optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("world", [2, 4])
def test_zero_steps_within_the_backward_pass(ours: RankPool, world: int) -> None:
    within = ours.run(world, _zero_in_the_hook, True)
    for losses, after in zip(within, ours.run(world, _zero_in_the_hook, False), strict=True):
        assert losses == pytest.approx(after, rel=1e-6)


def _uneven(zero: bool) -> list[float]:
    """Rank r has 3 + 2 r batches."""
    model = Model(network())
    optimizer = _zero(model) if zero else _sgd(model)
    losses = []
    joined: list[Any] = [model, optimizer] if zero else [model]
    with Join(joined):
        for step in range(3 + 2 * dist.get_rank()):
            loss = loss_of(model, batch(step, dist.get_rank()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses + [parameter.sum().item() for parameter in model.parameters()]


@pytest.mark.parametrize("zero", [False, True], ids=["SGD", "ZeRO"])
def test_uneven_inputs(pool: RankPool, zero: bool) -> None:
    ours = pool.run(2, _uneven, zero)
    assert [len(values) for values in ours] == [3 + 6, 5 + 6]
    assert ours[0][-6:] == ours[1][-6:]
    assert ours == pool.run(2, _uneven, zero, backend="gloo")


def _throws_early() -> str:
    model = Model(network())
    optimizer = _sgd(model)
    try:
        with model.join(throw_on_early_termination=True):
            for step in range(3 + 2 * dist.get_rank()):
                loss_of(model, batch(step, dist.get_rank())).backward()
                optimizer.step()
    except RuntimeError as error:
        return str(error)
    return ""


def test_uneven_inputs_that_shall_raise(pool: RankPool) -> None:
    for message in pool.run(2, _throws_early):
        assert "exhausted" in message
