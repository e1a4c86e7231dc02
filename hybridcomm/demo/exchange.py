"""What a rank runs to compare all_reduce over several backends.

Every backend has a group of its own over the same processes. For each size the samples go round:
one of each backend makes a pair (or a larger set), the order turning from one to the next, so that
whatever else the machine does falls on all of them alike. What counts is the ratio within a pair.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from hybridcomm.benchmark.ratios import Quartiles, pair_ratios

from .ranks import Place
from .settings import TableSettings


@dataclass(frozen=True)
class TableJob:
    """One all-reduce table.

    Args:
        backends: Names of the torch.distributed backends; the others are compared with the first.
        settings: Sizes and number of samples.
    """

    backends: tuple[str, ...]
    settings: TableSettings


@dataclass(frozen=True)
class Row:
    """The samples of one size.

    Args:
        size: Message size in bytes.
        samples: By backend, the seconds of one call in each pair; equally many for each backend.
    """

    size: int
    samples: dict[str, list[float]]

    def seconds(self, backend: str) -> float:
        """Median time of a call.

        Args:
            backend: Name of the backend.

        Returns:
            Seconds.
        """
        return statistics.median(self.samples[backend])

    def times_faster(self, backend: str, than: str) -> Quartiles:
        """How many times faster one backend is than another.

        Args:
            backend: Name of the backend.
            than: Name of the backend it is compared with.

        Returns:
            Quartiles of the ratios within the pairs.
        """
        return pair_ratios(self.samples[than], self.samples[backend])


def exchange(place: Place, job: TableJob, report: Callable[[Row], None]) -> object:
    """Measures all sizes on one rank; rank 0 reports.

    Args:
        place: Rank, world size and meeting point.
        job: Backends, sizes and number of samples.
        report: Called with the row of each size.

    Returns:
        What must be kept to the end of the process.
    """
    place.join(job.backends[0], threads=1)
    groups = {backend: dist.new_group(backend=backend) for backend in job.backends}
    for size in job.settings.sizes:
        data = torch.empty(size // 4)
        for backend, group in groups.items():
            _check(data, backend, group, place)
        # Zeros, which stay zeros however often they are summed.
        data.zero_()
        calls = {
            backend: _calls(data, group, job.settings.sample_seconds)
            for backend, group in groups.items()
        }
        samples: dict[str, list[float]] = {backend: [] for backend in groups}
        for pair in range(job.settings.pairs):
            turn = pair % len(groups)
            for backend in (*job.backends[turn:], *job.backends[:turn]):
                samples[backend].append(_sample(data, groups[backend], calls[backend]))
        if place.rank == 0:
            report(Row(size, samples))
    dist.destroy_process_group()
    return groups


def _sample(data: Tensor, group: dist.ProcessGroup | None, calls: int) -> float:
    dist.barrier(group)
    start = perf_counter()
    for _ in range(calls):
        dist.all_reduce(data, group=group)
    return (perf_counter() - start) / calls


def _calls(data: Tensor, group: dist.ProcessGroup | None, seconds: float) -> int:
    """How many calls take about so long: what rank 0 finds, so that all ranks make as many."""
    calls = torch.tensor(max(1, round(seconds / _sample(data, group, calls=3))))
    dist.broadcast(calls, src=0, group=group)
    return int(calls.item())


def _check(data: Tensor, backend: str, group: dist.ProcessGroup | None, place: Place) -> None:
    """Raises if a sum is wrong: the time of a wrong result means nothing. Warms up as well."""
    pattern = torch.arange(data.numel()).remainder_(1021).add_(1).float()
    torch.mul(pattern, place.rank + 1, out=data)
    dist.all_reduce(data, group=group)
    ranks_together = place.world_size * (place.world_size + 1) // 2
    if not torch.equal(data, pattern.mul_(ranks_together)):
        raise RuntimeError(f"{backend}: all_reduce of {data.numel()} fp32 gave a wrong sum")
