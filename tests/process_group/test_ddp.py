"""DistributedDataParallel trains over hybridcomm as it does over Gloo, and dies as it should."""

from __future__ import annotations

import contextlib
import signal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.support.caught import Caught, caught
from tests.support.ranks import RankPool
from tests.support.worker import report

_STEPS = 100


class Model(nn.Module):
    """A small network with two branches, of which a step may use one.

    Args:
        alternating: Use the branches in turn; otherwise always both.
    """

    def __init__(self, alternating: bool) -> None:
        super().__init__()
        self._alternating = alternating
        self._steps = 0
        self.first = nn.Linear(32, 64)
        self.branches = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64)])
        self.last = nn.Linear(64, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        """Computes the outputs.

        Args:
            inputs: Shape (batch, 32).

        Returns:
            Shape (batch, 4).
        """
        hidden = torch.relu(self.first(inputs))
        chosen = [self._steps % 2] if self._alternating else [0, 1]
        self._steps += 1
        for branch in chosen:
            hidden = hidden + torch.tanh(self.branches[branch](hidden))
        outputs: Tensor = self.last(hidden)
        return outputs


def _model(mode: str) -> DistributedDataParallel:
    torch.manual_seed(dist.get_rank())  # DDP itself must make the ranks' parameters the same
    return DistributedDataParallel(
        Model(alternating=mode == "unused parameters"),
        bucket_cap_mb=0.01,  # several buckets, so several all_reduces under way
        find_unused_parameters=mode == "unused parameters",
        static_graph=mode == "static graph",
    )


def _batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    inputs = torch.randn(8, 32, generator=generator)
    return inputs, inputs[:, :4].cos() + inputs[:, 4:8]


def _train(mode: str) -> list[float]:
    """Trains, and returns the mean loss over ranks of each step."""
    model = _model(mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(_STEPS):
        parts = 3 if mode == "accumulation" else 1
        total = torch.zeros(())
        for part in range(parts):
            inputs, targets = _batch(step * parts + part)
            last = part == parts - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = nn.functional.mse_loss(model(inputs), targets) / parts
                loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        losses.append(total.item() / dist.get_world_size())
    return losses


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("mode", ["plain", "unused parameters", "accumulation", "static graph"])
def test_the_losses_are_those_over_gloo(pool: RankPool, mode: str, world: int) -> None:
    ours = pool.run(world, _train, mode, timeout=100)
    theirs = pool.run(world, _train, mode, backend="gloo", timeout=100)
    assert all(losses == ours[0] for losses in ours)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-3)
    assert ours[0][-1] < 0.5 * ours[0][0]


def _train_for_ever() -> Caught:
    model = _model("plain")

    def train() -> None:
        step = 0
        while True:
            inputs, targets = _batch(step)
            nn.functional.mse_loss(model(inputs), targets).backward()
            step += 1
            if step == 3:
                report("training")

    return caught(train)


def test_a_rank_that_dies_in_training_is_named_through_ddp(ours: RankPool) -> None:
    call = ours.start(3, _train_for_ever)
    for _ in range(3):
        call.next_report()
    killed_at = call.kill(1)
    outcomes = call.outcomes(timeout=15)
    assert outcomes[1].status == -signal.SIGKILL
    for rank in (0, 2):
        error = outcomes[rank].value
        assert error is not None, outcomes[rank].failure
        if ours.implementation == "reference":
            # torch gives Python no way to fail a future of C++ with an error of its own class.
            assert "PeerLostError" in error.message
            assert "rank 1 died" in error.message
        else:
            assert "PeerLostError" in error.classes, error
            assert error.peer == 1
        assert error.raised_at - killed_at < 1.0
