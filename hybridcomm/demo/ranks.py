"""Starts the ranks of a run as processes, hands on their reports, and ends them together.

Whatever happens (the run is over, Ctrl-C, a rank fails or is killed, the parent itself dies), no
rank outlives the run.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Generic, TypeVar

import hybridcomm

Job = TypeVar("Job")
Report = TypeVar("Report")

# Survivors notice a death at once and fail too. This long after the first failure the others are
# listened to, so that the rank that died is named and not the one that complained first.
_SETTLE_SECONDS = 1.0
_GROUP_TIMEOUT = timedelta(minutes=2)


class RankError(RuntimeError):
    """A rank failed or was killed; the message names it and says what the others saw."""


@dataclass(frozen=True)
class Place:
    """Where a process stands in its run.

    Args:
        rank: This process's rank.
        world_size: Number of ranks.
        store: File through which the ranks find each other.
    """

    rank: int
    world_size: int
    store: Path

    def join(self, backend: str, threads: int) -> None:
        """Makes the default process group.

        Args:
            backend: Name of the torch.distributed backend.
            threads: Threads torch computes with in this rank.
        """
        # Only now: starting and ending processes needs no torch.
        import torch
        import torch.distributed as dist

        torch.set_num_threads(threads)
        hybridcomm.register()  # torch does this by itself, unless its autoload is switched off
        dist.init_process_group(
            backend,
            init_method=f"file://{self.store}",
            rank=self.rank,
            world_size=self.world_size,
            timeout=_GROUP_TIMEOUT,
        )


@dataclass(frozen=True)
class _Failure:
    """A rank's last words: the exception in one line and the whole traceback."""

    summary: str
    details: str


class Ranks(Generic[Job, Report]):
    """The processes of one run. Use as a context manager and iterate over the reports.

    Args:
        work: What a rank runs: `work(place, job, report)`. A module-level function, since the
            ranks are spawned and import it. What it returns is kept to the rank's end.
        world_size: Number of ranks.
        job: What to do; pickled, and small, for the parent waits until a rank has read it.
    """

    def __init__(
        self,
        work: Callable[[Place, Job, Callable[[Report], None]], object],
        world_size: int,
        job: Job,
    ) -> None:
        self._work = work
        self._world_size = world_size
        self._job = job
        self._processes: list[SpawnProcess] = []
        self._readers: list[connection.Connection] = []
        self._folder = Path()

    @property
    def pids(self) -> list[int]:
        """The process ids, in rank order."""
        return [process.pid for process in self._processes if process.pid is not None]

    def __enter__(self) -> Ranks[Job, Report]:
        self._folder = Path(tempfile.mkdtemp(prefix="hybridcomm-demo-"))
        # The ranks inherit a blocked SIGINT: a terminal sends Ctrl-C to the whole process group,
        # and the parent alone is to answer it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for rank in range(self._world_size):
                self._start(Place(rank, self._world_size, self._folder / "store"))
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        except BaseException:
            self._end()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def __iter__(self) -> Iterator[Report]:
        """Yields the reports of all ranks as they come, until every rank has ended well.

        Yields:
            What the ranks passed to `report`.

        Raises:
            RankError: A rank failed or was killed.
        """
        failures: dict[int, _Failure] = {}
        deadline: float | None = None
        reading = dict(zip(self._readers, range(self._world_size), strict=True))
        living = {process.sentinel: rank for rank, process in enumerate(self._processes)}
        while reading or living:
            patience = None if deadline is None else deadline - time.monotonic()
            if patience is not None and patience <= 0:
                break
            for item in connection.wait([*reading, *living], patience):
                if isinstance(item, connection.Connection):
                    try:
                        message = item.recv()
                    except (EOFError, ConnectionResetError):
                        del reading[item]
                        continue
                    if isinstance(message, _Failure):
                        failures[reading[item]] = message
                    else:
                        yield message
                elif isinstance(item, int):
                    self._processes[living.pop(item)].join()
            if deadline is None and (failures or self._dead()):
                deadline = time.monotonic() + _SETTLE_SECONDS
        if failures or self._dead():
            raise RankError(self._blame(failures))

    def _start(self, place: Place) -> None:
        spawn = multiprocessing.get_context("spawn")
        reader, writer = spawn.Pipe(duplex=False)
        process = spawn.Process(
            target=_rank_main,
            args=(self._work, place, self._job, writer),
            name=f"rank {place.rank}",
            daemon=True,
        )
        process.start()
        writer.close()  # so that the rank's end of the pipe is the only one, and its death is EOF
        self._processes.append(process)
        self._readers.append(reader)

    def _end(self) -> None:
        for process in self._processes:
            process.kill()  # a rank has nothing to put in order: what it holds goes with it
        for process in self._processes:
            process.join()
        for reader in self._readers:
            reader.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _dead(self) -> dict[int, int]:
        """Exit codes of the ranks that ended badly, by rank; negative is a signal's number."""
        codes = ((rank, process.exitcode) for rank, process in enumerate(self._processes))
        return {rank: code for rank, code in codes if code}

    def _blame(self, failures: dict[int, _Failure]) -> str:
        """Names the cause: a killed rank before one that failed, the first failure before later."""
        dead = self._dead()
        killed = [rank for rank, code in dead.items() if code < 0]
        first = killed[0] if killed else next(iter(failures), next(iter(dead), 0))
        if first in failures:
            lines = [f"rank {first} failed: {failures[first].details.rstrip()}"]
        elif dead[first] < 0:
            lines = [f"rank {first} was killed by {signal.Signals(-dead[first]).name}"]
        else:
            lines = [f"rank {first} ended with exit status {dead[first]}"]
        for rank, failure in failures.items():
            if rank != first:
                lines.append(f"rank {rank} then saw: {failure.summary}")
        return "\n".join(lines)


def _rank_main(
    work: Callable[[Place, Job, Callable[[Report], None]], object],
    place: Place,
    job: Job,
    writer: connection.Connection,
) -> None:
    """Runs one rank and reports how it failed, if it does. Ends the process."""
    threading.Thread(target=_end_with_parent, args=(place,), daemon=True).start()
    try:
        # Kept, because the last reference to a group of Gloo's joins its threads with the GIL held,
        # which one of them may be waiting for to drop the last tensor (torch 2.13).
        _kept = work(place, job, writer.send)
    except BaseException as error:
        summary = f"{type(error).__name__}: {error}".splitlines()[0]
        writer.send(_Failure(summary, traceback.format_exc()))
        os._exit(1)
    # Not by returning: such a thread that finds the interpreter shutting down aborts the process.
    os._exit(0)


def _end_with_parent(place: Place) -> None:
    """Ends this process when its parent is gone, which cannot end it or clean up any more."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        shutil.rmtree(place.store.parent, ignore_errors=True)
        os._exit(1)
