"""The other ranks of a group: their connections, and which of them are gone."""

from __future__ import annotations

import selectors
from collections.abc import Callable

from .connection import Connection
from .engine import Engine
from .errors import Identity
from .frames import Frame, FrameError, Frames, Limits, number_of, numbered
from .rendezvous import Met

# How long a rank that leaves waits for others to take the last that it said.
_LINGER = 2.0
_LEFT = "ended or destroyed the group"


class Peers:
    """All connections of one group. On the engine's thread only.

    Args:
        identity: Who this is.
        limits: What peers may send.
        engine: Watches the connections.
        guarded: Does something in the name of the group, which an error in it ends.
        hear: Is given every frame with the rank that sent it, but for farewells.
        distrust: Is told of a rank that sends what it should not.
    """

    def __init__(
        self,
        identity: Identity,
        limits: Limits,
        engine: Engine,
        guarded: Callable[[Callable[[], None]], object],
        hear: Callable[[int, Frame], None],
        distrust: Callable[[int, str], None],
    ) -> None:
        self._identity = identity
        self._limits = limits
        self._engine = engine
        self._guarded = guarded
        self._hear = hear
        self._distrust = distrust
        self._connections: dict[int, Connection] = {}
        self._interest: dict[int, int] = {}
        self._leaving_until: float | None = None
        self._met: set[int] = set()
        self.completed: dict[int, int] = {}  # of ranks that said farewell, their collectives
        self.lost: dict[int, str] = {}  # how ranks went

    @property
    def missing(self) -> list[int]:
        """Ranks that were never connected, and have not left."""
        return [rank for rank in self._identity.peers if rank not in self._met]

    @property
    def flushed(self) -> bool:
        """Whether all that was sent has left this process."""
        return all(connection.flushed for connection in self._connections.values())

    def is_flushed(self, rank: int) -> bool:
        """Whether all that was sent to a rank has left this process, or it is gone."""
        return rank not in self._connections or self._connections[rank].flushed

    @property
    def connected(self) -> list[int]:
        """Ranks that can be spoken to now."""
        return sorted(self._connections)

    def has_met(self, rank: int) -> bool:
        """Whether a rank is, or was, connected, or has left."""
        return rank in self._met

    def add(self, met: Met) -> None:
        """Takes a new connection over."""
        connection = Connection(met.endpoint, self._limits, met.pidfd)
        rank = met.rank
        self._met.add(rank)
        self._connections[rank] = connection
        self._watch(rank)
        if met.pidfd is not None:
            self._engine.watch(met.pidfd, selectors.EVENT_READ, self._event(rank, self._died))

    def note_left(self, rank: int) -> None:
        """Notes that a rank has left before it was ever connected."""
        self._met.add(rank)
        self.completed[rank] = 0
        self.lost[rank] = _LEFT

    def send(self, rank: int, *parts: bytes | memoryview) -> None:
        """Sends parts of a frame. To a rank that is gone: nothing."""
        connection = self._connections.get(rank)
        if connection is not None:
            connection.send(*parts)
            self._watch(rank)

    def send_all(self, frame: bytes) -> None:
        """Sends a frame to all that are connected."""
        for rank in self.connected:
            self.send(rank, frame)

    def leave(self, completed: int, now: float) -> None:
        """Says farewell and waits for the others to take note, a little while."""
        self._leaving_until = now + _LINGER
        self.send_all(numbered(Frames.BYE, completed))
        for rank in self.connected:
            self._finish_leaving(rank)

    def left(self, now: float) -> bool:
        """Whether nothing is left to do after `leave`."""
        if self._leaving_until is not None and now >= self._leaving_until:
            for rank in self.connected:
                self._end(rank)
        return not self._connections

    @property
    def deadline(self) -> float | None:
        """When leaving must be over."""
        return self._leaving_until

    # ---- events ----------------------------------------------------------------------------------

    def _watch(self, rank: int) -> None:
        connection = self._connections[rank]
        events = selectors.EVENT_READ | (0 if connection.flushed else selectors.EVENT_WRITE)
        if self._interest.get(rank) != events:
            self._interest[rank] = events
            self._engine.watch(connection.socket.fileno(), events, self._event(rank, self._ready))

    def _event(
        self, rank: int, action: Callable[[int, Connection, int], None]
    ) -> Callable[[int], None]:
        """What the engine calls when a descriptor of a connection is ready."""

        def ready(events: int) -> None:
            # The connection may have ended since the engine looked.
            connection = self._connections.get(rank)
            if connection is not None:
                self._guarded(lambda: action(rank, connection, events))

        return ready

    def _ready(self, rank: int, connection: Connection, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            connection.flush()
        if events & selectors.EVENT_READ:
            self._listen(rank, connection)
        if rank in self._connections:
            self._watch(rank)
            self._finish_leaving(rank)

    def _listen(self, rank: int, connection: Connection) -> None:
        try:
            for frame in connection.receive():
                if frame.kind is Frames.BYE:
                    self.completed[rank] = number_of(frame.body)
                elif self._leaving_until is None:
                    self._hear(rank, frame)
        except FrameError as error:
            self._end(rank)
            self._distrust(rank, str(error))
            return
        if connection.ended:
            self._end(rank)

    def _died(self, rank: int, connection: Connection, events: int) -> None:
        """Its process is gone. What it said before counts."""
        while rank in self._connections:
            before = connection.received
            self._listen(rank, connection)
            if connection.received == before:
                self._end(rank)

    def _end(self, rank: int) -> None:
        connection = self._connections.pop(rank, None)
        if connection is None:
            return
        del self._interest[rank]
        self._engine.unwatch(connection.socket.fileno())
        if connection.pidfd is not None:
            self._engine.unwatch(connection.pidfd)
        connection.close()
        farewell = rank in self.completed
        self.lost[rank] = _LEFT if farewell else "died"

    def _finish_leaving(self, rank: int) -> None:
        connection = self._connections[rank]
        if self._leaving_until is not None and connection.flushed:
            connection.stop_sending()
