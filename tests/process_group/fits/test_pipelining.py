"""Pipeline schedules over hybridcomm's messages compute what the whole model computes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from tests.support.ranks import RankPool

_WIDTH = 8
_MICROBATCHES = 4


def _layers(count: int) -> list[nn.Module]:
    torch.manual_seed(2)
    return [nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Tanh()) for _ in range(count)]


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, target)


def _schedule(name: str, layers: list[nn.Module]) -> tuple[Any, list[int]]:
    """A schedule over some layers, and which of them this rank has."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if name in ("GPipe", "1F1B"):
        mine = [rank]
    elif name == "interleaved 1F1B":
        mine = [rank, rank + world]
    else:  # down and up again, as the letter V
        mine = [rank, 2 * world - 1 - rank]
    device = torch.device("cpu")
    stages: list[Any] = [PipelineStage(layers[index], index, len(layers), device) for index in mine]
    if name == "GPipe":
        return ScheduleGPipe(stages[0], _MICROBATCHES, loss_fn=_loss), mine
    if name == "1F1B":
        return Schedule1F1B(stages[0], _MICROBATCHES, loss_fn=_loss), mine
    many = ScheduleInterleaved1F1B if name == "interleaved 1F1B" else ScheduleZBVZeroBubble
    return many(stages, _MICROBATCHES, loss_fn=_loss), mine


def _gradients(layers: list[nn.Module], indices: list[int]) -> list[Tensor]:
    found = []
    for index in indices:
        for parameter in layers[index].parameters():
            assert parameter.grad is not None
            found.append(parameter.grad)
    return found


def _run(name: str) -> tuple[float, bool, bool]:
    """Greatest difference of a gradient, whether outputs agree, whether the losses do."""
    rank, world = dist.get_rank(), dist.get_world_size()
    layers = _layers(world if name in ("GPipe", "1F1B") else 2 * world)
    whole = copy.deepcopy(layers)
    schedule, mine = _schedule(name, layers)
    inputs = torch.randn(_MICROBATCHES * 3, _WIDTH)
    target = inputs.flip(1)
    has_last = len(layers) - 1 in mine
    for _ in range(2):
        for layer in layers:
            layer.zero_grad()
        losses: list[Tensor] = []
        arguments = (inputs,) if rank == 0 else ()
        output = schedule.step(*arguments, target=target if has_last else None, losses=losses)
    expected = inputs
    for layer in whole:
        expected = layer(expected)
    parts = [
        _loss(a, b)
        for a, b in zip(expected.chunk(_MICROBATCHES), target.chunk(_MICROBATCHES), strict=True)
    ]
    torch.stack(parts).mean().backward()
    pairs = zip(_gradients(layers, mine), _gradients(whole, mine), strict=True)
    worst = max(float((a - b).abs().max()) for a, b in pairs)
    if not has_last:
        return worst, True, not losses
    same_losses = torch.allclose(torch.stack(losses), torch.stack(parts))
    return worst, torch.allclose(output, expected), same_losses


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", ["GPipe", "1F1B", "interleaved 1F1B", "zero bubble"])
def test_schedules(pool: RankPool, name: str, world: int) -> None:
    for worst, same_output, same_losses in pool.run(world, _run, name):
        assert worst < 1e-6
        assert same_output
        assert same_losses


def _exchange() -> list[list[float]]:
    """To and from every other rank at once, twice with one peer."""
    rank, world = dist.get_rank(), dist.get_world_size()
    others = [other for other in range(world) if other != rank]
    operations, received = [], []
    for other in others:
        for part in range(2):
            gives = torch.arange(4.0) + 100 * rank + 10 * other + part
            operations.append(dist.P2POp(dist.isend, gives, other, tag=part))
        for part in (1, 0):  # in another order than they are sent
            takes = torch.empty(4)
            received.append(takes)
            operations.append(dist.P2POp(dist.irecv, takes, other, tag=part))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return [takes.tolist() for takes in received]


def test_a_batch_of_messages(pool: RankPool) -> None:
    for rank, received in enumerate(pool.run(3, _exchange)):
        assert received == [
            [value + 100 * other + 10 * rank + part for value in range(4)]
            for other in range(3)
            if other != rank
            for part in (1, 0)
        ]
