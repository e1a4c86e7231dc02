"""The model: its size, its loss before training, and that it cannot look ahead."""

from __future__ import annotations

import math

import torch

from hybridcomm.demo.model import CharacterGPT, parameter_count
from hybridcomm.demo.settings import Settings


def test_the_default_model_has_the_size_the_documentation_says() -> None:
    """6.4 million parameters."""
    assert parameter_count(CharacterGPT(68, Settings().model)) == 6_375_936


def test_an_untrained_model_knows_nothing(tiny: Settings) -> None:
    """Its loss is that of guessing, and it has a gradient for every parameter."""
    torch.manual_seed(0)
    model = CharacterGPT(40, tiny.model)
    loss = model(torch.randint(40, (5, tiny.model.context + 1)))
    assert loss.shape == ()
    assert abs(loss.item() - math.log(40)) < 0.1
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_it_cannot_look_ahead(tiny: Settings) -> None:
    """A block's output at a place does not depend on later places, but does on earlier ones."""
    torch.manual_seed(0)
    block = CharacterGPT(40, tiny.model).blocks[0]
    x = torch.randn(1, tiny.model.context, tiny.model.width)
    changed = x.clone()
    changed[0, 4] *= -1
    difference = (block(changed) - block(x)).abs().amax(-1)[0]
    assert (difference[:4] == 0).all()
    assert (difference[4:] > 0).all()


def test_shorter_windows_are_taken(tiny: Settings) -> None:
    """Any length up to the context."""
    model = CharacterGPT(40, tiny.model)
    assert model(torch.randint(40, (1, 3))).isfinite()
