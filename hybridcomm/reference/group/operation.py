"""One call on one rank: what it asks for, and how it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hybridcomm.programs.layout import Collective

from ..numerics import RedOp
from .errors import Failure, Identity, Kind, size_text

ANY_SOURCE = -1


@dataclass(frozen=True)
class Collect:
    """One collective, as a program carries it out.

    Attributes:
        collective: Which.
        algorithm: Name of the program's algorithm.
        dtype: Type of the elements.
        count: Elements, as all ranks must agree on.
        inputs: What is read: contiguous tensors of one dimension, as many as `tables.py` says.
        outputs: What is written, likewise; in place, the same memory.
        redop: The reduction.
        root: The root rank, for a collective that has one.
        splits: Digest of the ranks' sizes where they differ, otherwise 0.
        sends: Bytes for each rank, where every pair of ranks has sizes of its own.
        expects: Bytes from each rank, likewise.
    """

    collective: Collective
    algorithm: str
    dtype: torch.dtype
    count: int
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    redop: RedOp = RedOp.SUM
    root: int | None = None
    splits: int = 0
    sends: Sequence[int] = ()
    expects: Sequence[int] = ()


@dataclass(eq=False)
class Operation:
    """A call under way.

    Attributes:
        name: torch's name of it, for errors.
        size_bytes: Size of its data on this rank.
        dtype: Type of its elements; None if it moves none.
        timeout: Seconds.
        epilogue: Runs when it has succeeded, before anybody is told so.
        on_done: Runs when it is done.
    """

    name: str
    size_bytes: int
    dtype: torch.dtype | None
    timeout: float
    epilogue: Callable[[], None] | None = None
    on_done: Callable[[], None] | None = None
    sequence: int = 0
    deadline: float = 0.0
    failure: Failure | None = None
    _done: threading.Event = field(default_factory=threading.Event)

    @property
    def done(self) -> bool:
        """Whether it succeeded or failed."""
        return self._done.is_set()

    def begin(self, sequence: int) -> None:
        """Takes its place among the group's operations."""
        self.sequence = sequence
        self.deadline = time.monotonic() + self.timeout

    def finish(self, failure: Failure | None = None) -> None:
        """Notes how it ended; a second end does not count."""
        if self.done:
            return
        if failure is None and self.epilogue is not None:
            self.epilogue()
        self.failure = failure
        self._done.set()
        on_done, self.epilogue, self.on_done = self.on_done, None, None
        if on_done is not None:
            on_done()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until it is done, or for so long. Returns whether it is."""
        return self._done.wait(seconds)

    def describe(self, identity: Identity) -> str:
        """What an error's sentence begins with."""
        number = f" #{self.sequence}" if self.sequence else ""
        group = f"group '{identity.group}', world size {identity.world}"
        within = ", ".join(filter(None, (self.contents(), group)))
        return f"{self.name}{number} ({within}) on {identity.name(identity.rank)}"

    def contents(self) -> str:
        """What it moves, in words; "" if nothing."""
        if self.dtype is None:
            return ""
        return f"{size_text(self.size_bytes)} of {str(self.dtype).removeprefix('torch.')}"

    def failed(self, identity: Identity, kind: Kind, peer: int | None, why: str) -> Failure:
        """Why it failed, as the exception will say it."""
        return Failure(
            kind,
            f"{self.describe(identity)}: {why}",
            peer,
            identity.group,
            identity.rank,
            self.name,
            self.sequence or None,
            self.size_bytes,
        )


@dataclass(eq=False)
class CollectiveOperation(Operation):
    """Collectives that are carried out one after the other, as one call.

    Attributes:
        phases: The collectives; each is asked for when the one before is done.
    """

    phases: Iterator[Collect] = field(default_factory=lambda: iter(()))


@dataclass(eq=False)
class MessageOperation(Operation):
    """A send or a receive.

    Attributes:
        sends: Whether it is a send.
        peer: The other rank; ANY_SOURCE for a receive from whoever comes first.
        tag: The tag.
        data: The elements: contiguous, of one dimension.
        source: Of a receive, the rank whose message it got.
        moved: Bytes that have gone or come.
        begun: Whether it is too late to withdraw it.
    """

    sends: bool = False
    peer: int = ANY_SOURCE
    tag: int = 0
    data: Tensor = field(default_factory=lambda: torch.empty(0))
    source: int = ANY_SOURCE
    moved: int = 0
    begun: bool = False

    def contents(self) -> str:
        """What it moves, and with which tag."""
        return f"{super().contents()}, tag {self.tag}"
