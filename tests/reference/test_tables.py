"""How buffers become chunks: parts that differ in length, temporaries, and what does not fit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hybridcomm.programs import algorithms, build
from hybridcomm.reference import chunk_table, random_order, run_collective
from tests.programs.editing import is_rooted
from tests.reference.results import STAGINGS, WORLDS, distinct

UNEVEN = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


def uneven(collective: str, world: int) -> tuple[list[Tensor], list[int] | list[list[int]], int]:
    """Inputs with parts of 0 to 200 elements, the lengths, and the root."""
    lengths = [(rank * 67 + 13) % 201 if rank != 1 else 0 for rank in range(world)]
    if collective == "all_to_all":
        table = [[(s * 31 + d * 57) % 97 for d in range(world)] for s in range(world)]
        return [distinct(torch.int32, s, sum(table[s])) for s in range(world)], table, 0
    root = world // 2
    counts = lengths if collective in ("all_gather", "gather") else [sum(lengths)] * world
    return [distinct(torch.int32, r, n) for r, n in enumerate(counts)], lengths, root


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("collective", UNEVEN)
def test_parts_may_differ_in_length(collective: str, world: int) -> None:
    inputs, splits, center = uneven(collective, world)
    root = center if is_rooted(collective) else None
    if collective == "all_to_all":
        sent = [tensor.split(splits[rank]) for rank, tensor in enumerate(inputs)]
        wanted = [torch.cat([parts[rank] for parts in sent]) for rank in range(world)]
    elif collective in ("reduce_scatter", "scatter"):
        whole = inputs[center] if collective == "scatter" else sum(inputs[1:], inputs[0])
        wanted = list(whole.split(splits))
    else:
        nothing = inputs[0].new_empty(0)
        wanted = [torch.cat(inputs) if root in (None, r) else nothing for r in range(world)]
    for algorithm in algorithms(collective):
        if algorithm == "binomial" and world > 3:
            with pytest.raises(ValueError, match="splits: in binomial ranks pass on"):
                run_collective(collective, algorithm, inputs, root=root, splits=splits)
            continue
        for seed in range(6):
            results = run_collective(
                collective,
                algorithm,
                inputs,
                root=root,
                splits=splits,
                channels=1 + seed % 2,
                in_place=seed % 3 == 0,
                staging=STAGINGS[seed // 3],
                slots=2 + seed % 3,
                slot_bytes=64,
                choose=random_order(seed),
            )
            assert all(map(torch.equal, results, wanted)), (algorithm, seed)


@pytest.mark.parametrize(
    ("collective", "splits", "message"),
    [
        ("all_reduce", [1, 2], "splits: not of the form that all_reduce of 2 ranks has"),
        ("all_gather", [1, 2, 3], "not of the form that all_gather of 2 ranks has"),
        ("all_gather", [[1, 2], [1, 2]], "not of the form"),
        ("all_to_all", [1, 2], "not of the form"),
        ("reduce_scatter", [1, 2], "inputs: rank 0's must have 3 elements in a row"),
        ("all_gather", [4, 2], "inputs: rank 1's must have 2 elements"),
    ],
)
def test_refuses_splits(collective: str, splits: list[int], message: str) -> None:
    algorithm = algorithms(collective)[0]
    with pytest.raises(ValueError, match=message):
        run_collective(collective, algorithm, [torch.ones(4)] * 2, splits=splits)


def test_refuses_buffers_that_do_not_fit() -> None:
    gather = build("gather", "direct", 3, root=1)
    one = torch.ones(4)
    with pytest.raises(ValueError, match="out: 3 buffers given; rank 0 of this gather has 0"):
        chunk_table(gather.rank_program(0), [one], [one] * 3)
    with pytest.raises(ValueError, match="out: 1 buffers given; rank 1 of this gather has 3"):
        chunk_table(gather.rank_program(1), [one], [one])


def test_only_temporaries_that_a_step_names_have_memory() -> None:
    program = build("gather", "binomial", 8, root=0)
    tables = [
        chunk_table(
            program.rank_program(rank), [torch.ones(9)], [torch.ones(9)] * (8 if rank == 0 else 0)
        )
        for rank in (0, 2, 4)
    ]
    held = [[number for number, t in enumerate(table.temporaries) if len(t)] for table in tables]
    assert held == [[], [3], [5, 6, 7]]
