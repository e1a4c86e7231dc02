"""The flat binary form of one rank's program: what the C++ and CUDA executors load.

Little-endian, version 1. Offsets in bytes. ``docs/program-format.md`` says the same with an
example.

Header, 64 bytes::

     0  u8[4]  magic "HCPR"          28  u32  n_tmp
     4  u16    version, 1            32  u32  n_steps
     6  u16    header bytes, 64      36  u32  n_peers
     8  u16    collective            40  u32  root, 0xFFFFFFFF if none
    10  u16    channels C, >= 1      44  u32  flags: bit 0 deterministic
    12  u32    world N, >= 1         48  u32  total bytes
    16  u32    rank                  52  u32  min_slots, >= 1
    20  u32    n_in                  56  u32  0
    24  u32    n_out                 60  u32  0

Then ``u32 channel_begin[C + 1]``: channel c has the steps from ``channel_begin[c]`` up to
``channel_begin[c + 1]``; zero bytes up to a multiple of 8. Then ``n_steps`` steps of 32 bytes::

     0  u8     op, 1 to 11           12  u32  dst
     1  u8     flags: bit 0 finish   16  u32  remote
     2  u16    n_from                20  u32  from_at
     4  u16    n_to                  24  u32  to_at
     6  u16    0                     28  u32  0
     8  u32    src

``src``, ``dst`` and ``remote`` are chunk indices (``in``, then ``out``, then ``tmp``), 0xFFFFFFFF
if none. Then the peer pool, ``n_peers`` u32: a step's ``from`` peers are the ``n_from`` ranks at
``from_at``, its ``to`` peers the ``n_to`` ranks at ``to_at``. The pool is filled in step order,
from-peers before to-peers, without gaps, and every field that is not in use has the one value
said here: a program has exactly one flat form.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise

from .ir import Lane, Op, RankProgram, Step
from .layout import Chunk, Collective, Layout, Space
from .structure import step_complaint

MAGIC = b"HCPR"
VERSION = 1
NONE = 0xFFFFFFFF
DETERMINISTIC = 1  # header flag
FINISH = 1  # step flag

_HEADER = struct.Struct("<4s4H13I")
_STEP = struct.Struct("<BB3H6I")
_HEADER_FIELDS = (
    "magic",
    "version",
    "header bytes",
    "collective",
    "channels",
    "world",
    "rank",
    "n_in",
    "n_out",
    "n_tmp",
    "n_steps",
    "n_peers",
    "root",
    "flags",
    "total bytes",
    "min_slots",
    "reserved at 56",
    "reserved at 60",
)


class FlatFormatError(ValueError):
    """Bytes that are not a flat program; the message names the field and what would be right."""


def encode(part: RankProgram) -> bytes:
    """Write one rank's program in the flat form.

    Args:
        part: The program; every step well formed.

    Returns:
        Its flat form.

    Raises:
        ValueError: A step is not well formed, or a number does not fit its field.
    """
    spaces = _space_begins(part.layout)
    begins = [0]
    steps: list[bytes] = []
    pool: list[int] = []
    for lane in part.lanes:
        for step in lane:
            complaint = step_complaint(step, part.rank, part.layout, part.n_tmp)
            if complaint:
                raise ValueError(f"step {len(steps)}, `{step}`: {complaint.sentence}")
            from_at = len(pool)
            pool += step.frm
            to_at = len(pool)
            pool += step.to
            steps.append(
                _pack(
                    _STEP,
                    step.op,
                    FINISH if step.finish else 0,
                    len(step.frm),
                    len(step.to),
                    0,
                    _chunk_number(step.src, spaces),
                    _chunk_number(step.dst, spaces),
                    _chunk_number(step.remote, spaces),
                    from_at,
                    to_at,
                    0,
                )
            )
        begins.append(len(steps))
    steps_at = _steps_at(part.channels)
    header = _pack(
        _HEADER,
        MAGIC,
        VERSION,
        _HEADER.size,
        part.collective,
        part.channels,
        part.world,
        part.rank,
        part.n_in,
        part.n_out,
        part.n_tmp,
        len(steps),
        len(pool),
        NONE if part.root is None else part.root,
        DETERMINISTIC if part.deterministic else 0,
        steps_at + _STEP.size * len(steps) + 4 * len(pool),
        part.min_slots,
        0,
        0,
    )
    table = struct.pack(f"<{len(begins)}I", *begins)
    padding = bytes(steps_at - _HEADER.size - len(table))
    return b"".join([header, table, padding, *steps, struct.pack(f"<{len(pool)}I", *pool)])


def decode(data: bytes) -> RankProgram:
    """Read a flat program, checking every field.

    Args:
        data: The bytes, from anywhere.

    Returns:
        The program; ``encode`` gives back the same bytes.

    Raises:
        FlatFormatError: Some field is not what it must be.
    """
    if len(data) < _HEADER.size:
        raise FlatFormatError(f"{len(data)} bytes are no header; it has {_HEADER.size}")
    field = dict(zip(_HEADER_FIELDS, _HEADER.unpack_from(data), strict=True))
    _expect(field, "magic", MAGIC)
    _expect(field, "version", VERSION)
    _expect(field, "header bytes", _HEADER.size)
    _expect(field, "total bytes", len(data))
    _expect(field, "reserved at 56", 0)
    _expect(field, "reserved at 60", 0)
    if field["flags"] & ~DETERMINISTIC:
        raise FlatFormatError(f"flags is {field['flags']:#x}; only bit 0 is in use")
    layout = _decode_layout(field)
    _expect(field, "n_in", layout.n_in)
    _expect(field, "n_out", layout.n_out)

    steps_at = _steps_at(layout.channels)
    pool_at = steps_at + _STEP.size * field["n_steps"]
    _expect(field, "total bytes", pool_at + 4 * field["n_peers"])
    begins = struct.unpack_from(f"<{layout.channels + 1}I", data, _HEADER.size)
    if begins[0] != 0 or begins[-1] != field["n_steps"] or any(a > b for a, b in pairwise(begins)):
        raise FlatFormatError("channel_begin does not rise from 0 to n_steps")
    if any(data[_HEADER.size + 4 * len(begins) : steps_at]):
        raise FlatFormatError("the padding after channel_begin is not zero")
    pool = struct.unpack_from(f"<{field['n_peers']}I", data, pool_at)
    steps = list(_decode_steps(data[steps_at:pool_at], pool, layout, field["rank"], field["n_tmp"]))
    lanes: tuple[Lane, ...] = tuple(tuple(steps[a:b]) for a, b in pairwise(begins))
    try:
        return RankProgram(
            collective=layout.collective,
            world=layout.world,
            channels=layout.channels,
            root=layout.root,
            n_tmp=field["n_tmp"],
            deterministic=bool(field["flags"] & DETERMINISTIC),
            min_slots=field["min_slots"],
            rank=field["rank"],
            lanes=lanes,
        )
    except ValueError as error:
        raise FlatFormatError(str(error)) from None


def _steps_at(channels: int) -> int:
    end = _HEADER.size + 4 * (channels + 1)
    return end + -end % 8


def _space_begins(layout: Layout) -> tuple[int, int, int]:
    """Chunk number of in[0], out[0] and tmp[0]."""
    return (0, layout.n_in, layout.n_in + layout.n_out)


def _chunk_number(chunk: Chunk | None, spaces: tuple[int, int, int]) -> int:
    return NONE if chunk is None else spaces[chunk.space] + chunk.number


def _pack(form: struct.Struct, *values: int | bytes) -> bytes:
    try:
        return form.pack(*values)
    except struct.error as error:
        raise ValueError(f"a number does not fit its field of the flat form: {error}") from None


def _expect(field: dict[str, int], name: str, value: int | bytes) -> None:
    if field[name] != value:
        raise FlatFormatError(f"{name} is {field[name]!r}; it must be {value!r}")


def _decode_layout(field: dict[str, int]) -> Layout:
    for name in ("world", "channels"):
        if field[name] == 0:
            raise FlatFormatError(f"{name} is 0; it must be at least 1")
    try:
        root = None if field["root"] == NONE else field["root"]
        return Layout(Collective(field["collective"]), field["world"], field["channels"], root)
    except ValueError as error:
        raise FlatFormatError(f"collective is {field['collective']}: {error}") from None


def _decode_steps(
    data: bytes, pool: tuple[int, ...], layout: Layout, rank: int, n_tmp: int
) -> Iterator[Step]:
    in_use = 0  # of the pool
    for number, record in enumerate(_STEP.iter_unpack(data)):
        op, flags, n_from, n_to, reserved_6, src, dst, remote, from_at, to_at, reserved_28 = record

        def wrong(sentence: str, number: int = number) -> FlatFormatError:
            return FlatFormatError(f"step {number}: {sentence}")

        if not 1 <= op <= max(Op):
            raise wrong(f"op is {op}; there are 1 to {max(Op)}")
        if flags & ~FINISH:
            raise wrong(f"flags is {flags:#x}; only bit 0 is in use")
        if reserved_6 or reserved_28:
            raise wrong("a reserved field is not zero")
        if from_at != in_use or to_at != in_use + n_from:
            raise wrong(
                f"its peers are at {from_at} and {to_at} of the pool; "
                f"the next are {in_use} and {in_use + n_from}"
            )
        in_use += n_from + n_to
        if in_use > len(pool):
            raise wrong(f"its peers end at {in_use}; the pool has {len(pool)}")
        try:
            step = Step(
                Op(op),
                frm=pool[from_at:to_at],
                to=pool[to_at:in_use],
                src=_chunk_numbered(src, layout, n_tmp),
                dst=_chunk_numbered(dst, layout, n_tmp),
                remote=_chunk_numbered(remote, layout, n_tmp),
                finish=bool(flags & FINISH),
            )
        except FlatFormatError as error:
            raise wrong(str(error)) from None
        complaint = step_complaint(step, rank, layout, n_tmp)
        if complaint:
            raise wrong(f"`{step}`: {complaint.sentence}")
        yield step
    if in_use != len(pool):
        raise FlatFormatError(f"n_peers is {len(pool)}, but the steps have {in_use}")


def _chunk_numbered(number: int, layout: Layout, n_tmp: int) -> Chunk | None:
    if number == NONE:
        return None
    begins = _space_begins(layout)
    if number >= begins[2] + n_tmp:
        raise FlatFormatError(f"chunk {number} does not exist; there are {begins[2] + n_tmp}")
    space = max(space for space in Space if number >= begins[space])
    return Chunk(space, number - begins[space])
