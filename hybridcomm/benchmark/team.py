"""What is sampled: the processes of one peer, as the measuring process sees them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar

from .cases import Case
from .messages import Answer, Failed, Hello, Prepare, Prepared, Request, Sample, Sampled, Stop

_START_SECONDS = 180.0  # many ranks that import torch on few cores take their time
_ANSWER_SECONDS = 300.0
_END_SECONDS = 5.0
_POLL_SECONDS = 0.1
# A rank that dies makes the others fail too: so long they are listened to, to name the first.
_SETTLE_SECONDS = 1.0
_LOG_BYTES = 2000
CHECKOUT = Path(__file__).resolve().parents[2]

_A = TypeVar("_A", bound=Answer)


class TeamError(RuntimeError):
    """A peer could not be measured; the message names it, and the rank, and says why."""


class Team(Protocol):
    """Whatever can be sampled beside others. A context manager; entering it starts it."""

    def __enter__(self) -> Team:
        """Starts it."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends it, whatever state it is in."""

    @property
    def version(self) -> str:
        """What is measured, with its version."""

    def prepare(self, case: Case) -> int | None:
        """Runs a case once; returns how many elements were wrong, None if they mean nothing."""

    def sample(self, calls: int) -> float:
        """Makes calls of the case; returns the seconds of one, on the slowest rank."""


@dataclass(frozen=True)
class Start:
    """How the processes of a team are started.

    Args:
        commands: The commands: one for each rank, or a single one that starts them all.
        environment: What to add to the environment.
    """

    commands: Sequence[Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)


class RankTeam:
    """Ranks that run `hybridcomm.benchmark.rank`.

    Args:
        name: The peer's name, for errors.
        world: Number of ranks.
        start: Called with a folder of the team's own and the socket that its ranks connect to.

    Raises:
        TeamError: From every method but `__exit__`: a rank failed, died or does not answer.
    """

    def __init__(self, name: str, world: int, start: Callable[[Path, str], Start]) -> None:
        self._name = name
        self._world = world
        self._start = start
        self._folder = Path()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ranks: dict[connection.Connection, int] = {}
        self._pids: dict[int, int] = {}  # by rank
        self._version = ""
        self._doing = "starting"

    @property
    def version(self) -> str:
        """What is measured, with its version; known once it has been started."""
        return self._version

    def __enter__(self) -> RankTeam:
        self._folder = Path(tempfile.mkdtemp(prefix="hybridcomm-bench-"))
        try:
            self._begin()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._stop()
        self._end()

    def prepare(self, case: Case) -> int | None:
        """Runs a case once and checks it.

        Args:
            case: The case.

        Returns:
            Wrong elements on all ranks together; None if they mean nothing.
        """
        self._doing = str(case)
        counts = [answer.wrong for answer in self._ask(Prepare(case), Prepared)]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    def sample(self, calls: int) -> float:
        """Takes the time of calls.

        Args:
            calls: How many.

        Returns:
            Seconds of one, on the slowest rank.
        """
        return max(answer.seconds for answer in self._ask(Sample(calls), Sampled)) / calls

    # ---- start and end ---------------------------------------------------------------------------

    def _begin(self) -> None:
        path = str(self._folder / "socket")
        start = self._start(self._folder, path)
        # Ranks of other environments find this package beside their own ones.
        environment = {**os.environ, **start.environment, "PYTHONPATH": str(CHECKOUT)}
        with socket.socket(socket.AF_UNIX) as server, (self._folder / "log").open("wb") as log:
            server.bind(path)
            server.listen(self._world)
            server.settimeout(_POLL_SECONDS)
            for command in start.commands:
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C at a terminal is for the measuring process
                )
                self._processes.append(process)
            self._meet(server)

    def _meet(self, server: socket.socket) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while len(self._ranks) < self._world:
            try:
                self._ranks[connection.Connection(server.accept()[0].detach())] = -1
                continue
            except TimeoutError:
                pass
            if any(process.poll() for process in self._processes):
                break  # what its ranks have said comes first
            if time.monotonic() > deadline:
                missing = self._world - len(self._ranks)
                raise TeamError(f"{self._name}: {missing} ranks have not started{self._log()}")
        hellos = self._hear(Hello, _START_SECONDS)
        for rank, hello in hellos.items():
            self._ranks[rank] = hello.rank
        self._pids = {hello.rank: hello.pid for hello in hellos.values()}
        if len(hellos) < self._world:
            statuses = [process.poll() for process in self._processes]
            status = next(status for status in statuses if status)
            raise TeamError(f"{self._name}: a process ended with status {status}{self._log()}")
        self._version = next(iter(hellos.values())).version

    def _stop(self) -> None:
        with contextlib.suppress(OSError):
            for rank in self._ranks:
                rank.send(Stop())
        deadline = time.monotonic() + _END_SECONDS
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0))

    def _end(self) -> None:
        for rank in self._ranks:
            rank.close()
        running = [process for process in self._processes if process.poll() is None]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if running:
            # mpiexec may have put its ranks elsewhere. While it runs, they are its own to reap.
            for pid in self._pids.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    # ---- questions and answers -------------------------------------------------------------------

    def _ask(self, request: Request, kind: type[_A]) -> list[_A]:
        for connected, rank in self._ranks.items():
            try:
                connected.send(request)
            except OSError:
                self._blame({rank: "has died"})
        return list(self._hear(kind, _ANSWER_SECONDS).values())

    def _hear(self, kind: type[_A], patience: float) -> dict[connection.Connection, _A]:
        """One answer from each rank."""
        answers: dict[connection.Connection, _A] = {}
        failed: dict[int, str] = {}
        pending = set(self._ranks)
        deadline = time.monotonic() + patience
        while pending:
            ready = connection.wait(list(pending), max(deadline - time.monotonic(), 0))
            if not ready:
                break
            for connected in ready:
                assert isinstance(connected, connection.Connection)
                pending.remove(connected)
                rank = self._ranks[connected]
                try:
                    answer: Answer = connected.recv()
                except (EOFError, ConnectionResetError):
                    failed.setdefault(rank, "has died")
                    answer = Failed("", "")
                if isinstance(answer, kind):
                    answers[connected] = answer
                elif isinstance(answer, Failed) and answer.details:
                    failed[rank] = f"failed: {answer.details.rstrip()}"
                if failed:
                    deadline = min(deadline, time.monotonic() + _SETTLE_SECONDS)
        if pending and not failed:
            silent = ", ".join(str(self._ranks[connected]) for connected in pending)
            failed[self._ranks[pending.pop()]] = f"and all of {silent}: no answer in {patience:g} s"
        if failed:
            self._blame(failed)
        return answers

    def _blame(self, failed: Mapping[int, str]) -> None:
        """Names the cause: a rank that died before one that failed."""
        dead = [rank for rank, what in failed.items() if what == "has died"]
        first = dead[0] if dead else next(iter(failed))
        who = f"rank {first}" if first >= 0 else "a rank"
        raise TeamError(f"{self._name}: {self._doing}: {who} {failed[first]}{self._log()}")

    def _log(self) -> str:
        """The end of what the processes have written, as more lines of a message."""
        try:
            text = (self._folder / "log").read_bytes()[-_LOG_BYTES:].decode(errors="replace")
        except OSError:
            return ""
        return f"\n{text.rstrip()}" if text.strip() else ""
