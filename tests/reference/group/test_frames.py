"""Frames: what is written is read back, and whatever else comes is refused field by field."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcomm.programs.layout import Collective
from hybridcomm.reference.group.errors import Kind
from hybridcomm.reference.group.frames import (
    HEAD,
    PIECE_BYTES,
    Call,
    Cause,
    Frame,
    FrameError,
    Frames,
    Limits,
    Offer,
    after_number,
    head,
    number_of,
    numbered,
    piece_head,
    read_head,
)

LIMITS = Limits(channels=2, slot_bytes=1000)
WORLD = 5


def _read(data: bytes) -> Frame:
    kind, flag, channel, length = read_head(data[: HEAD.size], LIMITS)
    assert len(data) == HEAD.size + length
    return Frame(kind, flag, channel, bytearray(data[HEAD.size :]))


def test_a_call_is_read_back() -> None:
    call = Call(7, Collective.ALL_TO_ALL, 4, 2, 10**12, 3, "pairwise", 2**63 + 5, 11, 13)
    assert Call.decode(_read(call.encode()).body, WORLD) == call


def test_ranks_that_do_the_same_agree_although_they_send_unlike_amounts() -> None:
    call = Call(7, Collective.ALL_TO_ALL, 4, 2, 10, None, "pairwise", 5, 11, 13)
    assert call.agrees(Call(7, Collective.ALL_TO_ALL, 4, 2, 10, None, "pairwise", 5, 99, 98))
    assert not call.agrees(Call(7, Collective.ALL_TO_ALL, 4, 2, 10, None, "pairwise", 6, 11, 13))


@pytest.mark.parametrize("blamed", [None, 0, WORLD - 1])
def test_a_cause_is_read_back(blamed: int | None) -> None:
    cause = Cause(Kind.TIMEOUT, blamed, 2, "rank 1 did not come")
    assert Cause.decode(_read(cause.encode()).body, WORLD) == cause


def test_the_text_of_a_cause_is_cut_and_cannot_move_the_cursor() -> None:
    told = Cause(Kind.SYSTEM, None, 0, "\x1b[2J" + "x" * 10_000)
    heard = Cause.decode(_read(told.encode()).body, WORLD)
    assert len(heard.text) == 4096
    assert heard.text.startswith("?[2J")


def test_messages_are_read_back() -> None:
    offer = Offer(3, -(2**62), 2**40, 9)
    assert Offer.decode(_read(offer.encode()).body) == offer
    assert number_of(_read(numbered(Frames.ACCEPT, 2**63)).body) == 2**63
    piece = _read(piece_head(4, 3) + b"abc")
    assert number_of(piece.body) == 4
    assert bytes(after_number(piece.body)) == b"abc"


@pytest.mark.parametrize(
    ("kind", "flag", "channel", "length", "complaint"),
    [
        (0, 0, 0, 0, "unknown kind 0"),
        (10, 0, 0, 0, "unknown kind 10"),
        (Frames.CALL, 0, 0, 0, "a CALL of 0 bytes"),
        (Frames.CALL, 0, 0, 2**32 - 1, "a CALL of 4294967295 bytes"),
        (Frames.SLOT, 0, 0, LIMITS.slot_bytes + 1, "a SLOT of 1001 bytes"),
        (Frames.SLOT, 0, 2, 8, "a SLOT on channel 2"),
        (Frames.SLOT, 0, 0, 0, "a SLOT of 0 bytes with flag 0"),
        (Frames.SLOT, 1, 0, 8, "a SLOT of 8 bytes with flag 1"),
        (Frames.SLOT, 2, 0, 8, "a SLOT with flag 2"),
        (Frames.CREDIT, 1, 0, 0, "a CREDIT with flag 1"),
        (Frames.CREDIT, 0, 0, 1, "a CREDIT of 1 bytes"),
        (Frames.BYE, 0, 1, 8, "a BYE on channel 1"),
        (Frames.PIECE, 0, 0, PIECE_BYTES + 9, f"a PIECE of {PIECE_BYTES + 9} bytes"),
    ],
)
def test_a_head_that_is_none_is_refused(
    kind: int, flag: int, channel: int, length: int, complaint: str
) -> None:
    with pytest.raises(FrameError, match=complaint):
        read_head(HEAD.pack(kind, flag, channel, length), LIMITS)


@pytest.mark.parametrize("flag", [0, 1])
def test_the_heads_that_links_write_are_read(flag: int) -> None:
    length = 0 if flag else 8
    found = read_head(head(Frames.SLOT, length, channel=1, flag=flag), LIMITS)
    assert found == (Frames.SLOT, flag, 1, length)


def test_fields_out_of_range_are_refused() -> None:
    call = Call(1, Collective.BROADCAST, 4, 0, 10, WORLD, "direct")
    with pytest.raises(FrameError, match="a call with root 5"):
        Call.decode(_read(call.encode()).body, WORLD)
    for blamed, reporter in ((WORLD, 0), (0, WORLD)):
        cause = Cause(Kind.TIMEOUT, blamed, reporter, "")
        with pytest.raises(FrameError, match="a cause that names ranks"):
            Cause.decode(_read(cause.encode()).body, WORLD)


@settings(max_examples=2000, deadline=None)
@given(st.binary(min_size=HEAD.size, max_size=HEAD.size), st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(start: bytes, rest: bytes) -> None:
    """Nothing but FrameError comes out, and never a body longer than the kind's most."""
    try:
        kind, _, _, length = read_head(start, LIMITS)
    except FrameError:
        return
    least, most = LIMITS.body(kind)
    assert least <= length <= most
    body = bytearray((rest * (length // max(len(rest), 1) + 1))[:length].ljust(length, b"\xff"))
    with contextlib.suppress(FrameError):
        if kind is Frames.CALL:
            Call.decode(body, WORLD)
        elif kind is Frames.CAUSE:
            Cause.decode(body, WORLD)
        elif kind is Frames.OFFER:
            Offer.decode(body)
