"""The all-reduce table: what is sampled, how pairs are compared, and that a wrong sum is seen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hybridcomm.demo import exchange as module
from hybridcomm.demo.exchange import Row, TableJob, exchange
from hybridcomm.demo.ranks import Place, Ranks
from hybridcomm.demo.settings import TableSettings
from tests.demo.backends import BACKENDS


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_table_of_two_backends(backend: str) -> None:
    """Each size has a sample of each backend in each pair."""
    settings = TableSettings(sizes=(4, 4096), pairs=3, sample_seconds=0.001)
    names = ("gloo",) if backend == "gloo" else ("gloo", backend)
    ranks: Ranks[TableJob, Row] = Ranks(exchange, 2, TableJob(names, settings))
    with ranks:
        rows = list(ranks)
    assert [row.size for row in rows] == [4, 4096]
    for row in rows:
        assert list(row.samples) == list(names)
        for samples in row.samples.values():
            assert len(samples) == 3
            assert all(seconds > 0 for seconds in samples)


def test_ratios_are_those_within_pairs() -> None:
    """A machine that slows down half-way changes the times but not the ratios."""
    row = Row(4, {"gloo": [1.0, 1.0, 30.0, 40.0, 30.0], "ours": [0.5, 0.25, 10.0, 10.0, 15.0]})
    assert row.times_faster("ours", than="gloo") == (2.0, 3.0, 4.0)
    assert row.seconds("gloo") == 30.0
    assert str(row.times_faster("ours", than="gloo")) == "3 × (2 – 4)"
    assert Row(4, {"a": [6.0], "b": [2.0]}).times_faster("b", than="a") == (3.0, 3.0, 3.0)


def test_a_planted_wrong_sum_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that loses one element of many is not timed."""

    def all_reduce(data: torch.Tensor, group: object = None) -> None:
        data.mul_(3)
        if planted:
            data[-1] += 1

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    place = Place(0, 2, tmp_path)
    planted = False
    module._check(torch.empty(1000), "gloo", None, place)
    planted = True
    with pytest.raises(RuntimeError, match="gloo: all_reduce of 1000 fp32 gave a wrong sum"):
        module._check(torch.empty(1000), "gloo", None, place)
