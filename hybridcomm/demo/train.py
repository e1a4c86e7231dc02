"""What a rank runs to train the model: plain DistributedDataParallel over any backend.

How the step divides is measured, not modelled. Every `probe_every` steps a rank first runs forward
and backward of the step's batch under `no_sync()`, which leaves out the gradient exchange and
nothing else, throws the gradients away, and then does the step proper; a barrier comes before each
of the two. So there are pairs of times of the same work on the same weights, seconds apart at
most:

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
    """One training run.

    Args:
        backend: Name of the torch.distributed backend.
        settings: Model, batch and schedule.
        corpus_file: The file the text is read from.
    """

    backend: str
    settings: Settings
    corpus_file: Path


@dataclass(frozen=True)
class Step:
    """A step is done.

    Args:
        step: Number of steps done.
        seconds: Training time so far.
        train_loss: Loss of rank 0's batch, in nats per character.
    """

    step: int
    seconds: float
    train_loss: float


@dataclass(frozen=True)
class Validation:
    """A validation is done.

    Args:
        step: Number of steps done.
        seconds: Training time so far.
        loss: Mean loss over the validation windows, in nats per character.
    """

    step: int
    seconds: float
    loss: float


@dataclass(frozen=True)
class Division:
    """How the step divides, in seconds; medians over the probes.

    Args:
        compute: Forward and backward without gradient exchange.
        exchange: What the gradient exchange adds to them.
        optimizer: The optimizer's step.
    """

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


class _Trainer:
    """The model, its optimizer and the two things done with them."""

    def __init__(self, settings: Settings, vocabulary: int) -> None:
        torch.manual_seed(settings.seed)
        self.settings = settings
        self.model = DistributedDataParallel(
            CharacterGPT(vocabulary, settings.model), gradient_as_bucket_view=True
        )
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=True,
        )

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
        dist.barrier()
        _, seconds = self.forward_backward(windows, exchange=False)
        self.optimizer.zero_grad()
        dist.barrier()
        return seconds

    def validate(self, windows: Tensor) -> float:
        """Returns the mean loss over all ranks' windows."""
        with torch.no_grad():
            loss: Tensor = self.model.module(windows)
        dist.all_reduce(loss)
        return loss.item() / dist.get_world_size()


def train(place: Place, job: TrainJob, report: Callable[[TrainReport], None]) -> None:
    """Trains the model on one rank; rank 0 reports.

    Args:
        place: Rank, world size and meeting point.
        job: Backend, settings and text.
        report: Called with each step, each validation, and last with the division of the step.
    """
    settings = job.settings
    text = corpus.load(job.corpus_file)
    batch_of = train_windows(text.train, settings, place.rank)
    validation = validation_windows(text.validation, settings, place)
    place.join(job.backend, settings.threads)
    trainer = _Trainer(settings, len(text.alphabet))
    tell = report if place.rank == 0 else lambda _: None
    computes, exchanges, updates = [], [], []
    seconds = 0.0

    tell(Validation(0, seconds, trainer.validate(validation)))
    for step in range(settings.steps):
        windows = batch_of(step)
        probed = step in range(settings.first_probe, settings.steps, settings.probe_every)
        compute = trainer.probe(windows) if probed else 0.0
        loss, forward_backward = trainer.forward_backward(windows)
        update = trainer.update(step)
        seconds += forward_backward + update
        if probed:
            computes.append(compute)
            exchanges.append(forward_backward - compute)
            updates.append(update)
        tell(Step(step + 1, seconds, loss))
        if (step + 1) % settings.validate_every == 0 or step + 1 == settings.steps:
            tell(Validation(step + 1, seconds, trainer.validate(validation)))
    if computes:
        medians = map(statistics.median, (computes, exchanges, updates))
        tell(Division(*medians))
    dist.destroy_process_group()
