"""How the ranks of a group meet: through the store, then over one connection for each pair.

Every rank leaves a card in the store that says where it listens. A rank connects to all ranks below
it. Both prove that they know the group's token, which rank 0 has left in the store, without sending
it (HMAC-SHA256, RFC 2104). Where the abstract Unix socket of a rank can be reached, it is on this
host; otherwise TCP is used, on the address of the interface that leads to the store's host. A
loopback address is told to nobody.

This has a thread of its own, since a store may make its callers wait; it ends when all ranks are
connected. Strangers cost it nothing but a socket for a few seconds.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from .errors import FailedError, Identity, Kind
from .frames import HEAD, Cause, Frames, numbered
from .presence import Presence, leave_presence

_HELLO = struct.Struct("<8sIIIIQ32s")
_MAGIC = b"hybrid\x00\x01"  # with the version of the protocol
_PATIENCE = 5.0  # seconds that a handshake may take
_MOST_STRANGERS = 64
_POLL = (0.002, 0.05)  # seconds between looks into the store, at first and at last


@dataclass(frozen=True)
class Shape:
    """What all ranks of a group must have alike.

    Attributes:
        channels: Number of channels.
        slots: Slots of a link.
        slot_bytes: Bytes of a slot.
    """

    channels: int
    slots: int
    slot_bytes: int

    def __str__(self) -> str:
        return f"channels {self.channels}, slots {self.slots}, slot_bytes {self.slot_bytes}"


@dataclass(frozen=True)
class Card:
    """Where a rank listens.

    Attributes:
        unix: Name of its abstract Unix socket; "" if it has none.
        address: IP address of its TCP socket; "" if it has none.
        port: Port of that.
    """

    unix: str
    address: str
    port: int

    def encode(self) -> str:
        """As it lies in the store."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: bytes) -> Card:
        """Reads what lies in the store.

        Raises:
            ValueError: It is no card.
        """
        fields = json.loads(text)
        if not isinstance(fields, dict) or set(fields) != {"unix", "address", "port"}:
            raise ValueError(f"no card: {text[:100]!r}")
        unix, address, port = fields["unix"], fields["address"], fields["port"]
        if not isinstance(unix, str) or not isinstance(address, str) or len(unix) > 100:
            raise ValueError(f"no card: {text[:100]!r}")
        if not isinstance(port, int) or not 0 <= port < 1 << 16:
            raise ValueError(f"no card: {text[:100]!r}")
        return cls(unix, address, port)


@dataclass(frozen=True)
class Met:
    """A rank that is connected.

    Attributes:
        rank: Which.
        endpoint: The connection.
        pidfd: Its process, if it is on this host and can be watched.
    """

    rank: int
    endpoint: socket.socket
    pidfd: int | None

    def turn_away(self, words: bytes) -> None:
        """Closes it after a last frame, which fits into a new connection's buffer."""
        with contextlib.suppress(OSError):
            self.endpoint.send(words, socket.MSG_NOSIGNAL)
        self.endpoint.close()
        if self.pidfd is not None:
            os.close(self.pidfd)


@dataclass(frozen=True)
class Making:
    """One making of a group; another under the same name and in the same store is another group.

    Attributes:
        store: The group's store.
        number: How many times the group has been made, alike on all ranks.
        token: The secret that its ranks share, if this rank has chosen it.
    """

    store: Store
    number: int
    token: bytes | None

    @property
    def token_key(self) -> str:
        """Where the token lies."""
        return f"token{self.number}"


def announce(store: Store, rank: int) -> Making:
    """Does what belongs to the making of a group.

    Every rank leaves word of its process, and rank 0 the secret that the ranks share.

    Args:
        store: The group's store.
        rank: This rank.

    Returns:
        What the ranks meet by.
    """
    number = leave_presence(store, rank)
    making = Making(store, number, secrets.token_hex(16).encode() if rank == 0 else None)
    if making.token is not None:
        store.set(making.token_key, making.token.decode())
    return making


def outward_address(store: Store) -> str:
    """The address under which other hosts reach this one.

    Args:
        store: The group's store.

    Returns:
        That of the interface on the way to the store's host, or else to the world; "" if there is
        none but loopback.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    targets = [store.host] if isinstance(store, TCPStore) else []
    for target in (*targets, "192.0.2.1", "2001:db8::1"):  # RFC 5737, RFC 3849: sent to by nobody
        with contextlib.suppress(OSError):
            family, kind, protocol, _, where = socket.getaddrinfo(
                target, 9, type=socket.SOCK_DGRAM
            )[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(where)
                address: str = probe.getsockname()[0]
                if not address.startswith("127.") and address != "::1":
                    return address
    return ""


class Rendezvous:
    """The meeting of one group, seen from one rank.

    Args:
        identity: Who this is.
        shape: What all must have alike.
        making: What they meet by.
        met: Is called for each rank that is connected.
        absent: Is called for each rank that has left the group before it met this one.
        failed: Is called if there will be no meeting: with this rank's reason, or with the cause
            that another rank has left in the store.
        unix: Whether to listen on an abstract Unix socket.
        address: Where to listen for TCP; None: the outward address.
    """

    def __init__(
        self,
        identity: Identity,
        shape: Shape,
        making: Making,
        met: Callable[[Met], None],
        absent: Callable[[int], None],
        failed: Callable[[FailedError | Cause], None],
        *,
        unix: bool = True,
        address: str | None = None,
    ) -> None:
        self._identity = identity
        self._shape = shape
        self._making = making
        self._store = making.store
        self._met = met
        self._absent = absent
        self._failed = failed
        self._unix = unix
        self._address = address
        self._missing = set(identity.peers)
        self._presences = [Presence(rank) for rank in range(identity.world)]
        self._leaving: set[int] = set()  # have left the group, but may have greeted before
        self._token = b""
        self._selector = selectors.DefaultSelector()
        self._listening: list[socket.socket] = []
        self._pending: dict[socket.socket, _Handshake] = {}
        self._stopping = threading.Event()
        self._cause: Cause | None = None
        self._told = False
        self._thread = threading.Thread(target=self._run, name="hybridcomm-meet", daemon=True)
        self._thread.start()

    def stop(self, cause: Cause | None, told: bool = False) -> None:
        """Ends it soon, and leaves in the store why the others need not come.

        Args:
            cause: Why the group has failed; None: this rank leaves it.
            told: Whether another rank has left the cause in the store.
        """
        if not self._stopping.is_set():
            self._cause, self._told = cause, told
            self._stopping.set()

    def join(self, seconds: float) -> None:
        """Waits for its end."""
        self._thread.join(seconds)

    # ---- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if not self._meet():
                self._say_why()
        except FailedError as error:
            self._cause = Cause(error.kind, error.peer, self._identity.rank, error.why)
            with contextlib.suppress(Exception):  # what went wrong first is what must be heard
                self._say_why()
            self._failed(error)
        except Exception as error:
            if not self._stopping.is_set():
                why = f"the ranks cannot meet in the store: {error}"
                self._failed(FailedError(Kind.SYSTEM, None, why))
        finally:
            for handshake in tuple(self._pending.values()):
                self._break_off(handshake)
            for endpoint in self._listening:
                endpoint.close()
            self._selector.close()

    def _say_why(self) -> None:
        """Leaves in the store why the others need not come; of causes, the first one stays."""
        if self._cause is None:
            self._store.set(self._key(f"left{self._identity.rank}"), "")
        elif not self._told:
            self._store.compare_set(self._key("failure"), "", self._cause.encode().hex())

    def _break_off(self, handshake: _Handshake) -> None:
        """Ends a handshake; a rank that has believed it already is told why."""
        if handshake.to is not None:
            words = numbered(Frames.BYE, 0) if self._cause is None else self._cause.encode()
            with contextlib.suppress(OSError):
                handshake.endpoint.send(words, socket.MSG_NOSIGNAL)
        handshake.endpoint.close()

    def _key(self, name: str) -> str:
        # Of this making of the group: other ones leave theirs in the same store.
        return f"{name}/{self._token.decode()}"

    def _meet(self) -> bool:
        """Connects to all, or hears why there is no need to; False if stopped before."""
        if not self._await_token():
            return True  # nobody can look for what this rank might say
        card = self._listen()
        self._store.set(self._key(f"card{self._identity.rank}"), card.encode())
        pause, longest = _POLL
        while self._missing and not self._stopping.is_set():
            began = time.monotonic()
            for key, events in self._selector.select(pause):
                key.data(events)
            for handshake in tuple(self._pending.values()):
                if began > handshake.deadline:
                    self._drop(handshake)
            if self._store.check([self._key("failure")]):
                self._cause = self._read_failure()
                self._failed(self._cause)
                return True
            self._reach_lower_ranks()
            self._look_after_missing()
            pause = min(pause * 1.3, longest)
        return not self._missing

    def _look_after_missing(self) -> None:
        for rank in sorted(self._missing):
            if rank in self._leaving:
                # What it had said before it left has been read meanwhile.
                self._missing.discard(rank)
                self._absent(rank)
            elif self._store.check([self._key(f"left{rank}")]):
                self._leaving.add(rank)
            elif self._presences[rank].died(self._store):
                raise FailedError(
                    Kind.PEER_LOST,
                    rank,
                    f"{self._identity.name(rank)} died before it joined the group",
                )

    def _read_failure(self) -> Cause:
        frame = bytes.fromhex(self._store.get(self._key("failure")).decode())
        return Cause.decode(bytearray(frame[HEAD.size :]), self._identity.world)

    def _await_token(self) -> bool:
        if self._making.token is not None:
            self._token = self._making.token
            return True
        pause, longest = _POLL
        while not self._store.check([self._making.token_key]):
            if self._stopping.wait(pause):
                return False
            pause = min(pause * 1.3, longest)
        self._token = self._store.get(self._making.token_key)
        return True

    def _listen(self) -> Card:
        unix, address, port = "", "", 0
        if self._identity.rank == self._identity.world - 1:
            return Card(unix, address, port)  # nobody connects to the last one
        if self._unix:
            unix = f"hybridcomm-{secrets.token_hex(12)}"
            self._open(socket.AF_UNIX, "\0" + unix)
        address = outward_address(self._store) if self._address is None else self._address
        if address:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with contextlib.suppress(OSError):  # the other ranks may not need it
                port = self._open(family, (address, 0)).getsockname()[1]
        return Card(unix, address if port else "", port)

    def _open(self, family: int, where: str | tuple[str, int]) -> socket.socket:
        endpoint = socket.socket(family, socket.SOCK_STREAM)
        self._listening.append(endpoint)
        endpoint.bind(where)
        endpoint.listen(256)
        endpoint.setblocking(False)
        self._selector.register(endpoint, selectors.EVENT_READ, lambda _: self._accept(endpoint))
        return endpoint

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            endpoint, _ = listener.accept()
            if len(self._pending) >= _MOST_STRANGERS:
                endpoint.close()
            else:
                self._begin(_Handshake(endpoint, None))

    def _reach_lower_ranks(self) -> None:
        busy = {handshake.to for handshake in self._pending.values()}
        for rank in sorted(self._missing - busy):
            key = self._key(f"card{rank}")
            if rank > self._identity.rank or not self._store.check([key]):
                continue
            endpoint = _connect(Card.decode(self._store.get(key)))
            if endpoint is not None:
                self._begin(_Handshake(endpoint, rank))

    # ---- handshakes ------------------------------------------------------------------------------

    def _begin(self, handshake: _Handshake) -> None:
        endpoint = handshake.endpoint
        endpoint.setblocking(False)
        self._pending[endpoint] = handshake
        self._selector.register(endpoint, selectors.EVENT_READ, lambda _: self._continue(handshake))
        if handshake.to is not None and not self._greet(handshake, handshake.to):
            self._drop(handshake)

    def _greet(self, handshake: _Handshake, to: int) -> bool:
        """Says who we are. What is so short fits into a new socket's buffer."""
        own, shape = self._identity.rank, self._shape
        hello = (_MAGIC, own, self._identity.world, shape.channels, shape.slots, shape.slot_bytes)
        proof = self._proof(own, to, _HELLO.pack(*hello, b""))
        try:
            return handshake.endpoint.send(_HELLO.pack(*hello, proof)) == _HELLO.size
        except OSError:
            return False

    def _proof(self, frm: int, to: int, hello: bytes) -> bytes:
        return hmac.digest(self._token, struct.pack("<II", frm, to) + hello, "sha256")

    def _continue(self, handshake: _Handshake) -> None:
        try:
            data = handshake.endpoint.recv(_HELLO.size - len(handshake.heard))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        handshake.heard += data
        if not data:
            self._drop(handshake)
        elif len(handshake.heard) == _HELLO.size:
            self._judge(handshake)

    def _judge(self, handshake: _Handshake) -> None:
        magic, rank, world, channels, slots, slot_bytes, proof = _HELLO.unpack(handshake.heard)
        unproven = bytes(handshake.heard[: -len(proof)]) + bytes(len(proof))
        right = hmac.compare_digest(proof, self._proof(rank, self._identity.rank, unproven))
        expected = rank == handshake.to if handshake.to is not None else rank > self._identity.rank
        # Whoever does not know the token is a stranger: no answer, no error, the job goes on.
        if magic != _MAGIC or not right or not expected or rank not in self._missing:
            self._drop(handshake)
            return
        if handshake.to is None:
            self._greet(handshake, rank)
        theirs = Shape(channels, slots, slot_bytes)
        if theirs != self._shape or world != self._identity.world:
            raise FailedError(
                Kind.MISMATCH,
                rank,
                f"{self._identity.name(self._identity.rank)} and {self._identity.name(rank)} were "
                f"set up differently: rank {self._identity.rank} has {self._shape}, world size "
                f"{self._identity.world}; rank {rank} has {theirs}, world size {world}. Give all "
                "ranks the same hybridcomm version, options and HYBRIDCOMM_ variables",
            )
        self._forget(handshake)
        self._missing.discard(rank)
        self._met(Met(rank, handshake.endpoint, _process(handshake.endpoint)))

    def _forget(self, handshake: _Handshake) -> None:
        self._pending.pop(handshake.endpoint, None)
        self._selector.unregister(handshake.endpoint)

    def _drop(self, handshake: _Handshake) -> None:
        if handshake.endpoint in self._pending:
            self._forget(handshake)
            handshake.endpoint.close()


class _Handshake:
    """A connection whose other end has not proved who it is.

    Args:
        endpoint: The connection.
        to: The rank that it was made to; None if the other end made it.
    """

    def __init__(self, endpoint: socket.socket, to: int | None) -> None:
        self.endpoint = endpoint
        self.to = to
        self.heard = bytearray()
        self.deadline = time.monotonic() + _PATIENCE


def _connect(card: Card) -> socket.socket | None:
    """Connects to a rank. None if that cannot be done, or not yet."""
    if card.unix:
        endpoint = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            endpoint.connect("\0" + card.unix)
            return endpoint
        except OSError:
            endpoint.close()
    if not card.address:
        return None
    family = socket.AF_INET6 if ":" in card.address else socket.AF_INET
    endpoint = socket.socket(family, socket.SOCK_STREAM)
    endpoint.settimeout(2.0)
    try:
        endpoint.connect((card.address, card.port))
        endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return endpoint
    except OSError:
        endpoint.close()
        return None


def _process(endpoint: socket.socket) -> int | None:
    """A descriptor of the process at the other end, by which its death is seen at once.

    A child that it has forked may hold its end of the connection open for longer.
    """
    if endpoint.family != socket.AF_UNIX:
        _keep_alive(endpoint)
        return None
    credentials = endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid = struct.unpack("3i", credentials)[0]
    try:
        return os.pidfd_open(pid) if pid > 0 else None
    except OSError:
        return None


def _keep_alive(endpoint: socket.socket) -> None:
    """Has the kernel look whether the other host is still there."""
    endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 1),
        (socket.TCP_KEEPINTVL, 1),
        (socket.TCP_KEEPCNT, 5),
    ):
        endpoint.setsockopt(socket.IPPROTO_TCP, option, value)
