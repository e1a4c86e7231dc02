"""The fixed numbers of the demonstration: model, batch, schedule and message sizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """The shape of the character-level GPT.

    The defaults make 6.4 million parameters: 25 MB of fp32 gradients to exchange in every step.

    Args:
        width: Features per character (the residual stream).
        heads: Attention heads; divides `width`.
        layers: Transformer blocks.
        context: Characters the model sees at once.
    """

    width: int = 512
    heads: int = 8
    layers: int = 2
    context: int = 24


@dataclass(frozen=True)
class Settings:
    """What one training run does. The same for every backend that is compared.

    The batch is small on purpose: many parameters and few tokens make the gradient exchange a
    large part of the step, as it is wherever a model is trained over a slow link.

    Args:
        model: Shape of the model.
        batch: Windows of `model.context` characters per rank and step.
        steps: Optimizer steps.
        warm_up: Steps over which the learning rate rises to its peak.
        learning_rate: Peak learning rate of AdamW; a cosine takes it to a tenth at the end.
        weight_decay: Weight decay of AdamW.
        validate_every: Steps from one validation to the next.
        validation_windows: Windows of a validation, over all ranks together.
        first_probe: First step whose division is measured. The very first steps are not like the
            rest: DDP rebuilds its buckets, and memory is touched for the first time.
        probe_every: Steps from one such measurement to the next.
        turn: Steps that one backend does before the next one takes its turn.
        seed: Seed of the weights and of the order of the batches.
        threads: Threads torch computes with in each rank.
    """

    model: ModelShape = ModelShape()
    batch: int = 1
    steps: int = 800
    warm_up: int = 50
    learning_rate: float = 3e-4
    weight_decay: float = 0.01
    validate_every: int = 50
    validation_windows: int = 128
    first_probe: int = 4
    probe_every: int = 20
    turn: int = 25
    seed: int = 1
    threads: int = 1

    @property
    def probed_steps(self) -> range:
        """The steps, from 0, whose division is measured."""
        return range(self.first_probe, self.steps, self.probe_every)


@dataclass(frozen=True)
class TableSettings:
    """What the all-reduce table measures.

    Args:
        sizes: Message sizes in bytes, multiples of 4.
        pairs: Interleaved samples of all backends per size.
        sample_seconds: A sample repeats the call for about this long. It is long enough for the
            kernel to move ranks that it has woken on the same core apart.
    """

    sizes: tuple[int, ...] = (4, 1 << 10, 1 << 13, 1 << 16, 1 << 20, 25 << 20, 100 << 20)
    pairs: int = 15
    sample_seconds: float = 0.02
