"""The text form: stable (golden files), read back as written, and clear about what is wrong.

A golden file is made again with ``python -m hybridcomm program COLLECTIVE --algorithm NAME ... >
FILE``; what changed is then in the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridcomm.programs import algorithms, build, collectives
from hybridcomm.programs.ir import Program
from hybridcomm.programs.text import TextFormatError, format_program, parse_program
from tests.programs.editing import is_rooted

GOLDEN = Path(__file__).parent / "golden"
PROGRAMS = {
    "all_reduce-ring-4": build("all_reduce", "ring", 4),
    "all_reduce-ring-3-channels-2": build("all_reduce", "ring", 3, channels=2),
    "all_reduce-two_shot-4": build("all_reduce", "two_shot", 4),
    "all_reduce-two_shot-1": build("all_reduce", "two_shot", 1),
    "all_reduce-two_shot_mapped-3": build("all_reduce", "two_shot_mapped", 3),
    "broadcast-binomial-6-root-2": build("broadcast", "binomial", 6, root=2),
    "broadcast-direct-3-root-1": build("broadcast", "direct", 3, root=1),
    "all_gather-ring-4": build("all_gather", "ring", 4),
    "all_gather-direct-3-channels-2": build("all_gather", "direct", 3, channels=2),
    "barrier-dissemination-5": build("barrier", "dissemination", 5),
    "all_reduce-one_shot-3": build("all_reduce", "one_shot", 3),
    "all_reduce-double_binary_tree-7": build("all_reduce", "double_binary_tree", 7),
    "all_reduce-halving_doubling-5": build("all_reduce", "halving_doubling", 5),
    "all_reduce-halving_doubling-8": build("all_reduce", "halving_doubling", 8),
    "broadcast-chain-4-root-3": build("broadcast", "chain", 4, root=3),
    "all_gather-bruck-5": build("all_gather", "bruck", 5),
    "reduce_scatter-direct-3": build("reduce_scatter", "direct", 3),
    "reduce_scatter-ring-4": build("reduce_scatter", "ring", 4),
    "reduce_scatter-recursive_halving-6": build("reduce_scatter", "recursive_halving", 6),
    "all_to_all-direct-3-channels-2": build("all_to_all", "direct", 3, channels=2),
    "all_to_all-pairwise-4": build("all_to_all", "pairwise", 4),
    "reduce-direct-4-root-1": build("reduce", "direct", 4, root=1),
    "reduce-binomial-6-root-2": build("reduce", "binomial", 6, root=2),
    "gather-direct-3-root-2": build("gather", "direct", 3, root=2),
    "gather-binomial-6-root-1": build("gather", "binomial", 6, root=1),
    "scatter-direct-3-root-2": build("scatter", "direct", 3, root=2),
    "scatter-binomial-6-root-1": build("scatter", "binomial", 6, root=1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_golden(name: str) -> None:
    assert format_program(PROGRAMS[name]) == (GOLDEN / f"{name}.txt").read_text()


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(PROGRAMS)


def same(one: Program, other: Program) -> bool:
    return (one.algorithm, one.symmetry) == (other.algorithm, other.symmetry) and all(
        one.rank_program(rank) == other.rank_program(rank) for rank in range(one.world)
    )


@pytest.mark.parametrize("world", [1, 2, 5])
@pytest.mark.parametrize("collective", collectives())
def test_read_back(collective: str, world: int) -> None:
    for algorithm in algorithms(collective):
        root = world - 1 if is_rooted(collective) else None
        program = build(collective, algorithm, world, channels=2, root=root)
        text = format_program(program)
        again = parse_program(text)
        assert same(program, again)
        assert format_program(again) == text


def test_comments_and_spacing_mean_nothing() -> None:
    program = PROGRAMS["all_reduce-ring-4"]
    text = format_program(program)
    loose = "\n\n# why\n" + text.replace("\n", "   # because\n\n").replace("  ", "\t ")
    assert same(program, parse_program(loose))


def test_one_rank() -> None:
    program = PROGRAMS["all_reduce-ring-4"]
    whole, part = format_program(program), format_program(program, 2)
    assert part.split("\n\n")[0] == whole.split("\n\n")[0]
    assert part.split("\n\n")[1].strip() == whole.split("\n\n")[3].strip()
    with pytest.raises(TextFormatError, match="line 19: the text ends without rank 0 channel 0"):
        parse_program(part)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("program all_reduce", "program all_redoce", "line 10: collective: 'all_redoce'"),
        ("world 4", "world four", "line 10: 'four' is not a count"),
        ("world 4", "world 0", "line 10: world: 0 is too small"),
        ("world 4\n", "", "line 2: here must be 'world' with 1 word"),
        ("root none", "root 1", "all_reduce has no root"),
        ("in 4", "in 5", "'in' is 5; this collective has 4"),
        ("deterministic no", "deterministic maybe", "'maybe' is none of no, yes"),
        ("symmetry rotation", "symmetry mirror", "'mirror' is none of none, rotation"),
        ("rank 0 channel 0\n", "", "line 12: a step before the first"),
        ("rank 1 channel 0", "rank 0 channel 0", "line 21: rank 0 channel 0 is there twice"),
        ("rank 1 channel 0", "rank 4 channel 0", "line 21: there is no such rank or channel"),
        ("rank 1 channel 0", "rank 1", "line 21: a lane starts with"),
        ("  send to 1", "  sent to 1", "line 13: 'sent' is not a step"),
        ("  send to 1", "  send at 1", "line 13: 'at' is not a part of a step"),
        ("  send to 1", "  send to 1 to 2", "line 13: 'to' is there twice"),
        ("  send to 1", "  send to 0", "line 13: 'to' names rank 0 itself"),
        ("  send to 1", "  send to 1,", "line 13: '' is not a count"),
        ("  send to 1 src in[3]", "  send to 1", "line 13: send needs 'src'"),
        ("send to 1 src in[3]", "send to 1 src in[3", r"line 13: 'in\[3' is not a chunk"),
        ("send to 1 src in[3]", "send to 1 src in[4]", r"line 13: 'src' is in\[4\]; there are 4"),
    ],
)
def test_says_what_is_wrong(old: str, new: str, message: str) -> None:
    text = format_program(PROGRAMS["all_reduce-ring-4"])
    assert old in text
    with pytest.raises(TextFormatError, match=message):
        parse_program(text.replace(old, new, 1))


@pytest.mark.parametrize("text", ["", "program", "program all_reduce ring\nworld 4000000000"])
def test_cut_off(text: str) -> None:
    with pytest.raises(TextFormatError, match=r"line \d+: here must be"):
        parse_program(text)


def test_a_short_text_may_claim_many_ranks() -> None:
    text = format_program(build("barrier", "dissemination", 1))
    with pytest.raises(TextFormatError, match="the text ends without rank 1 channel 0"):
        parse_program(text.replace("world 1", "world 4000000000"))
