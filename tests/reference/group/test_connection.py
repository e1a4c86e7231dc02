"""Connections: frames arrive whole however the bytes were cut, and what is none ends them."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from hybridcomm.reference.group.connection import Connection
from hybridcomm.reference.group.frames import (
    Frame,
    FrameError,
    Frames,
    Limits,
    head,
    numbered,
)

LIMITS = Limits(channels=2, slot_bytes=1 << 20)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Connection]]:
    """A plain socket and the connection at its other end."""
    theirs, ours = socket.socketpair()
    connection = Connection(ours, LIMITS, None)
    yield theirs, connection
    theirs.close()
    connection.close()


def _all(connection: Connection) -> list[Frame]:
    return [*connection.receive()]


def _slot(body: bytes, channel: int = 0) -> bytes:
    return head(Frames.SLOT, len(body), channel) + body


def test_frames_cut_anywhere_arrive_whole(ends: tuple[socket.socket, Connection]) -> None:
    theirs, connection = ends
    bodies = [b"first", os.urandom(300), b"x"]
    stream = b"".join(_slot(body, channel % 2) for channel, body in enumerate(bodies))
    for cut in range(len(stream)):
        theirs.sendall(stream[:cut])
        frames = _all(connection)
        theirs.sendall(stream[cut:])
        frames += _all(connection)
        assert [bytes(frame.body) for frame in frames] == bodies, cut
        assert [frame.channel for frame in frames] == [0, 1, 0]


def test_a_frame_longer_than_a_read(ends: tuple[socket.socket, Connection]) -> None:
    theirs, connection = ends
    theirs.setblocking(False)
    body = os.urandom(700_001)
    left = memoryview(_slot(body) + numbered(Frames.BYE, 6))
    frames: list[Frame] = []
    while len(frames) < 2:
        if left:
            with contextlib.suppress(BlockingIOError):
                left = left[theirs.send(left) :]
        frames += _all(connection)
    assert bytes(frames[0].body) == body
    assert frames[1].kind is Frames.BYE


def test_what_a_peer_does_not_take_waits_and_arrives_in_order(
    ends: tuple[socket.socket, Connection],
) -> None:
    theirs, connection = ends
    sent = [os.urandom(200_000) for _ in range(10)]
    for body in sent:
        connection.send(head(Frames.SLOT, len(body)), body)
    assert not connection.flushed
    heard = bytearray()
    expected = b"".join(_slot(body) for body in sent)
    while len(heard) < len(expected):
        heard += theirs.recv(1 << 16)
        connection.flush()
    assert heard == expected
    assert connection.flushed


def test_bytes_that_are_no_frame_are_refused_after_what_was_right(
    ends: tuple[socket.socket, Connection],
) -> None:
    theirs, connection = ends
    theirs.sendall(_slot(b"right") + b"GET / HTTP/1.1\r\n")
    frames = connection.receive()
    assert bytes(next(frames).body) == b"right"
    with pytest.raises(FrameError, match="unknown kind 71"):
        next(frames)


def test_the_end_comes_after_what_was_sent_before(
    ends: tuple[socket.socket, Connection],
) -> None:
    theirs, connection = ends
    theirs.sendall(_slot(b"last words") + _slot(b"cut off")[:-2])
    theirs.close()
    assert [bytes(frame.body) for frame in _all(connection)] == [b"last words"]
    assert connection.ended
    connection.send(numbered(Frames.BYE, 1))  # to nobody; no error and no signal
    assert connection.flushed
