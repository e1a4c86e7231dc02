"""Ranks that meet, among strangers, liars and ranks that are set up differently."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from hybridcomm.reference.group.errors import FailedError, Identity, Kind
from hybridcomm.reference.group.frames import Cause
from hybridcomm.reference.group.rendezvous import (
    Card,
    Met,
    Rendezvous,
    Shape,
    announce,
    outward_address,
)

SHAPE = Shape(channels=1, slots=4, slot_bytes=1 << 16)


@dataclass
class _Rank:
    """One rank's meeting, in this process, and what came of it."""

    rank: int
    world: int
    store: Store
    shape: Shape = SHAPE
    unix: bool = True
    address: str | None = ""
    met: dict[int, Met] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    told: list[FailedError | Cause] = field(default_factory=list)
    changed: threading.Event = field(default_factory=threading.Event)

    def start(self) -> _Rank:
        self.making = announce(self.store, self.rank)
        self.meeting = Rendezvous(
            Identity("test", self.rank, self.world),
            self.shape,
            self.making,
            self._met,
            self.gone.add,
            self._failed,
            unix=self.unix,
            address=self.address,
        )
        return self

    def _met(self, met: Met) -> None:
        self.met[met.rank] = met
        self.changed.set()

    def _failed(self, told: FailedError | Cause) -> None:
        self.told.append(told)
        self.changed.set()

    def wait(self, peers: int) -> None:
        until = time.monotonic() + 10
        while len(self.met) < peers and not self.told and time.monotonic() < until:
            self.changed.wait(0.05)
            self.changed.clear()

    def close(self) -> None:
        self.meeting.stop(None)
        self.meeting.join(10)
        for met in self.met.values():
            met.endpoint.close()
            if met.pidfd is not None:
                os.close(met.pidfd)

    def listener(self) -> str:
        """Name of its abstract Unix socket, once it is in the store."""
        token = self.store.get(self.making.token_key).decode()
        card = Card.decode(self.store.get(f"card{self.rank}/{token}"))
        return "\0" + card.unix


@pytest.fixture
def started() -> Iterator[list[_Rank]]:
    """Ranks that a test starts; they are ended after it, and nothing may be left of them."""
    before = len(os.listdir("/proc/self/fd"))
    ranks: list[_Rank] = []
    yield ranks
    for rank in ranks:
        rank.close()
    assert len(os.listdir("/proc/self/fd")) == before


def _all_met(ranks: list[_Rank]) -> None:
    for rank in ranks:
        rank.wait(len(ranks) - 1)
        assert not rank.told, rank.told
        assert sorted(rank.met) == [r.rank for r in ranks if r is not rank]
    for rank in ranks:
        for peer in ranks:
            if peer.rank > rank.rank:
                word = f"{rank.rank} to {peer.rank}".encode()
                rank.met[peer.rank].endpoint.send(word)
                theirs = peer.met[rank.rank].endpoint
                theirs.settimeout(5)
                assert theirs.recv(100) == word


@pytest.mark.parametrize(("unix", "address"), [(True, ""), (False, "127.0.0.1"), (False, "::1")])
@pytest.mark.parametrize("world", [2, 3, 7])
def test_each_rank_meets_each(started: list[_Rank], world: int, unix: bool, address: str) -> None:
    store = HashStore()
    ranks = [_Rank(rank, world, store, unix=unix, address=address) for rank in range(world)]
    for rank in reversed(ranks):
        started.append(rank.start())
    _all_met(ranks)


def test_a_group_made_again_is_another_group(started: list[_Rank]) -> None:
    """Whatever the order: each making's ranks meet each other, and no other making's."""
    store = HashStore()
    makings = [[_Rank(rank, 3, store) for rank in range(3)] for _ in range(3)]
    # Ranks 1 and 2 come to the second and third before rank 0 has begun those.
    for rank in (makings[0][0], *(making[number] for number in (2, 1) for making in makings)):
        started.append(rank.start())
    for making in makings[1:]:
        started.append(making[0].start())
    for ranks in makings:
        _all_met(ranks)
    assert len({making[0].making.token for making in makings}) == 3


def test_a_process_that_replaces_a_dead_one_takes_its_place() -> None:
    store = HashStore()
    assert [announce(store, 1).number for _ in range(2)] == [1, 2]
    pid, _, place = store.get("presence1").decode().partition(" ")
    store.set("presence1", f"{pid} 1{place}")  # started at another time: that one is gone
    assert announce(store, 1).number == 2
    assert announce(store, 1).number == 3


def test_strangers_are_sent_away_and_the_ranks_meet(started: list[_Rank]) -> None:
    """Some say nothing, some say too little, some lie; none gets an answer."""
    store = HashStore()
    ranks = [_Rank(rank, 3, store) for rank in range(3)]
    started.append(ranks[0].start())
    strangers = []
    for greeting in (b"", b"GET / HTTP/1.1\r\n", b"hybrid\x00\x01" + bytes(60), os.urandom(68)):
        for _ in range(10):
            stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            stranger.connect(ranks[0].listener())
            stranger.send(greeting)
            strangers.append(stranger)
    started.extend([ranks[1].start(), ranks[2].start()])
    _all_met(ranks)
    for stranger in strangers:
        stranger.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        stranger.close()


def test_what_one_rank_said_is_of_no_use_to_another(started: list[_Rank]) -> None:
    """A stranger that repeats a rank's greeting to a third rank is not taken for it."""
    store = HashStore()
    ranks = [_Rank(rank, 3, store) for rank in range(3)]
    started.append(ranks[1].start())
    token = announce(store, 0).token
    assert token is not None
    # Rank 0 is a stranger that knows nothing but where rank 1 looks for it.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        name = f"hybridcomm-test-{os.getpid()}"
        listener.bind("\0" + name)
        listener.listen()
        listener.settimeout(10)
        store.set(f"card0/{token.decode()}", Card(name, "", 0).encode())
        victim, _ = listener.accept()
        victim.settimeout(10)
        greeting = victim.recv(1000)
        victim.send(greeting)  # its own words back
        assert victim.recv(1) == b""
        victim.close()
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stranger.connect(ranks[1].listener())
        stranger.settimeout(10)
        stranger.send(greeting)
        assert stranger.recv(1) == b""
        stranger.close()
    assert not ranks[1].met
    assert not ranks[1].told


def test_ranks_set_up_differently_are_told_both_set_ups(started: list[_Rank]) -> None:
    store = HashStore()
    ranks = [_Rank(0, 2, store), _Rank(1, 2, store, shape=Shape(1, 8, 1 << 16))]
    started.extend(rank.start() for rank in ranks)
    for rank in ranks:
        rank.wait(2)
    # Whoever was first tells the other through the store.
    sentences = [t.why if isinstance(t, FailedError) else t.text for r in ranks for t in r.told]
    kinds = {told.kind for rank in ranks for told in rank.told}
    assert kinds == {Kind.MISMATCH}
    assert sentences
    for sentence in sentences:
        assert "slots 4" in sentence
        assert "slots 8" in sentence


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"unix": 1, "address": "", "port": 0}', "\0"])
def test_a_card_that_is_none_is_an_error_and_no_crash(started: list[_Rank], text: str) -> None:
    store = HashStore()
    token = announce(store, 0).token
    assert token is not None
    rank = _Rank(1, 2, store)
    started.append(rank.start())
    store.set(f"card0/{token.decode()}", text)
    rank.wait(1)
    [told] = rank.told
    assert isinstance(told, FailedError)
    assert told.kind is Kind.SYSTEM
    assert "cannot meet in the store" in told.why


def test_nobody_is_told_a_loopback_address() -> None:
    store = TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    address = outward_address(PrefixStore("group", store))
    assert address == "" or not address.startswith("127.")
    assert address != "::1"
