"""The ends of links that lie on this rank: what has come in, and room for what may go out."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

import torch
from torch import Tensor

from hybridcomm.programs.network import LinkId

from .frames import Frame, FrameError, Frames, head

Send = Callable[..., None]  # rank, then parts of a frame


class LinkEnds:
    """Links of one group, over its connections. Their counts run on from operation to operation.

    Args:
        rank: This rank.
        slots: Slots of a link.
        send: Sends parts of a frame to a rank.
    """

    def __init__(self, rank: int, slots: int, send: Send) -> None:
        self._rank = rank
        self._slots = slots
        self._send = send
        self._arrived: dict[tuple[int, int], deque[bytearray | None]] = defaultdict(deque)
        self._under_way: dict[tuple[int, int], int] = defaultdict(int)
        self._finished: set[int] = set()
        self.dtype = torch.uint8  # of what slots hold now

    # ---- for lanes -------------------------------------------------------------------------------

    def empty(self, link: LinkId) -> bool:
        """Whether there is nothing to take."""
        frm, _, channel = link
        return not self._arrived[frm, channel]

    def full(self, link: LinkId) -> bool:
        """Whether there is no free slot."""
        _, to, channel = link
        return self._under_way[to, channel] >= self._slots and to not in self._finished

    def put(self, link: LinkId, payload: Tensor | None) -> None:
        """Fills a slot. The payload belongs to the link from now on."""
        _, to, channel = link
        if to in self._finished:
            return
        self._under_way[to, channel] += 1
        if payload is None:
            self._send(to, head(Frames.SLOT, 0, channel, flag=1))
        else:
            data = bytes_of(payload)
            self._send(to, head(Frames.SLOT, len(data), channel), data)

    def take(self, link: LinkId) -> Tensor | None:
        """Empties the oldest slot."""
        frm, _, channel = link
        body = self._arrived[frm, channel].popleft()
        self._send(frm, head(Frames.CREDIT, 0, channel))
        if body is None:
            return None
        if len(body) % self.dtype.itemsize:
            raise FrameError(f"{len(body)} bytes where elements of {self.dtype} were due")
        return torch.frombuffer(body, dtype=torch.uint8).view(self.dtype)

    # ---- for connections -------------------------------------------------------------------------

    def hear(self, rank: int, frame: Frame) -> None:
        """Takes a SLOT or a CREDIT.

        Raises:
            FrameError: There was no room for the slot, or no slot for the credit.
        """
        key = (rank, frame.channel)
        if frame.kind is Frames.CREDIT:
            if not self._under_way[key]:
                raise FrameError(f"a CREDIT too many on channel {frame.channel}")
            self._under_way[key] -= 1
        elif len(self._arrived[key]) >= self._slots:
            raise FrameError(f"a SLOT too many on channel {frame.channel}")
        else:
            self._arrived[key].append(None if frame.flag else frame.body)

    def finish(self, rank: int) -> None:
        """Notes that a rank has all it needs and takes no more."""
        self._finished.add(rank)


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return tensor.view(-1).view(torch.uint8).numpy().data
