"""What a user may choose about a group, in code or in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hybridcomm.programs.registry import algorithms as algorithms_of


class _Range(NamedTuple):
    """The values a number may have; the limits are those of csrc/transports/shm."""

    variable: str
    least: int
    most: int
    unit: int = 1

    def check(self, value: object, source: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{source}: {value!r} is no integer")
        if not self.least <= value <= self.most or value % self.unit:
            multiple = f"a multiple of {self.unit} " if self.unit > 1 else ""
            raise ValueError(
                f"{source}: {value} is not {multiple}within {self.least} to {self.most}"
            )


_NUMBERS = {
    "channels": _Range("HYBRIDCOMM_CHANNELS", 1, 64),
    "slots": _Range("HYBRIDCOMM_SLOTS", 2, 16),
    "slot_bytes": _Range("HYBRIDCOMM_SLOT_BYTES", 64, 1 << 30, 64),
}
_ALGORITHM = "HYBRIDCOMM_ALGORITHM"


@dataclass(frozen=True)
class Options:
    """Options of one group, the same on all its ranks.

    Pass them as `pg_options` of `init_process_group` or `new_group`. What is left at its default is
    taken from the environment, and what is not set there is chosen by the backend.

    Args:
        algorithms: Algorithm to use for a collective, by name: `{"all_reduce": "ring"}`. From
            HYBRIDCOMM_ALGORITHM, written `all_reduce=ring,broadcast=binomial`.
        channels: Independent lanes of each pair of ranks, 1 to 64. From HYBRIDCOMM_CHANNELS.
        slots: Messages that may be under way in a lane, 2 to 16. From HYBRIDCOMM_SLOTS.
        slot_bytes: Size of a message in bytes, a multiple of 64 up to 2^30. From
            HYBRIDCOMM_SLOT_BYTES.

    Raises:
        ValueError: A value is not allowed. The message names it.
    """

    algorithms: Mapping[str, str] = field(default_factory=dict, hash=False)
    channels: int | None = None
    slots: int | None = None
    slot_bytes: int | None = None

    def __post_init__(self) -> None:
        _check_algorithms(self.algorithms, "algorithms")
        object.__setattr__(self, "algorithms", dict(self.algorithms))
        for name, allowed in _NUMBERS.items():
            value = getattr(self, name)
            if value is not None:
                allowed.check(value, name)

    def with_environment(self, environment: Mapping[str, str] = os.environ) -> Options:
        """Fills in from the environment what was left at its default.

        Args:
            environment: Where to look variables up.

        Returns:
            New options. An algorithm that was given in code wins over the environment's for the
            same collective.

        Raises:
            ValueError: A variable is malformed. The message names it.
        """
        numbers = {}
        for name, allowed in _NUMBERS.items():
            own = getattr(self, name)
            numbers[name] = _number_from(environment, allowed) if own is None else own
        return Options({**_algorithms_from(environment), **self.algorithms}, **numbers)


def _number_from(environment: Mapping[str, str], allowed: _Range) -> int | None:
    text = environment.get(allowed.variable, "").strip()
    if not text:
        return None
    value: object = int(text) if text.isdecimal() else text
    allowed.check(value, allowed.variable)
    return int(text)


def _algorithms_from(environment: Mapping[str, str]) -> dict[str, str]:
    algorithms: dict[str, str] = {}
    entries = (part.strip() for part in environment.get(_ALGORITHM, "").split(","))
    for entry in filter(None, entries):
        collective, equals, algorithm = (part.strip() for part in entry.partition("="))
        if not equals:
            raise ValueError(
                f"{_ALGORITHM}: {entry!r} is not COLLECTIVE=ALGORITHM, as in all_reduce=ring"
            )
        if collective in algorithms:
            raise ValueError(f"{_ALGORITHM}: {collective} is named twice")
        algorithms[collective] = algorithm
    _check_algorithms(algorithms, _ALGORITHM)
    return algorithms


def _check_algorithms(algorithms: Mapping[str, str], source: str) -> None:
    for collective, algorithm in algorithms.items():
        try:
            known = algorithms_of(collective, one_sided=False)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None
        if algorithm not in known:
            names = ", ".join(known) or "there are none yet"
            raise ValueError(f"{source}: {collective} has no {algorithm!r}; one of {names}")
