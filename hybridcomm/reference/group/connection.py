"""One connection to one peer: frames in and out, without ever waiting."""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from collections.abc import Iterator

from .frames import HEAD, Frame, Limits, read_head

_READ_BYTES = 1 << 16
# Turns of other connections come after this many bytes.
_TURN_BYTES = 4 << 20


class Connection:
    """A connected, authenticated socket.

    Args:
        endpoint: The socket, which this object then owns.
        limits: What the peer may send.
        pidfd: Descriptor of the peer's process, owned as well; None if it is not on this host.
    """

    def __init__(self, endpoint: socket.socket, limits: Limits, pidfd: int | None) -> None:
        endpoint.setblocking(False)
        self.socket = endpoint
        self.pidfd = pidfd
        self.ended = False  # nothing more will come
        self.received = 0  # bytes
        self._limits = limits
        self._outgoing: deque[memoryview] = deque()
        self._unread = bytearray()
        self._expected: tuple[Frame, int] | None = None  # a frame and how much of it is there

    @property
    def flushed(self) -> bool:
        """Whether all that was sent has left this process."""
        return not self._outgoing

    def send(self, *parts: bytes | memoryview) -> None:
        """Sends parts of a frame; what cannot leave at once is kept as it is, not copied."""
        self._outgoing.extend(memoryview(part) for part in parts if len(part))
        self.flush()

    def flush(self) -> None:
        """Lets leave what can."""
        while self._outgoing:
            try:
                few = [self._outgoing[i] for i in range(min(len(self._outgoing), 16))]
                sent = self.socket.sendmsg(few, [], socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                # The peer is gone; reading tells so too, and after what it had sent before.
                self._outgoing.clear()
                return
            while sent:
                first = self._outgoing.popleft()
                if len(first) > sent:
                    self._outgoing.appendleft(first[sent:])
                    break
                sent -= len(first)

    def receive(self) -> Iterator[Frame]:
        """Takes what has come; sets `ended` after the last of it.

        Yields:
            Complete frames.

        Raises:
            FrameError: The bytes are no frames.
        """
        budget = _TURN_BYTES
        while budget > 0 and not self.ended:
            try:
                if self._expected is not None:
                    frame, filled = self._expected
                    count = self.socket.recv_into(memoryview(frame.body)[filled:])
                    self._expected = (frame, filled + count)
                    if filled + count == len(frame.body):
                        self._expected = None
                        yield frame
                else:
                    data = self.socket.recv(_READ_BYTES)
                    count = len(data)
                    self._unread += data
                    yield from self._complete()
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # reset
                count = 0
            self.ended = count == 0
            self.received += count
            budget -= count

    def _complete(self) -> Iterator[Frame]:
        """The frames in what was read; a last one that is not whole is read to its end apart."""
        start = 0
        unread = self._unread
        while len(unread) - start >= HEAD.size:
            kind, flag, channel, length = read_head(unread[start : start + HEAD.size], self._limits)
            begin = start + HEAD.size
            if len(unread) - begin >= length:
                yield Frame(kind, flag, channel, unread[begin : begin + length])
                start = begin + length
                continue
            body = bytearray(length)
            filled = len(unread) - begin
            body[:filled] = unread[begin:]
            self._expected = (Frame(kind, flag, channel, body), filled)
            start = len(unread)
        del unread[:start]

    def stop_sending(self) -> None:
        """Tells the peer that nothing more will come."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Lets go of the socket and of the peer's process."""
        self.socket.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None
