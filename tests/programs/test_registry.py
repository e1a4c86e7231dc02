"""Programs are found by name, with clear errors, made for one rank only, and without torch."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from hybridcomm.programs import algorithms, build, collectives, compile_flat
from hybridcomm.programs.flat import encode
from hybridcomm.programs.ir import Program, Step


def test_names() -> None:
    assert {name: algorithms(name) for name in collectives()} == {
        "all_reduce": (
            "two_shot",
            "ring",
            "double_binary_tree",
            "halving_doubling",
            "one_shot",
            "two_shot_mapped",
        ),
        "broadcast": ("direct", "binomial", "chain"),
        "all_gather": ("direct", "ring", "bruck"),
        "barrier": ("dissemination",),
        "reduce_scatter": ("direct", "ring", "recursive_halving"),
        "all_to_all": ("direct", "pairwise"),
        "reduce": ("direct", "binomial"),
        "gather": ("direct", "binomial"),
        "scatter": ("direct", "binomial"),
    }
    assert "two_shot_mapped" not in algorithms("all_reduce", one_sided=False)
    assert algorithms("send_recv") == ()


@pytest.mark.parametrize(
    ("arguments", "root", "channels", "message"),
    [
        (("all_redoce", "ring", 2), None, 1, "collective: 'all_redoce' is not known; one of all_r"),
        (
            ("all_reduce", "star", 2),
            None,
            1,
            "algorithm: all_reduce has no 'star'; one of two_shot,",
        ),
        (("send_recv", "direct", 2), None, 1, "algorithm: send_recv has no 'direct'; .* none yet"),
        (("all_reduce", "ring", 0), None, 1, "world: 0 is too small"),
        (("all_reduce", "ring", 2), None, 0, "channels: 0 is too small"),
        (("all_reduce", "ring", 2), 0, 1, "root: all_reduce has no root"),
        (("broadcast", "direct", 2), None, 1, "root: broadcast needs a root rank, 0 to 1"),
        (("gather", "binomial", 2), None, 1, "root: gather needs a root rank, 0 to 1"),
        (("broadcast", "direct", 2), 2, 1, "root: 2 is not a rank; 0 to 1"),
    ],
)
def test_says_what_is_wrong(
    arguments: tuple[str, str, int], root: int | None, channels: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(*arguments, root=root, channels=channels)


@pytest.mark.parametrize("rank", [-1, 4])
def test_no_such_rank(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank: {rank} is not a rank; 0 to 3"):
        compile_flat("all_reduce", "ring", 4, rank)


def test_compiles_what_build_makes() -> None:
    program = build("broadcast", "binomial", 6, root=4, channels=2)
    for rank in range(6):
        flat = compile_flat("broadcast", "binomial", 6, rank, 4, 2)
        assert flat == encode(program.rank_program(rank))
        assert compile_flat("broadcast", "binomial", 6, rank, 4, 2) is flat


def test_makes_only_the_ranks_it_is_asked_for() -> None:
    program = build("all_reduce", "ring", 1000)
    asked: list[int] = []

    def lane(rank: int, channel: int) -> Sequence[Step]:
        asked.append(rank)
        return tuple(program.lane(rank, channel))

    watched: Program = replace(program, lane=lane)
    assert watched.rank_program(7) == program.rank_program(7)
    assert asked == [7]


def test_rerooting_twice_is_rerooting_once() -> None:
    once = build("broadcast", "binomial", 7, root=5)
    twice = build("broadcast", "binomial", 7, root=3).rerooted(5)
    assert [once.lanes(rank) for rank in range(7)] == [twice.lanes(rank) for rank in range(7)]


@pytest.mark.parametrize("algorithm", algorithms("all_reduce"))
def test_compiles_fast(algorithm: str) -> None:
    """The first call of a size waits for this: 5 ms at most for 64 ranks (best of 5)."""
    times = []
    for rank in range(5):
        start = time.perf_counter()
        compile_flat.__wrapped__("all_reduce", algorithm, 64, rank)
        times.append(time.perf_counter() - start)
    assert min(times) < 5e-3


def test_imports_no_torch() -> None:
    code = (
        "import sys, hybridcomm.programs;"
        "print([name for name in ('torch', 'numpy') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
