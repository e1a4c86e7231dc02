"""The C++ driver beside the others: collectives without Python, and plain copying."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType

import torch

import hybridcomm
from hybridcomm.programs.layout import Layout, collective_named
from hybridcomm.programs.registry import collectives, compile_flat
from hybridcomm.reference.group.choice import choose_algorithm, choose_shape
from hybridcomm.reference.numerics import RedOp

from .cases import ITEM_SIZES, Case, Form, Measure
from .team import CHECKOUT, TeamError

_DRIVER = CHECKOUT / "build" / "driver" / "hybridcomm-driver"
_ANSWER_SECONDS = 300.0
_END_SECONDS = 5.0
# In the driver input and output of these are one tensor; those of the others are two.
_IN_PLACE = ("all_reduce", "broadcast", "reduce")


def driver_is_built() -> bool:
    """Whether there is a driver to start."""
    return _DRIVER.exists()


class _PacedTeam(ABC):
    """One process of the driver for each case, in a mode that samples when asked to.

    Args:
        name: The peer's name, for errors.
        world: Number of ranks.

    Raises:
        TeamError: From `prepare` and `sample`: the driver failed, died or does not answer.
    """

    version: str

    def __init__(self, name: str, world: int) -> None:
        self._name = name
        self._world = world
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._case = ""
        self._heard = b""

    def __enter__(self) -> _PacedTeam:
        self._folder = Path(tempfile.mkdtemp(prefix="hybridcomm-bench-"))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def prepare(self, case: Case) -> int | None:
        """Starts the driver for a case, which runs it once and checks it.

        Args:
            case: The case.

        Returns:
            0, as the driver ends where an element is wrong.
        """
        self._end()
        self._case = str(case)
        self._heard = b""
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(_DRIVER), *self._words(case)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C at a terminal is for the measuring process
            )
        if self._line() != "ready":
            raise self._failure("does not speak as a driver")
        return 0

    def sample(self, calls: int) -> float:
        """Takes the time of calls.

        Args:
            calls: How many.

        Returns:
            Seconds of one, on the slowest rank.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{calls}\n".encode())
            self._process.stdin.flush()
        except OSError:
            raise self._failure("has ended") from None
        return float(self._line())

    @abstractmethod
    def _words(self, case: Case) -> list[str]:
        """Arguments of the driver."""

    def _line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        deadline = time.monotonic() + _ANSWER_SECONDS
        while b"\n" not in self._heard:
            if not select.select([output], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise self._failure(f"does not answer in {_ANSWER_SECONDS:g} s")
            part = os.read(output, 4096)
            if not part:
                raise self._failure("has ended")
            self._heard += part
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def _failure(self, what: str) -> TeamError:
        log = (self._folder / "log").read_text(errors="replace").rstrip()
        return TeamError("\n".join(filter(None, [f"{self._name}: {self._case}: {what}", log])))

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            process.stdin.close()
            process.wait(_END_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


class DriverTeam(_PacedTeam):
    """Ranks without Python, which run the program that a process group would run.

    Args:
        name: The peer's name, for errors.
        world: Number of ranks.
        algorithm: The algorithm of the collectives that have it; "" for the usual choice.
    """

    def __init__(self, name: str, world: int, algorithm: str) -> None:
        super().__init__(name, world)
        self._algorithm = algorithm
        self.version = f"hybridcomm {hybridcomm.__version__}, without Python"

    @staticmethod
    def refuses(case: Case) -> str:
        """Whether the driver cannot do what a case asks for.

        Args:
            case: The case.

        Returns:
            Why not; "" if it can.
        """
        if case.collective not in collectives():
            return "the driver times programs, not messages"
        if case.reduction == "avg":
            return "the driver checks no averages"
        one_tensor = case.collective in _IN_PLACE
        if case.traits.measure is not Measure.NOTHING and one_tensor != (
            case.form is Form.IN_PLACE
        ):
            return f"the driver's {case.collective} is only {_other(case.form).value}"
        return ""

    def _words(self, case: Case) -> list[str]:
        kind = collective_named(case.collective)
        op = RedOp[case.reduction.upper()] if case.reduction else RedOp.SUM
        dtype: torch.dtype = getattr(torch, case.dtype)
        preferred = {case.collective: self._algorithm} if self._algorithm else {}
        algorithm = choose_algorithm(kind, dtype, op, case.world, preferred)
        root = 0 if Layout(kind, 1, 1).rooted else None
        prefix = self._folder / f"{case.collective}.{algorithm}"
        for rank in range(case.world):
            flat = compile_flat(case.collective, algorithm, case.world, rank, root)
            Path(f"{prefix}.rank{rank}").write_bytes(flat)
        shape = choose_shape(case.world, None, None, None)
        words = ["pace", "--world", case.world, "--programs", prefix, "--count", case.count]
        words += ["--dtype", case.dtype, "--op", op.name, "--slots", shape.slots]
        return [str(word) for word in (*words, "--slot-bytes", shape.slot_bytes)]


class CopyTeam(_PacedTeam):
    """Processes that copy at the same time, each as much as a rank must read and write at least.

    Args:
        name: The peer's name, for errors.
        world: Number of processes.
        stores: "plain" for the C library's copying, "nontemporal" for stores past the caches.
    """

    def __init__(self, name: str, world: int, stores: str) -> None:
        super().__init__(name, world)
        self._stores = stores
        self.version = f"copying, {stores} stores"

    @staticmethod
    def refuses(case: Case) -> str:
        """Whether there is nothing to copy.

        Args:
            case: The case.

        Returns:
            Why not; "" if there is.
        """
        if case.traits.messages > 1:
            return "of one message at a time nothing is copied together"
        return "" if case.size else "nothing to copy"

    def _words(self, case: Case) -> list[str]:
        count = str(bytes_to_copy(case))
        return ["copy", "--world", str(case.world), "--count", count, "--stores", self._stores]


def bytes_to_copy(case: Case) -> int:
    """What each rank would copy if the least possible were shared equally.

    All inputs are read once and all outputs written once; a copy reads and writes, so it is half
    of both. An in-place all_reduce of N bytes reads and writes N on every rank, so each copies N.

    Args:
        case: The case.

    Returns:
        Bytes; at least 1.
    """
    item = ITEM_SIZES[case.dtype]
    world, rooted = case.world, case.collective in ("broadcast", "scatter")
    inputs = case.input_elements * (1 if rooted else world)
    outputs = case.output_elements * (1 if case.collective in ("reduce", "gather") else world)
    if case.collective == "broadcast":
        outputs -= case.output_elements  # the root has it
    return max(item * (inputs + outputs) // (2 * world), 1)


def _other(form: Form) -> Form:
    return Form.IN_PLACE if form is Form.OUT_OF_PLACE else Form.OUT_OF_PLACE
