"""What a rank's process does: takes tasks from its connection and answers each with its outcome."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore


@dataclass(frozen=True)
class Meeting:
    """How the ranks of a call meet: what `init_process_group` is given.

    Args:
        backend: Name of the torch.distributed backend.
        store_port: Port of the pool's TCPStore on 127.0.0.1.
        prefix: Where in the store this call's keys lie.
        timeout: The group's time-out in seconds.
        options: Keyword arguments of `hybridcomm.Options`; empty for another backend.
    """

    backend: str
    store_port: int
    prefix: str
    timeout: float
    options: Mapping[str, Any] = field(default_factory=dict)

    def join(self, rank: int, world: int) -> None:
        """Makes the default process group, named by `backend`.

        Args:
            rank: This process's rank.
            world: Number of ranks.
        """
        import torch.distributed as dist
        from torch._C._distributed_c10d import PrefixStore

        pg_options = None
        if self.backend == "hybridcomm":
            import hybridcomm

            hybridcomm.register()  # does nothing where the entry point has done it
            pg_options = hybridcomm.Options(**self.options)
        dist.init_process_group(
            self.backend,
            store=PrefixStore(self.prefix, _connected_store(self.store_port)),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=self.timeout),
            pg_options=pg_options,
        )


@lru_cache(maxsize=1)
def _connected_store(port: int) -> TCPStore:
    # One connection per process: where reverse look-ups time out, a connect may take seconds.
    from torch._C._distributed_c10d import TCPStore

    return TCPStore("127.0.0.1", port, is_master=False)


@dataclass(frozen=True)
class Task:
    """One call on one rank.

    Args:
        function: A module-level function; pickled by its name.
        arguments: What it is called with.
        rank: This process's rank.
        world: Number of ranks.
        meeting: How to make process groups.
        join: Whether to make the default one before the function runs and destroy it after.
        environment: Environment variables for the time of the call.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    rank: int
    world: int
    meeting: Meeting
    join: bool
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Report:
    """Something a function says while it runs."""

    value: Any


@dataclass(frozen=True)
class Returned:
    """The function's result."""

    value: Any


@dataclass(frozen=True)
class Raised:
    """The traceback of what it raised."""

    text: str


_connection: Connection | None = None
_task: Task | None = None


def rank_of_call() -> int:
    """This process's rank in the call, whatever process groups there are.

    Returns:
        The rank.
    """
    return _current().rank


def regroup(ranks: Sequence[int], name: str) -> None:
    """Makes a new default process group of some ranks of the call; an old one is destroyed.

    Args:
        ranks: Ranks of the call, this one among them. The i-th becomes rank i.
        name: Tells this group from others of the call.
    """
    import torch.distributed as dist

    task = _current()
    if dist.is_initialized():
        dist.destroy_process_group()
    meeting = replace(task.meeting, prefix=f"{task.meeting.prefix}/{name}")
    meeting.join(ranks.index(task.rank), len(ranks))


def _current() -> Task:
    if _task is None:
        raise RuntimeError("no call of a pool is under way in this process")
    return _task


def report(value: Any) -> None:
    """Tells the test something while the call goes on; `Call.next_report` receives it.

    Args:
        value: Anything that can be pickled.
    """
    if _connection is None:
        raise RuntimeError("report: this process is not a rank of a pool")
    _send(_connection, Report(value))


def serve(connection: Connection) -> None:
    """Performs tasks until the pool closes the connection.

    Args:
        connection: The rank's end.
    """
    global _connection
    _connection = connection
    while True:
        try:
            path, task = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        sys.path[:] = path  # first of all: the function's module must be found
        _send(connection, _perform(task))


def _send(connection: Connection, message: Report | Returned | Raised) -> None:
    # Not connection.send(): torch teaches that pickler to pass tensors through shared memory.
    connection.send_bytes(pickle.dumps(message))


def _perform(task_bytes: bytes) -> Returned | Raised:
    import torch.distributed as dist

    global _task
    before = dict(os.environ)
    try:
        task: Task = pickle.loads(task_bytes)
        _task = task
        os.environ.update(task.environment)
        if task.join:
            task.meeting.join(task.rank, task.world)
        value = task.function(*task.arguments)
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()
        return Returned(value)
    except SystemExit:
        raise  # a function may end its process as a user's script does
    except BaseException:
        # The group stays as it is: the pool ends this process, and destroying might hang.
        return Raised(traceback.format_exc())
    finally:
        _task = None
        os.environ.clear()
        os.environ.update(before)
