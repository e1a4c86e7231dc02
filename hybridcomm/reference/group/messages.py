"""Sends and receives of one group. Its collectives and they do not wait for each other.

A short message goes at once and waits at the receiver; a long one is offered, and goes when its
receive asks for it, or when its receiver waits for something that may come after it. Matching is
MPI's: a receive takes the first message that its source sent with
its tag, and of two receives that a message fits it goes to the one posted first.

A time-out of a receive that no message has met, or of a send that was not asked for, withdraws that
message and harms nothing else. Everything else ends the group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .dtypes import CODES, name_of, name_of_code
from .errors import FailedError, Identity, Kind, size_text
from .frames import (
    PIECE_BYTES,
    Frame,
    FrameError,
    Frames,
    Offer,
    after_number,
    number_of,
    numbered,
    piece_head,
)
from .links import bytes_of
from .operation import ANY_SOURCE, MessageOperation
from .peers import Peers

_SHORT_BYTES = 1 << 16
# Tags or ranks that a sentence lists.
_MOST_LISTED = 8


class Trouble(FailedError):
    """A message failed, and the group with it.

    Args:
        kind: The class of the error.
        peer: The rank to blame.
        why: The reason.
        message: The message.
    """

    def __init__(self, kind: Kind, peer: int | None, why: str, message: MessageOperation) -> None:
        super().__init__(kind, peer, why)
        self.message = message


@dataclass(eq=False)
class _Arrival:
    """A message that is coming in.

    Attributes:
        offer: What its sender says of it.
        receive: The receive it goes to; None while none has asked.
        memory: Where its bytes go; None while they have not been asked for.
        filled: Bytes that are there.
        apart: Whether that memory is not the receive's own.
    """

    offer: Offer
    receive: MessageOperation | None
    memory: memoryview | None
    filled: int = 0
    apart: bool = False


class Messages:
    """All messages of one group. On the engine's thread only.

    Args:
        identity: Who this is.
        peers: The other ranks.
    """

    def __init__(self, identity: Identity, peers: Peers) -> None:
        self._identity = identity
        self._peers = peers
        self._numbers = 0
        self._unsent: list[MessageOperation] = []  # to ranks that are not connected yet
        self._offered: dict[tuple[int, int], MessageOperation] = {}
        self._leaving: list[MessageOperation] = []  # all of it is on its way
        self._receives: list[MessageOperation] = []  # that no message has met, as posted
        self._arrivals: dict[tuple[int, int], _Arrival] = {}  # in order of coming

    @property
    def pending(self) -> list[MessageOperation]:
        """All that is not done."""
        arriving = [arrival.receive for arrival in self._arrivals.values() if arrival.receive]
        return [
            *self._unsent,
            *self._offered.values(),
            *self._leaving,
            *self._receives,
            *arriving,
        ]

    def post(self, message: MessageOperation) -> None:
        """Begins a send or a receive."""
        if message.sends:
            self._unsent.append(message)
        else:
            self._receives.append(message)
            self._match(message)
            self._take_in_earlier()

    def forget(self) -> None:
        """Drops all messages, because the group has ended."""
        self._unsent.clear()
        self._offered.clear()
        self._leaving.clear()
        self._receives.clear()
        self._arrivals.clear()

    def advance(self, now: float) -> None:
        """Does what can be done without waiting.

        Raises:
            Trouble: A message failed.
        """
        for message in [m for m in self._unsent if self._peers.has_met(m.peer)]:
            if message.peer not in self._peers.lost:
                self._unsent.remove(message)
                self._start(message)
        for message in [m for m in self._leaving if self._peers.is_flushed(m.peer)]:
            self._leaving.remove(message)
            message.finish()
        self._look_for_losses()
        for message in [m for m in self.pending if now >= m.deadline]:
            self._give_up(message)

    # ---- sending ---------------------------------------------------------------------------------

    def _start(self, message: MessageOperation) -> None:
        self._numbers += 1
        number = self._numbers
        data = bytes_of(message.data)
        offer = Offer(number, message.tag, len(data), CODES[message.data.dtype])
        self._peers.send(message.peer, offer.encode())
        if len(data) > _SHORT_BYTES:
            self._offered[message.peer, number] = message
        else:
            if data:
                self._peers.send(message.peer, piece_head(number, len(data)), bytes(data))
            message.finish()

    def _hear_accept(self, rank: int, number: int) -> None:
        message = self._offered.pop((rank, number), None)
        if message is None:  # withdrawn meanwhile
            return
        message.begun = True
        data = bytes_of(message.data)
        for begin in range(0, len(data), PIECE_BYTES):
            piece = data[begin : begin + PIECE_BYTES]
            self._peers.send(rank, piece_head(number, len(piece)), piece)
        message.moved = len(data)
        self._leaving.append(message)

    # ---- receiving -------------------------------------------------------------------------------

    def hear(self, rank: int, frame: Frame) -> None:
        """Takes a frame.

        Raises:
            FrameError: It does not fit to what was said before.
            Trouble: A message failed.
        """
        if frame.kind is Frames.OFFER:
            self._hear_offer(rank, Offer.decode(frame.body))
        elif frame.kind is Frames.ACCEPT:
            self._hear_accept(rank, number_of(frame.body))
        elif frame.kind is Frames.PIECE:
            self._hear_piece(rank, number_of(frame.body), after_number(frame.body))
        elif frame.kind is Frames.WITHDRAW:
            arrival = self._arrivals.pop((rank, number_of(frame.body)), None)
            if arrival is not None and arrival.receive is not None:
                self._receives.append(arrival.receive)
                self._receives.sort(key=lambda receive: receive.sequence)
                self._match(arrival.receive)
                self._take_in_earlier()

    def _hear_offer(self, rank: int, offer: Offer) -> None:
        if (rank, offer.number) in self._arrivals:
            raise FrameError(f"message {offer.number} twice")
        arrival = _Arrival(offer, None, None)
        self._arrivals[rank, offer.number] = arrival
        receive = next((r for r in self._receives if _fits(r, rank, offer)), None)
        if receive is not None:
            self._give(rank, arrival, receive)
        elif offer.size <= _SHORT_BYTES:
            arrival.memory = memoryview(bytearray(offer.size))
            arrival.apart = True
        else:
            self._take_in_earlier()

    def _take_in_earlier(self) -> None:
        """Asks for messages that nobody wants yet, where a receive waits for one of their sender.

        That sender may be in a blocking send, and send what is waited for only after it.
        """
        for (rank, number), arrival in self._arrivals.items():
            if arrival.memory is not None:
                continue
            if any(receive.peer in (rank, ANY_SOURCE) for receive in self._receives):
                arrival.memory = memoryview(bytearray(arrival.offer.size))
                arrival.apart = True
                self._peers.send(rank, numbered(Frames.ACCEPT, number))

    def _hear_piece(self, rank: int, number: int, piece: memoryview) -> None:
        arrival = self._arrivals.get((rank, number))
        if arrival is None or arrival.memory is None:
            raise FrameError(f"a piece of message {number}, which was not asked for")
        end = arrival.filled + len(piece)
        if end > len(arrival.memory):
            raise FrameError(f"more of message {number} than was said")
        arrival.memory[arrival.filled : end] = piece
        arrival.filled = end
        if arrival.receive is not None:
            arrival.receive.moved = end
        self._complete(rank, arrival)

    def _match(self, receive: MessageOperation) -> None:
        """Gives a receive the first message that fits it, if one is there."""
        for (rank, _), arrival in self._arrivals.items():
            if arrival.receive is None and _fits(receive, rank, arrival.offer):
                self._give(rank, arrival, receive)
                return

    def _give(self, rank: int, arrival: _Arrival, receive: MessageOperation) -> None:
        offer = arrival.offer
        own = bytes_of(receive.data)
        if offer.dtype != CODES[receive.data.dtype] or offer.size != len(own):
            size = receive.data.dtype.itemsize
            raise Trouble(
                Kind.MISMATCH,
                rank,
                f"the ranks disagree: {self._identity.name(rank)} sent "
                f"{offer.size // _itemsize(offer.dtype)} {name_of_code(offer.dtype)} with tag "
                f"{offer.tag}, which {self._identity.name(self._identity.rank)} receives as "
                f"{len(own) // size} {name_of(receive.data.dtype)}: a send and its receive must "
                "have the same dtype and number of elements",
                receive,
            )
        self._receives.remove(receive)
        arrival.receive = receive
        receive.source = rank
        receive.begun = True
        if arrival.memory is None:
            arrival.memory = own
            if offer.size > _SHORT_BYTES:
                self._peers.send(rank, numbered(Frames.ACCEPT, offer.number))
        self._complete(rank, arrival)

    def _complete(self, rank: int, arrival: _Arrival) -> None:
        receive = arrival.receive
        if receive is None or arrival.filled < arrival.offer.size:
            return
        if arrival.apart and arrival.memory is not None:
            bytes_of(receive.data)[:] = arrival.memory
        del self._arrivals[rank, arrival.offer.number]
        receive.finish()

    # ---- trouble ---------------------------------------------------------------------------------

    def _look_for_losses(self) -> None:
        for message, rank in self._waits():
            how = self._peers.lost.get(rank)
            any_source = message.peer == ANY_SOURCE and not message.begun
            if how is None or (any_source and how != "died"):
                continue
            where = "in the middle of the message"
            if not message.begun:
                where = "before it received the message"
                if not message.sends:
                    where = "before it sent a message that fits"
            name = self._identity.name(rank)
            raise Trouble(Kind.PEER_LOST, rank, f"{name} {how} {where}", message)
        gone = len(self._peers.lost) == self._identity.world - 1
        for receive in self._receives:
            if gone and receive.peer == ANY_SOURCE:
                why = (
                    "every other rank ended or destroyed the group before one sent a message "
                    "that fits"
                )
                raise Trouble(Kind.PEER_LOST, None, why, receive)

    def _waits(self) -> Iterator[tuple[MessageOperation, int]]:
        """Pending messages, each with every rank that it may wait for."""
        for message in self.pending:
            if message.begun and not message.sends:
                yield message, message.source
            elif message.peer != ANY_SOURCE:
                yield message, message.peer
            else:
                yield from ((message, rank) for rank in self._identity.peers)

    def _give_up(self, message: MessageOperation) -> None:
        peer = message.source if message.begun and not message.sends else message.peer
        blamed = None if peer == ANY_SOURCE else peer
        why = (
            f"Timed out after {round(message.timeout * 1000)} ms waiting for "
            f"{self.waiting_for(message)}"
        )
        if message.begun:
            raise Trouble(Kind.TIMEOUT, blamed, why, message)
        if message.sends:
            for key in [key for key, offered in self._offered.items() if offered is message]:
                del self._offered[key]
                self._peers.send(key[0], numbered(Frames.WITHDRAW, key[1]))
            self._unsent = [other for other in self._unsent if other is not message]
        else:
            self._receives.remove(message)
        message.finish(message.failed(self._identity, Kind.TIMEOUT, blamed, why))

    def waiting_for(self, message: MessageOperation) -> str:
        """What a message waits for, in words."""
        name, peer = self._identity.name, message.peer
        part = f"{size_text(message.moved)} of {size_text(message.size_bytes)}"
        if message.sends and message.begun:
            return f"{name(peer)} to receive the rest of the message, of which {part} are sent"
        if message.sends:
            return f"{name(peer)} to receive it{self._presence_of(peer)}"
        if message.begun:
            source = name(message.source)
            return f"{source} to send the rest of the message, of which {part} have come"
        if peer != ANY_SOURCE:
            return f"{name(peer)} to send{self._what_came_from(peer)}"
        peers = self._identity.peers
        words = [f"{name(rank)}{self._what_came_from(rank)}" for rank in peers[:_MOST_LISTED]]
        more = ["..."] if len(peers) > _MOST_LISTED else []
        return "; ".join(["any rank to send", *words, *more])

    def _presence_of(self, rank: int) -> str:
        return "" if self._peers.has_met(rank) else ", which has not joined: it has called nothing"

    def _what_came_from(self, peer: int) -> str:
        if not self._peers.has_met(peer):
            return self._presence_of(peer)
        tags = [
            str(arrival.offer.tag)
            for (rank, _), arrival in self._arrivals.items()
            if rank == peer and arrival.receive is None
        ]
        if not tags:
            return ", which has sent nothing else"
        listed = tags[:_MOST_LISTED] + (["..."] if len(tags) > _MOST_LISTED else [])
        return f", which has sent messages with tags {', '.join(listed)}, but none with this one"


def _fits(receive: MessageOperation, rank: int, offer: Offer) -> bool:
    return receive.tag == offer.tag and receive.peer in (rank, ANY_SOURCE)


def _itemsize(code: int) -> int:
    return next((dtype.itemsize for dtype, own in CODES.items() if own == code), 1)
