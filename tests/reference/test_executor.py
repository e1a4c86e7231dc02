"""The reference executor against results computed without programs, in every timing it offers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from hybridcomm.programs import algorithms, build, collectives, verify
from hybridcomm.programs.ir import IN, OUT, copy, recv, send
from hybridcomm.programs.layout import Chunk, Collective, Space
from hybridcomm.programs.network import LaneId
from hybridcomm.programs.values import Value
from hybridcomm.reference import (
    DeadlockError,
    RedOp,
    chunk_table,
    execute,
    in_order,
    random_order,
    reduce,
    run_collective,
    run_program,
)
from hybridcomm.reference.executor import Choose, Staging
from tests.programs.editing import edited, is_rooted, written_out

WORLDS = range(1, 9)
SIZES = (0, 1, 7, 129, 1000)
REDUCED = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
MOVED = [*REDUCED, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.complex32]
MOVING = ("broadcast", "all_gather", "all_to_all", "gather", "scatter")
UNEVEN = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
STAGINGS: tuple[Staging, ...] = ("buffered", "rendezvous")


def raw(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def distinct(dtype: torch.dtype, rank: int, count: int) -> Tensor:
    """Values that differ from element to element and from rank to rank, whatever the type.

    As bytes, so that types which only move have them too; none of the bytes is that of unwritten
    memory.
    """
    size = count * dtype.itemsize
    data = (torch.arange(size) * 37 + rank * 11 + torch.arange(size) // 251) % 0xA5
    if dtype is torch.bool:
        data = (data * 7 + rank) % 2
    return data.to(torch.uint8).view(dtype)


def exact(dtype: torch.dtype, rank: int, count: int) -> Tensor:
    """Small whole numbers: their sums over 8 ranks are exact in every type and every order."""
    pattern = (torch.arange(count) * 5 + torch.arange(count) // 7 + rank * 3) % 3
    if dtype.is_complex:
        return torch.complex(pattern.double(), (2 - pattern).double()).to(dtype)
    return pattern.to(torch.float32).to(dtype)


def exact_sum(inputs: Sequence[Tensor]) -> Tensor:
    """The sum by way of 64-bit floats, without any code of ours."""
    dtype = inputs[0].dtype
    if dtype.is_complex:
        return torch.stack(list(inputs)).to(torch.complex128).sum(0).to(dtype)
    # By way of float32, because float8 converts to and from nothing else.
    total = torch.stack([tensor.to(torch.float32) for tensor in inputs]).double().sum(0)
    return total.to(torch.float32).to(dtype)


def wanted_results(
    collective: str, inputs: Sequence[Tensor], root: int | None, total: Tensor | None = None
) -> list[Tensor]:
    """What each rank must have at the end, computed without programs.

    Args:
        collective: Which.
        inputs: Each rank's tensor; one that is cut for the ranks has them as first dimension.
        root: The root, if there is one.
        total: The inputs' reduction, for a collective that reduces.
    """
    world = len(inputs)
    nothing = inputs[0].new_empty(0)
    if collective in ("all_reduce", "reduce", "reduce_scatter"):
        assert total is not None
        if collective == "reduce_scatter":
            return list(total)
        return [total if root in (None, rank) else nothing for rank in range(world)]
    if collective == "broadcast":
        return [inputs[root or 0]] * world
    if collective == "scatter":
        return list(inputs[root or 0])
    if collective == "all_to_all":
        return [torch.stack([tensor[rank] for tensor in inputs]) for rank in range(world)]
    together = torch.stack(list(inputs))  # all_gather and gather
    return [together if root in (None, rank) else nothing for rank in range(world)]


def rows(collective: str, tensor: Tensor, world: int) -> Tensor:
    """The tensor as this collective takes it: with a row for each rank where it is cut so."""
    cut = collective in ("reduce_scatter", "scatter", "all_to_all")
    return tensor.view(world, tensor.numel() // world) if cut else tensor


def root_of(collective: str, world: int) -> int | None:
    return world - 1 if is_rooted(collective) else None


def staging_of(collective: str, algorithm: str, number: int) -> Staging:
    """Buffered for even numbers, else by reference, which a one-shot cannot bear in place."""
    return STAGINGS[number % 2] if algorithm != "one_shot" else "buffered"


REDUCING = [
    (collective, algorithm)
    for collective in ("all_reduce", "reduce_scatter", "reduce")
    for algorithm in algorithms(collective)
]


@pytest.mark.parametrize("dtype", REDUCED, ids=str)
@pytest.mark.parametrize(("collective", "algorithm"), REDUCING)
def test_sums_are_exact(collective: str, algorithm: str, dtype: torch.dtype) -> None:
    for world in WORLDS:
        for size in SIZES[world % 2 :: 2]:
            count = size - size % world if collective == "reduce_scatter" else size
            inputs = [exact(dtype, rank, count) for rank in range(world)]
            root = root_of(collective, world)
            total = rows(collective, exact_sum(inputs), world)
            results = run_collective(
                collective,
                algorithm,
                [rows(collective, tensor, world) for tensor in inputs],
                root=root,
                in_place=world % 3 == 0,
                staging=staging_of(collective, algorithm, world // 2),
                slots=2 + size % 3,
                slot_bytes=(64, 256, 1024)[size % 3],
                channels=1 + world % 2,
                choose=random_order(world * 1000 + size),
            )
            for result, wanted in zip(
                results, wanted_results(collective, inputs, root, total), strict=True
            ):
                assert torch.equal(raw(result), raw(wanted)), (world, size)


@pytest.mark.parametrize("op", list(RedOp))
@pytest.mark.parametrize("dtype", REDUCED, ids=str)
def test_every_reduction(dtype: torch.dtype, op: RedOp) -> None:
    """Where all operands meet in one step, it is one ``reduce``, bit for bit."""
    inputs = [distinct(dtype, rank, 301) for rank in range(3)]
    try:
        wanted = reduce(inputs, op, 3 if op is RedOp.AVG else None)
    except TypeError as error:
        with pytest.raises(TypeError, match=str(error)):
            run_collective("all_reduce", "two_shot", inputs, op=op)
        return
    for algorithm in ("two_shot", "two_shot_mapped", "one_shot"):
        for result in run_collective(
            "all_reduce", algorithm, inputs, op=op, slot_bytes=64, slots=5, choose=random_order(1)
        ):
            assert torch.equal(raw(result), raw(wanted))


def evaluated(value: Value, operands: Sequence[Tensor], op: RedOp, world: int) -> Tensor:
    if not value.operands:
        return operands[value.ranks.bit_length() - 1]
    parts = [evaluated(operand, operands, op, world) for operand in value.operands]
    return reduce(parts, op, world if op is RedOp.AVG and value.finished else None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("op", [RedOp.SUM, RedOp.AVG, RedOp.PRODUCT])
@pytest.mark.parametrize(("collective", "algorithm"), REDUCING)
def test_computes_the_verified_expression(
    collective: str, algorithm: str, op: RedOp, dtype: torch.dtype
) -> None:
    """Bit for bit what the verifier says each output is, roundings and all."""
    world, count = 5, 400
    generator = torch.Generator().manual_seed(7)
    inputs = [torch.randn(count, generator=generator).to(dtype) for _ in range(world)]
    root = root_of(collective, world)
    program = build(collective, algorithm, world, channels=2, root=root)
    report = verify(program)
    assert len(report.reductions) == program.layout.n_pieces
    tables = []
    for rank, tensor in enumerate(inputs):
        sources: Sequence[Tensor] = [tensor]
        targets: Sequence[Tensor] = [tensor.clone()]
        if collective == "reduce_scatter":
            sources, targets = tensor.split(count // world), [tensor[: count // world].clone()]
        if not program.layout.has(rank, Space.OUT):
            targets = []
        tables.append(chunk_table(program.rank_program(rank), sources, targets))
    execute(program, tables, op=op, slots=3, choose=random_order(2))
    for rank, table in enumerate(tables):
        for number, output in enumerate(table.outputs):
            piece = program.layout.piece(rank, Chunk(Space.OUT, number))
            operands = [other.inputs[piece] for other in tables]
            wanted = evaluated(report.reductions[piece], operands, op, world)
            assert torch.equal(raw(output), raw(wanted))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", MOVED, ids=str)
@pytest.mark.parametrize("collective", MOVING)
def test_moves_every_type_byte_for_byte(collective: str, dtype: torch.dtype) -> None:
    for world in (1, 3, 6):
        root = root_of(collective, world)
        for size in SIZES:
            count = size * (world if collective in ("scatter", "all_to_all") else 1)
            inputs = [
                rows(collective, distinct(dtype, rank, count), world) for rank in range(world)
            ]
            wanted = wanted_results(collective, inputs, root)
            for algorithm in algorithms(collective):
                results = run_collective(
                    collective,
                    algorithm,
                    inputs,
                    root=root,
                    channels=1 + size % 2,
                    in_place=world == 3,
                    slots=2 + size % 3,
                    slot_bytes=64 if size < 1000 else 1024,
                    staging=STAGINGS[(world + size) % 2],
                    choose=random_order(size),
                )
                for result, right in zip(results, wanted, strict=True):
                    assert torch.equal(raw(result), raw(right)), (world, size, algorithm)


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


def last(lanes: Sequence[LaneId]) -> int:
    return len(lanes) - 1


def slow_rank(rank: int) -> Choose:
    """One rank moves only when no other can."""

    def choose(lanes: Sequence[LaneId]) -> int:
        return next((at for at, lane in enumerate(lanes) if lane[0] != rank), 0)

    return choose


@pytest.mark.parametrize("staging", STAGINGS)
@pytest.mark.parametrize("collective", [name for name in collectives() if name != "barrier"])
def test_timing_changes_nothing(collective: str, staging: Staging) -> None:
    """Fifty orders of delivery and the extreme ones give the same bits."""
    inputs = [
        rows(collective, torch.randn(332, generator=torch.Generator().manual_seed(r)), 4)
        for r in range(4)
    ]
    orders = [in_order, last, *map(slow_rank, range(4)), *map(random_order, range(50))]
    for algorithm in algorithms(collective):
        root = 2 if is_rooted(collective) else None
        first = run_collective(collective, algorithm, inputs, root=root)
        for number, choose in enumerate(orders):
            results = run_collective(
                collective,
                algorithm,
                inputs,
                root=root,
                staging=staging if algorithm != "one_shot" else "buffered",
                in_place=number % 2 == 0,
                slots=2 + number % 4,
                slot_bytes=64,
                choose=choose,
            )
            for result, wanted in zip(results, first, strict=True):
                assert torch.equal(raw(result), raw(wanted)), (algorithm, number)


def test_barrier() -> None:
    """Rank 3 is held back as long as others can move: then nobody is through before it starts."""
    program = build("barrier", "dissemination", 5)
    done: list[int] = []
    order = slow_rank(3)

    def choose(lanes: Sequence[LaneId]) -> int:
        at = order(lanes)
        done.append(lanes[at][0])
        return at

    run_program(program, [torch.empty(0)] * 5, choose=choose)
    start = done.index(3)
    assert start > 0
    assert all(done[:start].count(rank) < 6 for rank in range(5))


def test_segments_and_slots() -> None:
    program = build("all_reduce", "ring", 2)
    inputs = [torch.arange(96.0) for _ in range(2)]
    tables = [
        chunk_table(program.rank_program(rank), [x], [x.clone()]) for rank, x in enumerate(inputs)
    ]
    # Two chunks of 48 elements; slots of 16, m = 5 // 2: segments of 32 elements.
    assert [table.inputs[0].numel() for table in tables] == [48, 48]
    run = execute(program, tables, slots=5, slot_bytes=64, choose=in_order)
    assert run.segments == 2
    assert run.slots_moved == 2 * 2 * 3
    assert 2 <= run.most_slots <= 5


def test_no_data_still_signals() -> None:
    program = build("all_reduce", "two_shot_mapped", 3)
    inputs = [torch.empty(0)] * 3
    tables = [
        chunk_table(program.rank_program(rank), [x], [x.clone()]) for rank, x in enumerate(inputs)
    ]
    run = execute(program, tables)
    assert (run.segments, run.slots_moved) == (1, 12)


def test_inputs_stay_as_they_are_and_may_be_strided() -> None:
    inputs = [torch.arange(30.0).view(5, 6)[:, ::2].t() + rank for rank in range(3)]
    before = [tensor.clone() for tensor in inputs]
    for collective in ("all_reduce", "all_gather"):
        for algorithm in algorithms(collective):
            for in_place in (False, True):
                results = run_collective(collective, algorithm, inputs, in_place=in_place)
                together = torch.stack(before)
                wanted = together.sum(0) if collective == "all_reduce" else together
                assert all(torch.equal(result, wanted) for result in results)
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


def test_scalars() -> None:
    inputs = [torch.tensor(float(rank + 1)) for rank in range(3)]
    assert [r.item() for r in run_collective("all_reduce", "ring", inputs)] == [6.0] * 3
    assert run_collective("all_gather", "ring", inputs)[1].tolist() == [1.0, 2.0, 3.0]


def test_deadlock_names_ranks() -> None:
    """Planted: every rank receives before it sends."""
    program = build("all_gather", "direct", 3)
    for rank in range(3):
        program = edited(program, rank, lambda steps: steps.append(steps.pop(0)))
    with pytest.raises(DeadlockError) as caught:
        run_program(program, [torch.ones(4)] * 3)
    for rank in range(3):
        place = f"rank {rank} channel 0 step 1 (`recv from {(rank - 1) % 3}"
        assert place in str(caught.value)
        assert f"waits for a message of rank {(rank - 1) % 3}" in str(caught.value)


def test_too_few_slots_deadlock() -> None:
    with pytest.raises(DeadlockError, match="waits for a free slot to rank 1"):
        run_program(build("all_reduce", "ring", 3), [torch.ones(99)] * 3, slots=1)


def test_a_reference_shows_what_a_slot_hides() -> None:
    """Planted: rank 0 overwrites what it has sent. A slot has a copy of it, a reference has not."""
    program = written_out(
        Collective.BROADCAST,
        [copy(IN[0], OUT[0]), send(1, OUT[0]), recv(1, OUT[0])],
        [send(0, IN[0]), recv(0, OUT[0])],
        root=0,
    )
    inputs = [torch.full((4,), 1.0), torch.full((4,), 2.0)]
    buffered = run_program(program, inputs)
    assert buffered[1].tolist() == [1.0] * 4
    # Rank 1 sends, rank 0 goes through to its end, then rank 1 takes what is left.
    orders = iter([1, 0, 0, 0, 0])
    by_reference = run_program(
        program,
        inputs,
        staging="rendezvous",
        choose=lambda lanes: min(next(orders), len(lanes) - 1),
    )
    assert by_reference[1].tolist() == [2.0] * 4


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"slots": 0}, ValueError, "slots: 0 is too small"),
        ({"slot_bytes": 6}, ValueError, "slot_bytes: 6 is no multiple of 4"),
        ({"staging": "magic"}, ValueError, "staging: 'magic' is not known"),
        ({"op": RedOp.BXOR}, TypeError, "BXOR needs integers or bool"),
    ],
)
def test_says_what_is_wrong(
    changes: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run_collective("all_reduce", "ring", [torch.ones(3)] * 2, **changes)  # type: ignore[arg-type]


def test_integer_average_needs_one_reduction() -> None:
    inputs = [torch.full((5,), 100, dtype=torch.int8) for _ in range(3)]
    with pytest.raises(TypeError, match="in ring partial sums would wrap"):
        run_collective("all_reduce", "ring", inputs, op=RedOp.AVG)
    results = run_collective("all_reduce", "two_shot", inputs, op=RedOp.AVG)
    assert [result.tolist() for result in results] == [[100] * 5] * 3


def test_refuses_unlike_inputs() -> None:
    for inputs in ([torch.ones(2), torch.ones(3)], [torch.ones(2), torch.ones(2).double()]):
        with pytest.raises(ValueError, match="the same shape and type"):
            run_collective("all_reduce", "ring", inputs)
    with pytest.raises(ValueError, match="2 tensors for 3 ranks"):
        run_program(build("all_reduce", "ring", 3), [torch.ones(2)] * 2)
    with pytest.raises(ValueError, match="first dimension must be one of 3 ranks"):
        run_collective("reduce_scatter", "ring", [torch.ones(2, 3)] * 3)


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


def test_refuses_a_step_that_is_not_well_formed() -> None:
    program = edited(build("all_reduce", "ring", 2), 0, lambda steps: steps.append(send(0, IN[0])))
    with pytest.raises(ValueError, match="self_peer: rank 0, channel 0, step 3"):
        run_program(program, [torch.ones(2)] * 2)


def test_imports_nothing_compiled_of_ours() -> None:
    code = "import sys, hybridcomm.reference; print('hybridcomm._C' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_all_collectives_are_tested_here() -> None:
    reducing = {collective for collective, _ in REDUCING}
    assert set(collectives()) == {*reducing, *MOVING, "barrier"}
