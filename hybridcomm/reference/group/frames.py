"""What ranks say to each other: frames of a fixed head and a body, each field checked when read.

A frame is 8 bytes, little-endian (kind u8, flag u8, channel u16, length of the body u32), then the
body. Sizes are limited by kind before any memory is taken, so a stranger's bytes cost nothing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from hybridcomm.programs.layout import Collective

from .errors import Kind, printable

HEAD = struct.Struct("<BBHI")
_CALL = struct.Struct("<QQQQQIHBB32s")
_CAUSE = struct.Struct("<BiiQ")
_NUMBER = struct.Struct("<Q")
_OFFER = struct.Struct("<QqQB")

NO_ROOT = 0xFFFFFFFF
# Data of a message travels in pieces, so that other frames may go between.
PIECE_BYTES = 1 << 20
_MOST_TEXT = 4096


class FrameError(ValueError):
    """A peer's bytes are not what they should be."""


class Frames(IntEnum):
    """The kinds of frames."""

    CALL = 1  # what the sender is about to do
    SLOT = 2  # a slot of a link; the flag marks a signal, which has no body
    CREDIT = 3  # a slot of the link from the receiver of this frame was taken
    CAUSE = 4  # the group failed
    BYE = 5  # the sender leaves the group
    OFFER = 6  # there is a message
    ACCEPT = 7  # send it
    PIECE = 8  # a part of it
    WITHDRAW = 9  # there will be no (more of the) message


class Frame(NamedTuple):
    """One frame as it came.

    Attributes:
        kind: What it is.
        flag: 0 or 1.
        channel: Channel of a slot or credit, otherwise 0.
        body: The rest.
    """

    kind: Frames
    flag: int
    channel: int
    body: bytearray


@dataclass(frozen=True)
class Limits:
    """What a peer may say.

    Attributes:
        channels: Number of channels of the group.
        slot_bytes: Most bytes of a slot.
    """

    channels: int
    slot_bytes: int

    def body(self, kind: Frames) -> tuple[int, int]:
        """Least and most bytes of the body of a frame."""
        return {
            Frames.CALL: (_CALL.size, _CALL.size),
            Frames.SLOT: (0, self.slot_bytes),
            Frames.CREDIT: (0, 0),
            Frames.CAUSE: (_CAUSE.size, _CAUSE.size + _MOST_TEXT),
            Frames.BYE: (_NUMBER.size, _NUMBER.size),
            Frames.OFFER: (_OFFER.size, _OFFER.size),
            Frames.ACCEPT: (_NUMBER.size, _NUMBER.size),
            Frames.PIECE: (_NUMBER.size, _NUMBER.size + PIECE_BYTES),
            Frames.WITHDRAW: (_NUMBER.size, _NUMBER.size + _MOST_TEXT),
        }[kind]


def read_head(head: bytes | bytearray | memoryview, limits: Limits) -> tuple[Frames, int, int, int]:
    """Reads the first bytes of a frame.

    Args:
        head: `HEAD.size` bytes.
        limits: What the group allows.

    Returns:
        Kind, flag, channel and length of the body.

    Raises:
        FrameError: They are no head of a frame.
    """
    number, flag, channel, length = HEAD.unpack(head)
    try:
        kind = Frames(number)
    except ValueError:
        raise FrameError(f"a frame of unknown kind {number}") from None
    least, most = limits.body(kind)
    if not least <= length <= most:
        raise FrameError(f"a {kind.name} of {length} bytes")
    on_link = kind in (Frames.SLOT, Frames.CREDIT)
    if channel >= (limits.channels if on_link else 1):
        raise FrameError(f"a {kind.name} on channel {channel}")
    if flag > 1 or (flag and kind is not Frames.SLOT):
        raise FrameError(f"a {kind.name} with flag {flag}")
    if kind is Frames.SLOT and (length == 0) != (flag == 1):
        raise FrameError(f"a SLOT of {length} bytes with flag {flag}")
    return kind, flag, channel, length


def head(kind: Frames, length: int, channel: int = 0, flag: int = 0) -> bytes:
    """Writes the first bytes of a frame."""
    return HEAD.pack(kind, flag, channel, length)


def frame(kind: Frames, body: bytes = b"") -> bytes:
    """Writes a frame that is not on a link."""
    return head(kind, len(body)) + body


@dataclass(frozen=True)
class Call:
    """What a rank is about to do. Two ranks agree if these are equal, but for the last two.

    Attributes:
        sequence: Which collective this is in the group, from 1, counted alike on all ranks.
        collective: The collective.
        dtype: Code of the elements' type.
        redop: Code of the reduction.
        count: Elements.
        root: The root rank, or None.
        algorithm: Name of the algorithm, at most 31 bytes.
        splits: Digest of the ranks' sizes where they differ, otherwise 0.
        sends: Bytes that this rank will give to the one that it tells this.
        expects: Bytes that it wants from it.
    """

    sequence: int
    collective: Collective
    dtype: int
    redop: int
    count: int
    root: int | None
    algorithm: str
    splits: int = 0
    sends: int = 0
    expects: int = 0

    def agrees(self, other: Call) -> bool:
        """Whether both ranks do the same."""
        return replace(self, sends=0, expects=0) == replace(other, sends=0, expects=0)

    def encode(self) -> bytes:
        """The frame."""
        return frame(
            Frames.CALL,
            _CALL.pack(
                self.sequence,
                self.count,
                self.splits,
                self.sends,
                self.expects,
                NO_ROOT if self.root is None else self.root,
                self.collective,
                self.dtype,
                self.redop,
                self.algorithm.encode(),
            ),
        )

    @classmethod
    def decode(cls, body: bytearray, world: int) -> Call:
        """Reads the body of a frame.

        Raises:
            FrameError: A field is out of range.
        """
        (
            sequence,
            count,
            splits,
            sends,
            expects,
            root,
            collective,
            dtype,
            redop,
            name,
        ) = _CALL.unpack(body)
        try:
            known = Collective(collective)
        except ValueError:
            raise FrameError(f"a call of unknown collective {collective}") from None
        if root != NO_ROOT and root >= world:
            raise FrameError(f"a call with root {root}")
        text = bytes(name).split(b"\0", 1)[0].decode(errors="replace")
        return cls(
            sequence,
            known,
            dtype,
            redop,
            count,
            None if root == NO_ROOT else root,
            printable(text),
            splits,
            sends,
            expects,
        )


@dataclass(frozen=True)
class Cause:
    """Why a group failed, as the rank says that noticed.

    Attributes:
        kind: The class of the error.
        blamed: The rank to blame, or None.
        reporter: The rank that says so.
        text: The reason, without the description of an operation.
    """

    kind: Kind
    blamed: int | None
    reporter: int
    text: str

    def encode(self) -> bytes:
        """The frame."""
        blamed = -1 if self.blamed is None else self.blamed
        text = self.text.encode()[:_MOST_TEXT]
        return frame(Frames.CAUSE, _CAUSE.pack(self.kind, blamed, self.reporter, 0) + text)

    @classmethod
    def decode(cls, body: bytearray, world: int) -> Cause:
        """Reads the body of a frame.

        Raises:
            FrameError: A field is out of range.
        """
        number, blamed, reporter, _ = _CAUSE.unpack_from(body)
        try:
            kind = Kind(number)
        except ValueError:
            raise FrameError(f"a cause of unknown kind {number}") from None
        if not -1 <= blamed < world or not 0 <= reporter < world:
            raise FrameError(f"a cause that names ranks {blamed} and {reporter}")
        text = printable(bytes(body[_CAUSE.size :]).decode(errors="replace"))
        return cls(kind, None if blamed < 0 else blamed, reporter, text)


@dataclass(frozen=True)
class Offer:
    """A message that waits to be received.

    Attributes:
        number: Its number among those of its sender.
        tag: The tag.
        size: Bytes.
        dtype: Code of the elements' type.
    """

    number: int
    tag: int
    size: int
    dtype: int

    def encode(self) -> bytes:
        """The frame."""
        return frame(Frames.OFFER, _OFFER.pack(self.number, self.tag, self.size, self.dtype))

    @classmethod
    def decode(cls, body: bytearray) -> Offer:
        """Reads the body of a frame."""
        return cls(*_OFFER.unpack(body))


def numbered(kind: Frames, number: int, text: str = "") -> bytes:
    """A frame whose body is a number, for some kinds followed by a text."""
    return frame(kind, _NUMBER.pack(number) + text.encode()[:_MOST_TEXT])


def piece_head(number: int, length: int) -> bytes:
    """What goes before the bytes of a piece of a message."""
    return head(Frames.PIECE, _NUMBER.size + length) + _NUMBER.pack(number)


def number_of(body: bytearray) -> int:
    """The number in the body of a frame."""
    number: int = _NUMBER.unpack_from(body)[0]
    return number


def after_number(body: bytearray) -> memoryview:
    """What follows the number."""
    return memoryview(body)[_NUMBER.size :]
