"""``docs/program-format.md`` says what the code does: its examples and its tables are compared."""

from __future__ import annotations

import re
from pathlib import Path

from hybridcomm.programs import Space, build, collectives, compile_flat
from hybridcomm.programs.ir import Op
from hybridcomm.programs.layout import Collective, Layout
from hybridcomm.programs.text import format_program, parse_program

PAGE = (Path(__file__).parents[2] / "docs" / "program-format.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its two header lines."""
    section = PAGE.split(f"{heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert table is not None
    return [
        [cell.strip().strip("`") for cell in line.strip("|\n").split("|")]
        for line in table[0].splitlines()[2:]
    ]


def test_text_example() -> None:
    (example,) = re.findall(r"```text\n(program .*?)```", PAGE, re.DOTALL)
    assert example == format_program(build("all_reduce", "two_shot", 2))
    assert format_program(parse_program(example)) == example


def test_flat_example() -> None:
    (example,) = re.findall(r"```text\n(  0  48 .*?)```", PAGE, re.DOTALL)
    data = bytearray()
    for line in example.splitlines():
        match = re.match(r" *(\d+)  ((?:[0-9a-f]{2} +)+)", line)
        assert match is not None
        assert int(match[1]) == len(data)
        data += bytes.fromhex(match[2])
    assert bytes(data) == compile_flat("all_reduce", "two_shot", 2, 1)


def test_steps() -> None:
    assert [(int(code), name) for code, name, *_ in rows("## Steps")] == [
        (op.value, op.word) for op in Op
    ]


def test_chunks() -> None:
    world, channels = 5, 3
    extents = {"0": 0, "C": channels, "C·N": channels * world}
    for code, name, n_in, n_out, _, root in rows("## Chunks"):
        layout = Layout(Collective(int(code)), world, channels, 0)
        assert layout.collective.word == name
        assert (layout.n_in, layout.n_out) == (extents[n_in], extents[n_out])
        assert layout.rooted == root.startswith("yes")
        alone = root.split("`")[1] if "alone" in root else None
        for space in (Space.IN, Space.OUT):
            assert layout.has(1, space) == (space.name.lower() != alone)
    assert len(rows("## Chunks")) == len(collectives())


def test_fields_follow_each_other() -> None:
    sizes = {"u8[4]": 4, "u8": 1, "u16": 2, "u32": 4}
    for heading, total in (("### Header, 64 bytes", 64), ("### Steps, 32 bytes each", 32)):
        at = 0
        for begin, kind, *_ in rows(heading):
            assert int(begin) == at
            at += sizes[kind]
        assert at == total
