"""Where the callbacks of futures run: on threads of their own, as in csrc/torch/callbacks.h.

A callback may wait for another collective's future, which the engine's thread completes; on that
thread it would wait for ever. Operations complete in their order, so their callbacks run one at a
time in that order, but for those of the collectives that a running callback has started, which it
may be waiting for.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

# A callback that takes longer is overtaken, in case it waits for something that comes after it.
_PATIENCE = 1.0
# What callbacks get when the program ends.
_LAST_WAIT = 5.0


@dataclass(frozen=True)
class _Task:
    group: object
    parent: int  # the callback that started the operation; 0 if none did
    run: Callable[[], None]


class _Callbacks:
    """The queue of all groups, and the threads that serve it as long as there is something."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: list[_Task] = []
        self._running: dict[int, object] = {}  # number of the callback -> its group
        self._begun = 0
        self._begun_at = 0.0
        self._waiting = 0  # threads that look for a task
        self._current = threading.local()

    def current(self) -> int:
        """The callback that this thread is running; 0 if none."""
        number: int = getattr(self._current, "number", 0)
        return number

    def add(self, task: _Task) -> None:
        with self._changed:
            self._queue.append(task)
            self._look_after()

    def finish(self, seconds: float) -> None:
        """Waits until none is left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue and not self._running, seconds)

    def _look_after(self) -> None:
        """Has a thread look at the queue."""
        if self._queue and not self._waiting:
            self._waiting += 1
            threading.Thread(target=self._serve, name="hybridcomm-then", daemon=True).start()
        self._changed.notify_all()

    def _serve(self) -> None:
        while (begun := self._await()) is not None:
            number, task = begun
            self._current.number = number
            try:
                task.run()
            finally:
                with self._changed:
                    self._current.number = 0
                    del self._running[number]
                    self._waiting += 1
                    self._look_after()

    def _await(self) -> tuple[int, _Task] | None:
        """Begins the first task that may begin. None: this thread is not needed."""
        with self._changed:
            while True:
                task = self._first_to_begin()
                if task is not None or not self._queue or self._waiting > 1:
                    break
                # Another thread's callback ends, or patience does.
                self._changed.wait(0.05)
            self._waiting -= 1
            if task is None:
                return None
            self._queue.remove(task)
            self._begun += 1
            self._begun_at = time.monotonic()
            self._running[self._begun] = task.group
            begun = self._begun
            self._look_after()
            return begun, task

    def _first_to_begin(self) -> _Task | None:
        overdue = time.monotonic() - self._begun_at > _PATIENCE
        for task in self._queue:
            alone = task.group not in self._running.values()
            if task.parent in self._running or alone or overdue:
                return task
        return None


_callbacks = _Callbacks()


def _forget() -> None:
    # A forked child has none of the threads.
    global _callbacks
    _callbacks = _Callbacks()


os.register_at_fork(after_in_child=_forget)
# Groups are left before this runs, because they register later.
atexit.register(lambda: _callbacks.finish(_LAST_WAIT))


def current_callback() -> int:
    """The callback that this thread is running; 0 if none."""
    return _callbacks.current()


def run_callback(group: object, parent: int, run: Callable[[], None]) -> None:
    """Runs something after what was given before for the same group.

    Args:
        group: Any object that stands for the group.
        parent: The callback that started the operation; 0 if none did.
        run: What to run.
    """
    _callbacks.add(_Task(group, parent, run))
