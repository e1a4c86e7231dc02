"""A rank of a team: `python -m hybridcomm.benchmark.rank SOCKET CALLER ...`, as teams start it."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from time import perf_counter
from typing import Protocol

from .buffers import Array, count_wrong, fill, input_and_output
from .cases import Case
from .messages import Answer, Failed, Hello, Prepare, Prepared, Request, Sample, Sampled


class Caller(Protocol):
    """One rank of whatever is measured.

    Args:
        rank: This rank.
        version: What is measured, with its version.
        communicates: Whether results mean anything.
    """

    rank: int
    version: str
    communicates: bool

    def allocate(self, elements: int, dtype: str) -> Array:
        """Gives a rank memory for a buffer, in `stored_dtype(dtype)`."""

    def call(self, case: Case, source: Array, result: Array) -> Callable[[], object]:
        """Gives what makes one call, and does as little as possible besides."""

    def barrier(self) -> None:
        """Returns when all ranks are there."""

    def close(self) -> None:
        """Ends it, together with the other ranks."""


class _Prepared:
    """A case that can be sampled."""

    def __init__(self, caller: Caller, case: Case) -> None:
        self._caller = caller
        source, result = input_and_output(
            case, caller.rank, lambda elements: caller.allocate(elements, case.dtype)
        )
        self._call = caller.call(case, source, result)
        self.wrong: int | None = None
        fill(case, caller.rank, source)
        self._call()
        if caller.communicates:
            self.wrong = count_wrong(case, caller.rank, result)
        # Zeros, which stay zeros however often they are reduced in place.
        source.fill(0)
        result.fill(0)

    def sample(self, calls: int) -> float:
        call = self._call
        self._caller.barrier()
        start = perf_counter()
        for _ in range(calls):
            call()
        return perf_counter() - start


def serve(caller: Caller, connection: Connection) -> None:
    """Does what the measuring process asks for, until it has nothing more.

    Args:
        caller: What is measured.
        connection: To the measuring process.
    """

    def answer(message: Answer) -> None:
        connection.send(message)

    answer(Hello(caller.rank, os.getpid(), caller.version))
    prepared: _Prepared | None = None
    while True:
        request: Request = connection.recv()
        if isinstance(request, Prepare):
            prepared = None  # its memory goes before there is new
            prepared = _Prepared(caller, request.case)
            answer(Prepared(prepared.wrong))
        elif isinstance(request, Sample):
            assert prepared is not None
            answer(Sampled(prepared.sample(request.calls)))
        else:
            return


def main(arguments: list[str]) -> None:
    """Runs a rank, and ends the process.

    Args:
        arguments: The socket of the measuring process, the name of a module in `callers`, and what
            its `make` takes.
    """
    socket, name, *rest = arguments
    connection = Client(socket, family="AF_UNIX")
    try:
        module = importlib.import_module(f"hybridcomm.benchmark.callers.{name}")
        caller: Caller = module.make(*rest)
        serve(caller, connection)
        caller.close()
    except EOFError:
        os._exit(1)  # the measuring process is gone
    except BaseException as error:
        summary = f"{type(error).__name__}: {error}".splitlines()[0]
        connection.send(Failed(summary, traceback.format_exc()))
        os._exit(1)
    # Not by returning: threads of a backend may outlive it, and abort at the interpreter's end.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
