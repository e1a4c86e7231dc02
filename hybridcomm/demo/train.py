"""What a rank runs to train the model: plain DistributedDataParallel over one backend or several.

Each backend trains a model of its own, from the same weights with the same batches, in a group of
its own over the same processes. They take turns, `turn` steps each, so that whatever else the
machine does falls on all of them alike.

How the step divides is measured, not modelled. Every `probe_every` steps a rank first runs forward
and backward of the step's batch under `no_sync()`, which leaves out the gradient exchange and
nothing else, throws the gradients away, and then does the step proper; a barrier comes before each
of the two. So there are pairs of times of the same work on the same weights, one right after the
other:

* compute: forward and backward without exchange;
* exchange: forward and backward with it, minus compute. This is the *exposed* part: what overlaps
  with the backward pass is free and not counted, and what the backend's threads take away from
  the computing cores is;
* optimizer: timed by itself.

Each is the median over the probes. A probe is not part of training: neither it nor a validation
counts in the training time or in tokens/s. The probe runs first and so warms the caches for the
step proper, which can only make the exchange look cheaper than it is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from . import corpus
from .model import CharacterGPT
from .ranks import Place
from .settings import Settings


@dataclass(frozen=True)
class TrainJob:
    """The same training over each of some backends.

    Args:
        backends: Names of the torch.distributed backends.
        settings: Model, batch and schedule.
        corpus_file: The file the text is read from.
    """

    backends: tuple[str, ...]
    settings: Settings
    corpus_file: Path


@dataclass(frozen=True)
class Step:
    """A step is done.

    Args:
        backend: Over which backend.
        step: Number of steps done.
        seconds: Training time so far.
        train_loss: Loss of rank 0's batch, in nats per character.
    """

    backend: str
    step: int
    seconds: float
    train_loss: float


@dataclass(frozen=True)
class Validation:
    """A validation is done.

    Args:
        backend: Over which backend.
        step: Number of steps done.
        seconds: Training time so far.
        loss: Mean loss over the validation windows, in nats per character.
    """

    backend: str
    step: int
    seconds: float
    loss: float


@dataclass(frozen=True)
class Division:
    """How the step divides, in seconds; medians over the probes.

    Args:
        backend: Over which backend.
        compute: Forward and backward without gradient exchange.
        exchange: What the gradient exchange adds to them.
        optimizer: The optimizer's step.
    """

    backend: str
    compute: float
    exchange: float
    optimizer: float

    @property
    def step(self) -> float:
        """The whole step, in seconds."""
        return self.compute + self.exchange + self.optimizer

    @property
    def exchange_share(self) -> float:
        """The exchange's part of the step, 0 to 1."""
        return self.exchange / self.step


TrainReport = Step | Validation | Division


def learning_rate(step: int, settings: Settings) -> float:
    """Learning rate of a step: a linear rise, then a cosine down to a tenth.

    Args:
        step: The step, from 0.
        settings: The schedule.

    Returns:
        The learning rate.
    """
    if step < settings.warm_up:
        return settings.learning_rate * (step + 1) / settings.warm_up
    progress = (step - settings.warm_up) / max(1, settings.steps - settings.warm_up)
    return settings.learning_rate * (0.55 + 0.45 * math.cos(math.pi * progress))


def train_windows(numbers: bytes, settings: Settings, rank: int) -> Callable[[int], Tensor]:
    """Draws a rank's batches: the same for every backend, different on every rank.

    Args:
        numbers: Character numbers of the training text.
        settings: Batch, context, steps and seed.
        rank: The rank.

    Returns:
        A function from a step to its windows [batch, context + 1], int64.
    """
    text = torch.frombuffer(bytearray(numbers), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(settings.seed * 65_537 + rank)
    last = len(text) - settings.model.context
    starts = torch.randint(last, (settings.steps, settings.batch), generator=generator)
    window = torch.arange(settings.model.context + 1)
    return lambda step: text[starts[step, :, None] + window].long()


def validation_windows(numbers: bytes, settings: Settings, place: Place) -> Tensor:
    """Takes a rank's part of the validation windows, which are spread evenly over the text.

    Args:
        numbers: Character numbers of the validation text.
        settings: Context and number of windows.
        place: Rank and world size.

    Returns:
        Windows [windows of this rank, context + 1], int64.
    """
    text = torch.frombuffer(bytearray(numbers), dtype=torch.uint8)
    count = max(1, settings.validation_windows // place.world_size) * place.world_size
    starts = torch.linspace(0, len(text) - settings.model.context - 1, count).long()
    mine = starts[place.rank :: place.world_size]
    return text[mine[:, None] + torch.arange(settings.model.context + 1)].long()


class _Data(NamedTuple):
    """What a rank trains on, by step, and its part of what it validates on."""

    train: Callable[[int], Tensor]
    validation: Tensor


class _Training:
    """One backend's training: the model, its optimizer, and the times so far."""

    def __init__(
        self,
        backend: str,
        settings: Settings,
        vocabulary: int,
        data: _Data,
        tell: Callable[[TrainReport], None],
    ) -> None:
        torch.manual_seed(settings.seed)
        self.backend = backend
        self.settings = settings
        self.data = data
        self.tell = tell
        self.group = dist.new_group(backend=backend)
        self.model = DistributedDataParallel(
            CharacterGPT(vocabulary, settings.model),
            process_group=self.group,
            gradient_as_bucket_view=True,
        )
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.seconds = 0.0
        self.probes: list[tuple[float, float, float]] = []

    def advance(self, steps: range) -> None:
        """Takes a turn of some steps."""
        dist.barrier(self.group)
        for step in steps:
            windows = self.data.train(step)
            probed = step in self.settings.probed_steps
            compute = self.probe(windows) if probed else 0.0
            loss, forward_backward = self.forward_backward(windows)
            update = self.update(step)
            self.seconds += forward_backward + update
            if probed:
                self.probes.append((compute, forward_backward - compute, update))
            self.tell(Step(self.backend, step + 1, self.seconds, loss))
            if (step + 1) % self.settings.validate_every == 0 or step + 1 == self.settings.steps:
                self.validate(step + 1)

    def forward_backward(self, windows: Tensor, exchange: bool = True) -> tuple[float, float]:
        """Returns the loss and the seconds it took; leaves the gradients."""
        start = perf_counter()
        with nullcontext() if exchange else self.model.no_sync():
            loss: Tensor = self.model(windows)
            loss.backward()
        return loss.item(), perf_counter() - start

    def update(self, step: int) -> float:
        """Applies the gradients and drops them; returns the seconds it took."""
        start = perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.settings)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return perf_counter() - start

    def probe(self, windows: Tensor) -> float:
        """Returns the seconds of forward and backward alone; the ranks start together."""
        dist.barrier(self.group)
        _, seconds = self.forward_backward(windows, exchange=False)
        self.optimizer.zero_grad()
        dist.barrier(self.group)
        return seconds

    def validate(self, step: int) -> None:
        """Reports the mean loss over all ranks' windows."""
        with torch.no_grad():
            loss: Tensor = self.model.module(self.data.validation)
        dist.all_reduce(loss, group=self.group)
        mean = loss.item() / dist.get_world_size()
        self.tell(Validation(self.backend, step, self.seconds, mean))

    def divide(self) -> None:
        """Reports how the step divides, if that was measured."""
        if self.probes:
            computes, exchanges, updates = map(statistics.median, zip(*self.probes, strict=True))
            self.tell(Division(self.backend, computes, exchanges, updates))


def train(place: Place, job: TrainJob, report: Callable[[TrainReport], None]) -> object:
    """Trains the model on one rank; rank 0 reports.

    Args:
        place: Rank, world size and meeting point.
        job: Backends, settings and text.
        report: Called with each step and each validation, and at the end with the divisions.

    Returns:
        What must be kept to the end of the process.
    """
    settings = job.settings
    text = corpus.load(job.corpus_file)
    data = _Data(
        train_windows(text.train, settings, place.rank),
        validation_windows(text.validation, settings, place),
    )
    place.join(job.backends[0], settings.threads)
    tell = report if place.rank == 0 else lambda _: None
    trainings = [
        _Training(backend, settings, len(text.alphabet), data, tell) for backend in job.backends
    ]
    for training in trainings:
        training.validate(0)
    for start in range(0, settings.steps, settings.turn):
        for training in trainings:
            training.advance(range(start, min(start + settings.turn, settings.steps)))
        trainings.reverse()
    for training in trainings:
        training.divide()
    dist.destroy_process_group()
    return trainings
