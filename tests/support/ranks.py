"""A pool of rank processes: runs a function on N ranks and brings back what happened on each.

    with RankPool("hybridcomm") as pool:
        sums = pool.run(4, sum_of_ranks, timeout=30)

`sum_of_ranks` is a module-level function that finds the default process group made. Processes are
forked by the nursery, used again for the next call, and replaced after a call that failed on them.
Whatever happens, none outlives the pool: not a stuck call, not the death of the pool's own process.
"""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import Pipe, connection
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support import leftovers
from tests.support.worker import Meeting, Raised, Report, Returned, Task

_ROOT = Path(__file__).resolve().parents[2]
# When one rank fails, others often wait for it in vain; they are given this long to finish.
_SETTLE_SECONDS = 3.0
# How long a stuck rank gets to write its stacks.
_STACKS_SECONDS = 1.0


class RankFailure(AssertionError):
    """A call did not return on every rank; the message says what happened on which."""


@dataclass(frozen=True)
class Outcome:
    """How a call ended on one rank.

    Args:
        value: What the function returned.
        failure: Why there is no value: a traceback, or how the process ended, or the stacks of a
            process that was ended because it was stuck. None if the function returned.
        status: Exit status of a process that ended by itself or by `Call.kill`; negative for a
            signal.
    """

    value: Any = None
    failure: str | None = None
    status: int | None = None


class _Nursery:
    """The process that forks ranks; see nursery.py."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = os.memfd_create("nursery log")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.nursery", str(theirs.fileno()), str(os.getpid())],
            cwd=_ROOT,
            # Numeric libraries would start threads at import, and a fork loses threads.
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is for the test process alone
        )
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: str, *descriptors: int) -> str:
        try:
            socket.send_fds(self._control, [request.encode()], descriptors)
            answer = self._control.recv(4096)
        except OSError:
            answer = b""
        if not answer:
            raise RuntimeError(f"the nursery is gone: {_read(self._log, 0)}")
        return answer.decode()

    def close(self) -> None:
        self._control.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._log)


class _Worker:
    """One rank's process, seen from the pool.

    It has the same rank in every call: torch remembers what a process once computed for a mesh by
    the mesh's ranks alone, not by which of them the process was.
    """

    def __init__(self, nursery: _Nursery, rank: int) -> None:
        self._nursery = nursery
        self.rank = rank
        self.log = os.memfd_create("rank log")  # its stdout and stderr
        self.connection, theirs = Pipe()
        self.pid = int(nursery.ask("fork", theirs.fileno(), self.log))
        theirs.close()
        # The nursery reaps only on request, so until then the pid is certain to be this process.
        self.pidfd = os.pidfd_open(self.pid)
        self.status: int | None = None

    def signal(self, number: int) -> None:
        if self.status is None:
            signal.pidfd_send_signal(self.pidfd, number)

    def stacks(self) -> str:
        """Where every thread of the process stands."""
        start = os.fstat(self.log).st_size
        self.signal(signal.SIGUSR1)
        deadline = time.monotonic() + _STACKS_SECONDS
        while time.monotonic() < deadline and os.fstat(self.log).st_size == start:
            time.sleep(0.02)
        time.sleep(0.1)  # the rest of the text
        return f"{leftovers.thread_states(self.pid)}\n{_read(self.log, start)}"

    def end(self) -> int:
        """Kills it, if it still lives, and takes its exit status."""
        if self.status is None:
            self.signal(signal.SIGKILL)
            self.status = int(self._nursery.ask(f"reap {self.pid}"))
            self.connection.close()
            os.close(self.pidfd)
        return self.status


class Call:
    """A function under way on `world` ranks. Made by `RankPool.start`."""

    def __init__(self, pool: RankPool, workers: list[_Worker], name: str) -> None:
        self._pool = pool
        self._workers = workers
        self._name = name
        self._log_starts = [os.fstat(worker.log).st_size for worker in workers]
        self._outcomes: dict[int, Outcome] = {}
        self._reports: list[tuple[int, Any]] = []
        self._disturbed: set[int] = set()  # ranks that were sent a signal

    @property
    def pids(self) -> list[int]:
        """The process ids, in rank order."""
        return [worker.pid for worker in self._workers]

    def kill(self, rank: int, number: int = signal.SIGKILL) -> float:
        """Sends a signal to a rank.

        Args:
            rank: Which.
            number: The signal.

        Returns:
            The time at which it was sent, by `time.monotonic()`, which all processes share.
        """
        sent_at = time.monotonic()
        self._disturbed.add(rank)
        self._workers[rank].signal(number)
        return sent_at

    def next_report(self, timeout: float = 30.0) -> tuple[int, Any]:
        """Waits until a rank calls `worker.report`.

        Args:
            timeout: Seconds.

        Returns:
            The rank, and what it said.

        Raises:
            RankFailure: Nobody said anything in time, or all ranks are through.
        """
        deadline = time.monotonic() + timeout
        while not self._reports:
            if not self._take_messages(deadline):
                outcomes = self.outcomes(0)
                raise RankFailure(_describe(f"{self._name}: no report", outcomes))
        return self._reports.pop(0)

    def outcomes(self, timeout: float = 60.0, settle: float | None = None) -> list[Outcome]:
        """Waits for all ranks and gives the processes back to the pool.

        Args:
            timeout: Seconds after which ranks that are not through count as stuck and are ended.
            settle: Seconds that remain from the first failure on; None: all of the time-out.

        Returns:
            One outcome per rank.
        """
        deadline = time.monotonic() + timeout
        failed = False
        while self._take_messages(deadline):
            if settle is not None and not failed:
                failed = any(outcome.failure for outcome in self._outcomes.values())
                if failed:
                    deadline = min(deadline, time.monotonic() + settle)
        for rank, worker in enumerate(self._workers):
            if rank not in self._outcomes:
                failure = f"ended because it was stuck in {self._name}\n{worker.stacks()}"
                self._outcomes[rank] = Outcome(failure=failure)
        for rank, worker in enumerate(self._workers):
            fine = self._outcomes[rank].failure is None and rank not in self._disturbed
            self._pool.take_back(worker, reusable=fine and worker.status is None)
        return [self._outcomes[rank] for rank in range(len(self._workers))]

    def _take_messages(self, deadline: float) -> bool:
        """Waits for and notes what comes. False: all are through, or the deadline has passed."""
        waiting = {
            self._workers[rank].connection: rank
            for rank in range(len(self._workers))
            if rank not in self._outcomes
        }
        if not waiting:
            return False
        # A process's end is seen by its pidfd: a child it forked may hold the connection open.
        ends = {self._workers[rank].pidfd: rank for rank in waiting.values()}
        patience = max(0.0, deadline - time.monotonic())
        ready = connection.wait([*waiting, *ends], patience)
        for end in ready:
            if isinstance(end, connection.Connection):
                self._receive(waiting[end])
        for end in ready:
            if isinstance(end, int):
                self._note_death(ends[end])
        return bool(ready)

    def _receive(self, rank: int) -> bool:
        """Notes one message. False: the process has closed its end, because it is ending."""
        try:
            message = pickle.loads(self._workers[rank].connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            return False
        if isinstance(message, Report):
            self._reports.append((rank, message.value))
        elif isinstance(message, Returned):
            self._outcomes[rank] = Outcome(value=message.value)
        elif isinstance(message, Raised):
            self._outcomes[rank] = Outcome(failure=message.text + self._log(rank))
        return True

    def _note_death(self, rank: int) -> None:
        worker = self._workers[rank]
        # What it said before it died counts.
        while rank not in self._outcomes and worker.connection.poll() and self._receive(rank):
            pass
        status = worker.end()
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        failure = f"its process ended with {how}\n{self._log(rank)}"
        self._outcomes.setdefault(rank, Outcome(failure=failure, status=status))

    def _log(self, rank: int) -> str:
        return _read(self._workers[rank].log, self._log_starts[rank])


class RankPool:
    """Processes that act as ranks. A context manager.

    Args:
        backend: Backend of the process groups it makes.
        most: Largest number of ranks that may be under way together.
        implementation: Which implementation of hybridcomm they are, "compiled" or "reference".
    """

    def __init__(
        self, backend: str = "hybridcomm", most: int = 8, implementation: str = "compiled"
    ) -> None:
        from torch._C._distributed_c10d import TCPStore

        self.backend = backend
        self.implementation = implementation
        self._most = most
        self._before = leftovers.system()
        self._nursery = _Nursery()
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []
        self._calls = itertools.count()

    def run(
        self,
        world: int,
        function: Callable[..., Any],
        *arguments: Any,
        timeout: float = 60.0,
        **how: Any,
    ) -> list[Any]:
        """Calls a function on every rank and waits for all.

        Args:
            world: Number of ranks.
            function: A module-level function.
            *arguments: What it is called with, the same on every rank.
            timeout: Seconds until a rank that is not through is ended.
            **how: As in `start`.

        Returns:
            What it returned on each rank.

        Raises:
            RankFailure: It raised, or its process ended, or was stuck, on some rank.
        """
        call = self.start(world, function, *arguments, **how)
        outcomes = call.outcomes(timeout, settle=_SETTLE_SECONDS)
        if any(outcome.failure for outcome in outcomes):
            raise RankFailure(_describe(f"{function.__name__} on {world} ranks", outcomes))
        return [outcome.value for outcome in outcomes]

    def start(
        self,
        world: int,
        function: Callable[..., Any],
        *arguments: Any,
        group: bool = True,
        backend: str | None = None,
        group_timeout: float = 30.0,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Call:
        """Calls a function on every rank, without waiting.

        Args:
            world: Number of ranks.
            function: A module-level function.
            *arguments: What it is called with, the same on every rank.
            group: Whether the default process group exists when the function is called and is
                destroyed when it returns. A function can make it itself with `worker.regroup`.
            backend: Backend of the process group; None for the pool's.
            group_timeout: The group's time-out in seconds.
            environment: Environment variables of the ranks during the call.
            **options: Fields of `hybridcomm.Options`.

        Returns:
            The call under way.
        """
        if len(self._busy) + world > self._most:
            raise ValueError(f"world: {world} ranks are more than the pool's {self._most}")
        meeting = Meeting(
            backend or self.backend,
            self._store.port,
            f"call {next(self._calls)}",
            group_timeout,
            options,
        )
        messages = []
        for rank in range(world):
            variables = {"HYBRIDCOMM_IMPL": self.implementation, **(environment or {})}
            task = Task(function, arguments, rank, world, meeting, group, variables)
            # In two layers: the outer one carries what the inner one needs to be unpickled.
            messages.append(pickle.dumps((sys.path, pickle.dumps(task))))
        workers = [self._worker_for(rank) for rank in range(world)]
        self._busy += workers
        call = Call(self, workers, function.__name__)
        for worker, message in zip(workers, messages, strict=True):
            worker.connection.send_bytes(message)
        return call

    def _worker_for(self, rank: int) -> _Worker:
        for worker in self._idle:
            if worker.rank == rank:
                self._idle.remove(worker)
                return worker
        return _Worker(self._nursery, rank)

    def close(self) -> list[str]:
        """Ends all processes.

        Returns:
            What they left behind, one line each: descendants that live on, files in /dev/shm,
            abstract sockets. Empty if all is well.
        """
        for worker in (*self._idle, *self._busy):
            worker.end()
            os.close(worker.log)
        remaining = self._nursery.ask("remaining")
        found = [] if remaining == "none" else [f"process {name}" for name in remaining.split(", ")]
        self._nursery.close()
        del self._store
        return found + leftovers.new_in_system(self._before)

    def __enter__(self) -> RankPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        found = self.close()
        if found and error is None:
            raise RankFailure("the ranks left behind: " + "; ".join(found))

    def take_back(self, worker: _Worker, *, reusable: bool) -> None:
        """Ends a worker's part in a call.

        Args:
            worker: Which.
            reusable: Whether another call may use the process; otherwise it is ended.
        """
        self._busy.remove(worker)
        if reusable:
            self._idle.append(worker)
        else:
            worker.end()
            os.close(worker.log)


def _read(descriptor: int, start: int) -> str:
    size = os.fstat(descriptor).st_size - start
    return os.pread(descriptor, size, start).decode(errors="replace").strip()


def _describe(title: str, outcomes: list[Outcome]) -> str:
    lines = [title]
    for rank, outcome in enumerate(outcomes):
        if outcome.failure:
            lines.append(f"---- rank {rank} ----\n{outcome.failure.rstrip()}")
    fine = [str(rank) for rank, outcome in enumerate(outcomes) if not outcome.failure]
    if fine:
        lines.append(f"---- returned on rank {', '.join(fine)} ----")
    return "\n".join(lines)
