"""A small network, its data, and what training it in one process gives."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

RATE = 0.1


def network(hidden: int = 11) -> nn.Sequential:
    """Makes the network, the same on every rank.

    Args:
        hidden: Number of hidden features.

    Returns:
        Three layers, of sizes that few numbers of ranks divide.
    """
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, 7), nn.Tanh(), nn.Linear(7, 3)
    )


def batch(step: int, rank: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Makes the data of one rank in one step.

    Args:
        step: Number of the step.
        rank: The rank; another has other data.
        dtype: Of the data.

    Returns:
        Inputs of shape (8, 6) and targets of shape (8, 3).
    """
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(8, 6, generator=generator)
    return inputs.to(dtype), (inputs[:, :3].cos() + inputs[:, 3:]).to(dtype)


def loss_of(model: Callable[[Tensor], Tensor], data: tuple[Tensor, Tensor]) -> Tensor:
    """Computes the loss of one batch.

    Args:
        model: The network, in whatever wrapping.
        data: Inputs and targets.

    Returns:
        A scalar.
    """
    return nn.functional.mse_loss(model(data[0]), data[1])


def train_alone(
    world: int,
    steps: int,
    parts: int = 1,
    compute: torch.dtype = torch.float32,
    hidden: int = 11,
) -> tuple[list[list[float]], list[Tensor]]:
    """Trains in one process what `world` ranks train together.

    The gradient of each rank's data is computed apart; they are added in rank order and divided
    once, as hybridcomm does, so that the results may be compared bit for bit.

    Args:
        world: Number of ranks.
        steps: Number of steps.
        parts: Batches whose gradients are added up before a step.
        compute: Data type of the forward and backward pass; parameters are float32.
        hidden: As in `network`.

    Returns:
        Losses by step and rank, and the parameters at the end.
    """
    model = network(hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for step in range(steps):
        sums: list[Tensor] = []
        of_ranks = []
        for rank in range(world):
            mine = copy.deepcopy(model).to(compute)
            total = 0.0
            for part in range(parts):
                loss = loss_of(mine, batch(step * parts + part, rank, compute)) / parts
                loss.backward()
                total += loss.item()
            of_ranks.append(total)
            gradients = [_gradient(parameter).float() for parameter in mine.parameters()]
            sums = [a + b for a, b in zip(sums, gradients, strict=True)] if sums else gradients
        for parameter, gradient in zip(model.parameters(), sums, strict=True):
            parameter.grad = gradient / world
        optimizer.step()
        losses.append(of_ranks)
    return losses, [parameter.detach() for parameter in model.parameters()]


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
