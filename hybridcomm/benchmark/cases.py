"""What can be measured: collectives, sizes and dtypes, in the terms of nccl-tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Form(Enum):
    """Whether a call's result replaces its input."""

    OUT_OF_PLACE = "out of place"
    IN_PLACE = "in place"


class Measure(Enum):
    """What a collective's size counts."""

    WHOLE = "whole"  # what every rank has before and after
    PARTS = "parts"  # a part for each rank; together they make the size
    NOTHING = "nothing"


@dataclass(frozen=True)
class Collective:
    """What a collective's figures mean.

    Args:
        measure: What the size counts.
        reduces: Whether there is a reduction operation.
        forms: The forms in which torch.distributed offers it.
        bus_factor: Of a world size, how many times its size the busiest link must carry
            (nccl-tests, PERFORMANCE.md): busbw is algbw times that.
        messages: How many in turn make a call; the time is that of one.
    """

    measure: Measure
    reduces: bool
    forms: tuple[Form, ...]
    bus_factor: Callable[[int], float]
    messages: int = 1


def _all_but_own(world: int) -> float:
    return (world - 1) / world


_OUT = (Form.OUT_OF_PLACE,)
_IN = (Form.IN_PLACE,)
_BOTH = (Form.OUT_OF_PLACE, Form.IN_PLACE)

COLLECTIVES = {
    "all_reduce": Collective(Measure.WHOLE, True, _IN, lambda world: 2 * _all_but_own(world)),
    "broadcast": Collective(Measure.WHOLE, False, _IN, lambda world: 1.0),
    "reduce": Collective(Measure.WHOLE, True, _IN, lambda world: 1.0),
    "all_gather": Collective(Measure.PARTS, False, _BOTH, _all_but_own),
    "reduce_scatter": Collective(Measure.PARTS, True, _BOTH, _all_but_own),
    "all_to_all": Collective(Measure.PARTS, False, _OUT, _all_but_own),
    "gather": Collective(Measure.PARTS, False, _OUT, _all_but_own),
    "scatter": Collective(Measure.PARTS, False, _OUT, _all_but_own),
    # Each rank sends to the next while it receives from the one before: both directions at once.
    "send_recv": Collective(Measure.WHOLE, False, _OUT, lambda world: 1.0),
    # There and back between neighbours: one direction at a time.
    "ping_pong": Collective(Measure.WHOLE, False, _OUT, lambda world: 1.0, messages=2),
    "barrier": Collective(Measure.NOTHING, False, _OUT, lambda world: 0.0),
}

ITEM_SIZES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "uint8": 1,
}
REDUCTIONS = ("sum", "avg", "min", "max")


@dataclass(frozen=True)
class Case:
    """One line of a table: a collective of so many bytes.

    Args:
        collective: Its name, of `COLLECTIVES`.
        dtype: Name of the dtype, of `ITEM_SIZES`.
        reduction: Of `REDUCTIONS`; "" where nothing is reduced.
        elements: Elements that the size counts; a multiple of the world size where each rank has a
            part.
        world: Number of ranks.
        form: Whether in place.
    """

    collective: str
    dtype: str
    reduction: str
    elements: int
    world: int
    form: Form

    @property
    def traits(self) -> Collective:
        """What the collective's figures mean."""
        return COLLECTIVES[self.collective]

    @property
    def size(self) -> int:
        """Bytes, as nccl-tests counts them."""
        return self.elements * ITEM_SIZES[self.dtype]

    @property
    def count(self) -> int:
        """Elements of a rank's part; of the whole where there are no parts."""
        if self.traits.measure is Measure.PARTS:
            return self.elements // self.world
        return self.elements

    @property
    def input_elements(self) -> int:
        """Elements of the input of a rank that has one."""
        return self.count if self.collective in ("all_gather", "gather") else self.elements

    @property
    def output_elements(self) -> int:
        """Elements of the output of a rank that has one."""
        return self.count if self.collective in ("reduce_scatter", "scatter") else self.elements

    def algorithm_bandwidth(self, seconds: float) -> float:
        """Bytes of the size per second.

        Args:
            seconds: Time of a call.

        Returns:
            Gigabytes (10^9) per second: algbw.
        """
        return self.size / seconds / 1e9

    def bus_bandwidth(self, seconds: float) -> float:
        """What the busiest link carries if no byte crosses it twice.

        Args:
            seconds: Time of a call.

        Returns:
            Gigabytes (10^9) per second: busbw.
        """
        return self.algorithm_bandwidth(seconds) * self.traits.bus_factor(self.world)

    def __str__(self) -> str:
        if self.traits.measure is Measure.NOTHING:
            return self.collective
        reduction = f" {self.reduction}" if self.reduction else ""
        return f"{self.collective}{reduction} of {self.elements} {self.dtype}, {self.form.value}"


def make_case(
    collective: str, dtype: str, reduction: str, size: int, world: int, form: Form
) -> Case:
    """Makes a case of about a size.

    Args:
        collective: Its name.
        dtype: Name of the dtype.
        reduction: Name of the reduction; left out where nothing is reduced.
        size: Bytes wanted. Where each rank has a part it is rounded down to equal parts, but for
            one element each.
        world: Number of ranks.
        form: Whether in place.

    Returns:
        The case; its own `size` says what it became.
    """
    traits = COLLECTIVES[collective]
    unit = world if traits.measure is Measure.PARTS else 1
    elements = max(size // ITEM_SIZES[dtype] // unit, 1) * unit
    if traits.measure is Measure.NOTHING:
        elements, dtype = 0, "uint8"
    return Case(collective, dtype, reduction if traits.reduces else "", elements, world, form)
