"""What the benchmark checks its results against, itself checked, and with planted faults."""

from __future__ import annotations

import numpy as np
import pytest

from hybridcomm.benchmark.buffers import Array, count_wrong, fill, input_and_output, stored_dtype
from hybridcomm.benchmark.cases import COLLECTIVES, ITEM_SIZES, Case, Form, make_case

WORLDS = (2, 3, 5, 8)


def laid_out(case: Case) -> tuple[list[Array], list[Array]]:
    """Inputs, filled, and outputs of all ranks."""
    pairs = [
        input_and_output(case, rank, lambda n: np.zeros(n, stored_dtype(case.dtype)))
        for rank in range(case.world)
    ]
    for rank, (source, _) in enumerate(pairs):
        fill(case, rank, source)
    return [source for source, _ in pairs], [result for _, result in pairs]


def all_reduced(world: int, dtype: str, reduction: str) -> tuple[Case, list[Array]]:
    """An all_reduce of 1,003 elements, done here in one line."""
    size = 1003 * ITEM_SIZES[dtype]
    case = make_case("all_reduce", dtype, reduction, size, world, Form.IN_PLACE)
    sources, results = laid_out(case)
    combine = {"min": np.minimum, "max": np.maximum}.get(reduction, np.add)
    total = sources[0].copy()
    for source in sources[1:]:
        total = combine(total, source)
    for result in results:
        result[:] = total / world if reduction == "avg" else total
    return case, results


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int32", "int8"])
@pytest.mark.parametrize("reduction", ["sum", "avg", "min", "max"])
def test_right_sums_are_right_and_one_wrong_element_is_found(
    world: int, dtype: str, reduction: str
) -> None:
    """At the ends and in the middle, on every rank; sums of whole numbers are exact."""
    case, results = all_reduced(world, dtype, reduction)
    assert [count_wrong(case, rank, result) for rank, result in enumerate(results)] == [0] * world
    for at in (0, 501, 1002):
        results[1][at] += 1
        assert count_wrong(case, 1, results[1]) == 1
        results[1][at] -= 1


@pytest.mark.parametrize("world", WORLDS)
def test_an_all_to_all_of_shuffled_parts_is_wrong(world: int) -> None:
    """Each part counts where it lies."""
    case = make_case("all_to_all", "int32", "sum", 4 * 11 * world, world, Form.OUT_OF_PLACE)
    sources, results = laid_out(case)
    for rank, result in enumerate(results):
        result[:] = np.concatenate([source[rank * 11 : rank * 11 + 11] for source in sources])
        assert count_wrong(case, rank, result) == 0
        assert count_wrong(case, rank, np.roll(result, 11)) > 0


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("form", list(Form))
def test_parts_in_place_are_parts_of_the_whole(world: int, form: Form) -> None:
    """The input of all_gather is its part of the output; reduce_scatter is the other way round."""
    gather = make_case("all_gather", "uint8", "", 7 * world, world, form)
    sources, results = laid_out(gather)
    assert [source.size for source in sources] == [7] * world
    assert [result.size for result in results] == [7 * world] * world
    expected = np.concatenate(sources)
    for rank, result in enumerate(results):
        assert np.shares_memory(sources[rank], result) == (form is Form.IN_PLACE)
        result[:] = expected
        assert count_wrong(gather, rank, result) == 0
    scatter = make_case("reduce_scatter", "int64", "sum", 8 * 7 * world, world, form)
    sources, results = laid_out(scatter)
    total = np.sum(sources, axis=0)
    for rank, result in enumerate(results):
        result[:] = total[rank * 7 : rank * 7 + 7]
        assert count_wrong(scatter, rank, result) == 0


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("size", [1, 4, 5, 1 << 16])
def test_sizes_become_whole_parts(collective: str, size: int) -> None:
    """Never more than was asked for, but for one element of each part."""
    case = make_case(collective, "float32", "sum", size, 3, COLLECTIVES[collective].forms[0])
    assert case.size <= max(size, 12)
    assert case.count * (3 if case.traits.measure.value == "parts" else 1) == case.elements


def test_bandwidths_are_those_of_nccl_tests() -> None:
    """By hand: 100 MB in 10 ms on 4 ranks."""
    for collective, bus in (("all_reduce", 15.0), ("all_gather", 7.5), ("broadcast", 10.0)):
        form = COLLECTIVES[collective].forms[-1]
        case = make_case(collective, "float32", "sum", 100_000_000, 4, form)
        assert case.algorithm_bandwidth(0.01) == pytest.approx(10.0)
        assert case.bus_bandwidth(0.01) == pytest.approx(bus)
