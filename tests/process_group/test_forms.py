"""What every collective does with views, with nothing, with each type, and to the inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.process_group.begun import wait_all
from tests.support.ranks import RankPool
from tests.support.tensors import DTYPES

_WORLD = 3


def _everybody() -> range:
    return range(dist.get_world_size())


def _numbers(shape: Sequence[int], *key: int) -> Tensor:
    """Different ones for each key and element."""
    count = int(torch.Size(shape).numel())
    start = sum(part * 1009**place for place, part in enumerate(key, 1))
    return torch.arange(start, start + count).view(*shape)


# ---- views --------------------------------------------------------------------------------------


def _column(matrix: Tensor) -> Tensor:
    return matrix[:, 0]


def _transpose(matrix: Tensor) -> Tensor:
    return matrix.T


def _every_other(matrix: Tensor) -> Tensor:
    return matrix[::2]


_View = Callable[[Tensor], Tensor]


class _Views:
    """Matrices of which collectives are given a part."""

    def __init__(self, view: _View) -> None:
        self._view = view
        self._outputs: list[tuple[Tensor, Tensor]] = []
        self.wrong: list[str] = []

    def input(self, *key: int) -> Tensor:
        """Some view of a matrix of numbers."""
        return self._view(_numbers((6, 5), *key))

    def output(self) -> Tensor:
        """The same view of a matrix of -1."""
        matrix = torch.full((6, 5), -1)
        view = self._view(matrix)
        self._outputs.append((matrix, view))
        return view

    def check(self, what: str, actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
        """Compares results, and looks whether anything around an output was written."""
        if not all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True)):
            self.wrong.append(f"{what}: {actual}, expected {expected}")
        for matrix, view in self._outputs:
            view.fill_(-1)
            if not bool((matrix == -1).all()):
                self.wrong.append(f"{what} wrote outside its output")
        self._outputs.clear()


def _collectives_of_views(view: _View) -> list[str]:
    rank, ranks = dist.get_rank(), _everybody()
    views = _Views(view)
    one = views.input(rank) if rank == 1 else views.output()
    dist.broadcast(one, 1)
    views.check("broadcast", [one.clone()], [views.input(1)])

    one = views.input(rank)
    dist.reduce(one, 2)
    total = sum(views.input(r) for r in ranks)
    assert isinstance(total, Tensor)
    views.check("reduce", [one], [total if rank == 2 else views.input(rank)])

    one = views.input(rank)
    dist.all_reduce(one)
    views.check("all_reduce", [one], [total])

    one = views.output()
    dist.scatter(one, [views.input(1, r) for r in ranks] if rank == 1 else None, 1)
    views.check("scatter", [one.clone()], [views.input(1, rank)])

    many = [views.output() for _ in ranks]
    dist.gather(views.input(rank), many if rank == 1 else None, 1)
    if rank == 1:
        views.check("gather", [m.clone() for m in many], [views.input(r) for r in ranks])

    many = [views.output() for _ in ranks]
    dist.all_gather(many, views.input(rank))
    views.check("all_gather", [m.clone() for m in many], [views.input(r) for r in ranks])

    many = [views.output() for _ in ranks]
    dist.all_to_all(many, [views.input(rank, r) for r in ranks])
    views.check("all_to_all", [m.clone() for m in many], [views.input(r, rank) for r in ranks])

    one = views.output()
    dist.reduce_scatter(one, [views.input(rank, r) for r in ranks])
    total = sum(views.input(r, rank) for r in ranks)
    assert isinstance(total, Tensor)
    views.check("reduce_scatter", [one.clone()], [total])
    return views.wrong


@pytest.mark.parametrize("view", [_column, _transpose, _every_other])
def test_views_count_as_what_they_look_like(ours: RankPool, view: _View) -> None:
    """x[:, 0], x.T and x[::2], never silently wrong (pytorch#192920, #62283)."""
    assert ours.run(_WORLD, _collectives_of_views, view, timeout=20) == [[]] * _WORLD


def test_a_planted_fault_in_a_view_is_found() -> None:
    """Elements in the order of the memory, and one beside the output."""
    views = _Views(_column)
    output = views.output()
    torch.as_strided(output, (6,), (1,)).copy_(views.input(1))
    views.check("planted", [output.clone()], [views.input(1)])
    assert len(views.wrong) == 2
    assert "expected" in views.wrong[0]
    assert "outside" in views.wrong[1]


# ---- nothing ------------------------------------------------------------------------------------


def _collectives_of_nothing() -> list[tuple[int, ...]]:
    """Every collective of shape (1, 0, 2), which nobody may take for an error or wait in."""
    rank, ranks = dist.get_rank(), _everybody()
    world = len(ranks)

    def none(*shape: int) -> Tensor:
        return torch.empty(shape or (1, 0, 2))

    tensors = [none() for _ in range(8)]
    lists = [[none() for _ in ranks] for _ in range(4)]
    dist.all_reduce(tensors[0])
    dist.broadcast(tensors[1], 1)
    dist.reduce(tensors[2], 1)
    dist.all_gather(lists[0], tensors[3])
    dist.all_gather_into_tensor(none(world, 0), none(1, 0))
    dist.reduce_scatter(tensors[4], lists[1])
    dist.reduce_scatter_tensor(none(1, 0), none(world, 0), dist.ReduceOp.AVG)
    dist.gather(tensors[5], lists[2] if rank == 0 else None, 0)
    dist.scatter(tensors[6], lists[2] if rank == 0 else None, 0)
    dist.all_to_all(lists[3], lists[2])
    dist.all_to_all_single(none(0, 3), none(0, 3))
    dist.all_to_all_single(none(0, 3), none(0, 3), [0] * world, [0] * world)
    peer = (rank + 1) % world, (rank - 1) % world
    wait_all([dist.isend(none(), peer[0]), dist.irecv(tensors[7], peer[1])])
    every = [*tensors, *(tensor for one in lists for tensor in one)]
    return sorted({tuple(tensor.shape) for tensor in every})


def test_of_nothing_comes_nothing(ours: RankPool) -> None:
    """pytorch#85234."""
    assert ours.run(4, _collectives_of_nothing, timeout=20) == [[(1, 0, 2)]] * 4


# ---- types --------------------------------------------------------------------------------------


def _bits(dtype: torch.dtype, count: int, *key: int) -> Tensor:
    """All bit patterns that a type has, NaNs with payloads included."""
    generator = torch.Generator().manual_seed(sum(part * 31**n for n, part in enumerate(key)))
    size = (count * dtype.itemsize,)
    bits = torch.randint(0, 256, size, dtype=torch.uint8, generator=generator)
    return (bits & 1).view(dtype) if dtype is torch.bool else bits.view(dtype)


def _move(dtype_name: str, count: int) -> list[str]:
    """Everything that only moves data."""
    dtype = DTYPES[dtype_name]
    rank, ranks = dist.get_rank(), _everybody()
    world = len(ranks)
    wrong = []

    def empty(parts: int = 1) -> Tensor:
        return torch.zeros(parts * count * dtype.itemsize, dtype=torch.uint8).view(dtype)

    def check(what: str, actual: Tensor, expected: Tensor) -> None:
        if not torch.equal(actual.view(torch.uint8), expected.view(torch.uint8)):
            wrong.append(what)

    def joined(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part.view(torch.uint8) for part in parts]).view(dtype)

    own = _bits(dtype, count, rank)
    one = own.clone() if rank == 1 else empty()
    dist.broadcast(one, 1)
    check("broadcast", one, _bits(dtype, count, 1))
    many = [empty() for _ in ranks]
    dist.all_gather(many, own)
    check("all_gather", joined(many), joined([_bits(dtype, count, r) for r in ranks]))
    whole = empty(world)
    dist.all_gather_into_tensor(whole, own)
    check("all_gather_into_tensor", whole, joined([_bits(dtype, count, r) for r in ranks]))
    many = [empty() for _ in ranks]
    dist.gather(own, many if rank == 2 else None, 2)
    if rank == 2:
        check("gather", joined(many), joined([_bits(dtype, count, r) for r in ranks]))
    given = [_bits(dtype, count, rank, r) for r in ranks]
    one = empty()
    dist.scatter(one, given if rank == 0 else None, 0)
    check("scatter", one, _bits(dtype, count, 0, rank))
    many = [empty() for _ in ranks]
    dist.all_to_all(many, given)
    check("all_to_all", joined(many), joined([_bits(dtype, count, r, rank) for r in ranks]))
    whole = empty(world)
    dist.all_to_all_single(whole, joined(given))
    check("all_to_all_single", whole, joined([_bits(dtype, count, r, rank) for r in ranks]))
    one = empty()
    wait_all([dist.isend(own, (rank + 1) % world), dist.irecv(one, (rank - 1) % world)])
    check("send", one, _bits(dtype, count, (rank - 1) % world))
    return wrong


@pytest.mark.parametrize("dtype", DTYPES)
def test_data_is_moved_bit_for_bit(ours: RankPool, dtype: str) -> None:
    """Any type, any NaN (pytorch#89197)."""
    for count in (1, 1031):
        assert ours.run(_WORLD, _move, dtype, count, timeout=20) == [[]] * _WORLD


# ---- what inputs become -------------------------------------------------------------------------


def _reduce_and_look(dtype: torch.dtype) -> list[int]:
    tensor = torch.arange(5).to(dtype) + dist.get_rank()
    before = tensor.clone()
    dist.reduce(tensor, 0)
    return [int(value) for value in tensor - before]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16], ids=str)
@pytest.mark.parametrize("algorithm", ["direct", "binomial"])
def test_reduce_changes_the_tensor_of_its_root_alone(
    ours: RankPool, algorithm: str, dtype: torch.dtype
) -> None:
    """pytorch#76527."""
    results = ours.run(4, _reduce_and_look, dtype, algorithms={"reduce": algorithm})
    assert results == [[6, 9, 12, 15, 18], [0] * 5, [0] * 5, [0] * 5]


def _overlapping() -> list[str]:
    """Outputs that share memory with inputs, though not as in-place calls do."""
    rank, ranks = dist.get_rank(), _everybody()
    world, count = len(ranks), 2000
    wrong = []

    def check(what: str, actual: Tensor, expected: Tensor) -> None:
        if not torch.equal(actual, expected):
            wrong.append(what)

    everything = [_numbers((world * count,), r) for r in ranks]
    total = sum(everything)
    assert isinstance(total, Tensor)
    mine = slice(rank * count, (rank + 1) * count)

    # The gather's input lies across two parts of its output.
    memory = _numbers((world * count,), rank)
    dist.all_gather_into_tensor(memory, memory[count // 2 : count // 2 + count])
    half = slice(count // 2, count // 2 + count)
    check("all_gather_into_tensor", memory, torch.cat([every[half] for every in everything]))

    # The output is the part that belongs to the next rank; and it lies across two parts.
    for start in ((rank + 1) % world * count, count // 2):
        memory = _numbers((world * count,), rank)
        output = memory[start : start + count]
        dist.reduce_scatter_tensor(output, memory)
        check(f"reduce_scatter_tensor to {start}", output, total[mine])
        memory = _numbers((world * count,), rank)
        output = memory[start : start + count]
        dist.scatter(output, [*memory.chunk(world)] if rank == 0 else None, 0)
        check(f"scatter to {start}", output, everything[0][mine])

    # Exchanges within one tensor.
    memory = _numbers((world * count,), rank)
    dist.all_to_all_single(memory, memory)
    check("all_to_all_single", memory, torch.cat([every[mine] for every in everything]))
    memory = _numbers((world * count,), rank)
    dist.all_to_all([*memory.chunk(world)], [*memory.chunk(world)])
    check("all_to_all", memory, torch.cat([every[mine] for every in everything]))
    return wrong


@pytest.mark.parametrize("world", [2, 3])
def test_outputs_may_lie_over_inputs(ours: RankPool, world: int) -> None:
    """With links so small that no rank has been read when its output is first written."""
    options = {"slots": 2, "slot_bytes": 512}
    assert ours.run(world, _overlapping, timeout=20, **options) == [[]] * world
