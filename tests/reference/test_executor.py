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
from tests.reference.results import (
    MOVED,
    MOVING,
    REDUCED,
    SIZES,
    STAGINGS,
    WORLDS,
    distinct,
    exact,
    exact_sum,
    raw,
    root_of,
    rows,
    staging_of,
    wanted_results,
)

REDUCING = [
    (collective, algorithm)
    for collective in ("all_reduce", "reduce_scatter", "reduce")
    for algorithm in algorithms(collective)
]


@pytest.mark.parametrize("dtype", REDUCED, ids=str)
@pytest.mark.parametrize(("collective", "algorithm"), REDUCING)
def test_sums_are_exact(collective: str, algorithm: str, dtype: torch.dtype) -> None:
    for world in WORLDS:
        for size in SIZES[(world + REDUCED.index(dtype)) % 3 :: 3]:
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
                slots=None if size == 129 else 2 + size % 3,
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
        least = build(collective, algorithm, 4, root=root).min_slots
        first = run_collective(collective, algorithm, inputs, root=root)
        for number, choose in enumerate(orders):
            results = run_collective(
                collective,
                algorithm,
                inputs,
                root=root,
                staging=staging if algorithm != "one_shot" else "buffered",
                in_place=number % 2 == 0,
                slots=least + number % 4,
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
