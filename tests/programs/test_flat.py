"""The flat form: the documented bytes, one form per program, and no trust in any bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcomm.programs import algorithms, build, collectives
from hybridcomm.programs.flat import FlatFormatError, decode, encode
from hybridcomm.programs.ir import IN, OUT, RankProgram, copy, recv, send
from hybridcomm.programs.layout import Collective
from tests.programs.editing import is_rooted

TWO_SHOT = encode(build("all_reduce", "two_shot", 2).rank_program(1))


def test_bytes() -> None:
    """Field by field, as documented: rank 1 of a two-shot of two ranks."""
    none = 0xFFFFFFFF
    header = struct.pack(
        "<4sHHHHIIIIIIIIIIIII",
        b"HCPR",
        1,
        64,
        1,  # all_reduce
        1,  # channels
        2,  # world
        1,  # rank
        2,  # n_in
        2,  # n_out
        0,  # n_tmp
        3,  # n_steps
        4,  # n_peers
        none,  # root
        1,  # deterministic
        64 + 8 + 3 * 32 + 4 * 4,
        2,  # min_slots
        0,
        0,
    )
    begins = struct.pack("<II", 0, 3)
    steps = [
        # op, finish, n_from, n_to, 0, src, dst, remote, from_at, to_at, 0
        (1, 0, 0, 1, 0, 0, none, none, 0, 0, 0),  # send to 0 src in[0]
        (7, 1, 1, 1, 0, 1, 3, none, 1, 2, 0),  # ... from 0 to 0 src in[1] dst out[1] finish
        (2, 0, 1, 0, 0, none, 2, none, 3, 4, 0),  # recv from 0 dst out[0]
    ]
    packed = b"".join(struct.pack("<BBHHHIIIIII", *step) for step in steps)
    assert header + begins + packed + struct.pack("<4I", 0, 0, 0, 0) == TWO_SHOT


def test_channel_table_is_padded() -> None:
    data = encode(build("barrier", "dissemination", 2, channels=2).rank_program(0))
    # channel_begin has 3 entries: 12 bytes and 4 of padding.
    assert data[64:80] == struct.pack("<IIII", 0, 2, 2, 0)
    assert data[80] == 10  # signal


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("collective", collectives())
def test_read_back(collective: str, world: int) -> None:
    for algorithm in algorithms(collective):
        for channels in (1, 2, 3):
            root = world - 1 if is_rooted(collective) else None
            program = build(collective, algorithm, world, channels=channels, root=root)
            for rank in range(world):
                part = program.rank_program(rank)
                data = encode(part)
                assert decode(data) == part
                assert encode(decode(data)) == data


@pytest.mark.parametrize(
    ("at", "form", "value", "message"),
    [
        (0, "4s", b"HCPX", "magic is b'HCPX'"),
        (4, "H", 2, "version is 2; it must be 1"),
        (6, "H", 32, "header bytes is 32"),
        (8, "H", 0, "collective is 0"),
        (8, "H", 5, "n_out is 2; it must be 1"),
        (8, "H", 10, "no programs are defined for send_recv"),
        (8, "H", 99, "collective is 99"),
        (10, "H", 0, "channels is 0"),
        (10, "H", 2, "n_in is 2; it must be 4"),
        (12, "I", 0, "world is 0"),
        (16, "I", 2, "rank: 2 is not a rank|names rank"),
        (20, "I", 3, "n_in is 3; it must be 2"),
        (24, "I", 3, "n_out is 3; it must be 2"),
        (32, "I", 4, "total bytes is 184; it must be 216"),
        (36, "I", 5, "total bytes is 184; it must be 188"),
        (40, "I", 0, "all_reduce has no root"),
        (44, "I", 3, "flags is 0x3"),
        (48, "I", 0, "total bytes is 0; it must be 184"),
        (52, "I", 0, "min_slots: 0 is too small"),
        (56, "I", 1, "reserved at 56 is 1"),
        (60, "I", 1, "reserved at 60 is 1"),
        (64, "I", 1, "channel_begin does not rise"),
        (68, "I", 2, "channel_begin does not rise"),
        (72, "B", 0, "step 0: op is 0"),
        (72, "B", 12, "step 0: op is 12"),
        (72, "B", 2, "step 0: .*recv has exactly one peer"),
        (73, "B", 1, "step 0: .*send reduces nothing to finish"),
        (73, "B", 2, "step 0: flags is 0x2"),
        (74, "H", 1, "step 0: its peers are at 0 and 0"),
        (76, "H", 0, "step 0: .*send has at least one peer in 'to', not 0"),
        (76, "H", 65535, "step 0: its peers end at 65535"),
        (78, "H", 1, "step 0: a reserved field is not zero"),
        (80, "I", 4, "step 0: chunk 4 does not exist; there are 4"),
        (80, "I", 0xFFFFFFFF, "step 0: .*send needs 'src'"),
        (84, "I", 0, "step 0: .*send has no 'dst'"),
        (92, "I", 1, "step 0: its peers are at 1 and 0"),
        (100, "I", 1, "step 0: a reserved field is not zero"),
        (168, "I", 1, "step 0: .*names rank 1 itself"),
        (168, "I", 2, "step 0: .*names rank 2; there are ranks 0 to 1"),
    ],
)
def test_says_what_is_wrong(at: int, form: str, value: int | bytes, message: str) -> None:
    data = bytearray(TWO_SHOT)
    struct.pack_into(f"<{form}", data, at, value)
    with pytest.raises(FlatFormatError, match=message):
        decode(bytes(data))


@pytest.mark.parametrize("length", [0, 1, 63, 64, 72, len(TWO_SHOT) - 1])
def test_cut_off(length: int) -> None:
    with pytest.raises(FlatFormatError, match=r"header|total bytes"):
        decode(TWO_SHOT[:length])


def test_more_behind_it() -> None:
    with pytest.raises(FlatFormatError, match="total bytes is 184; it must be 185"):
        decode(TWO_SHOT + b"\0")


SEEDS = [
    TWO_SHOT,
    encode(build("all_reduce", "two_shot_mapped", 3, channels=2).rank_program(2)),
    encode(build("broadcast", "binomial", 5, root=3, channels=2).rank_program(3)),
    encode(build("barrier", "dissemination", 4).rank_program(0)),
    encode(build("gather", "binomial", 6, root=1).rank_program(3)),
    encode(build("reduce_scatter", "recursive_halving", 5).rank_program(2)),
]


@settings(max_examples=1500, deadline=None)
@given(st.data())
def test_hostile_bytes(data: st.DataObject) -> None:
    """Whatever is done to the bytes: a clear error, or a program with exactly these bytes."""
    mutated = bytearray(data.draw(st.sampled_from(SEEDS)))
    for _ in range(data.draw(st.integers(1, 3))):
        match data.draw(st.sampled_from(["byte", "word", "cut", "insert"])):
            case "byte":
                if mutated:
                    at = data.draw(st.integers(0, len(mutated) - 1))
                    mutated[at] = data.draw(st.integers(0, 255))
            case "word":
                if len(mutated) >= 4:
                    at = 4 * data.draw(st.integers(0, len(mutated) // 4 - 1))
                    word = data.draw(
                        st.sampled_from([0, 1, 2, 3, 7, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
                    )
                    struct.pack_into("<I", mutated, at, word)
            case "cut":
                del mutated[data.draw(st.integers(0, len(mutated))) :]
            case _:
                mutated += data.draw(st.binary(max_size=40))
    try:
        program = decode(bytes(mutated))
    except FlatFormatError:
        return
    assert encode(program) == mutated


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    with pytest.raises(FlatFormatError):
        decode(data)


def test_encode_refuses_what_decode_would() -> None:
    part = RankProgram(
        collective=Collective.BROADCAST,
        world=2,
        root=0,
        rank=0,
        lanes=((send(0, IN[0]), copy(IN[0], OUT[0])),),
    )
    with pytest.raises(
        ValueError, match=r"step 0, `send to 0 src in\[0\]`: 'to' names rank 0 itself"
    ):
        encode(part)


def test_numbers_that_do_not_fit() -> None:
    def part(world: int, min_slots: int) -> RankProgram:
        return RankProgram(
            collective=Collective.BROADCAST,
            world=world,
            root=0,
            min_slots=min_slots,
            rank=1,
            lanes=((recv(0, OUT[0]),),),
        )

    assert decode(encode(part(2**32 - 1, 1))).world == 2**32 - 1
    for world, min_slots in ((2**32, 1), (2, 2**32)):
        with pytest.raises(ValueError, match="does not fit its field"):
            encode(part(world, min_slots))
