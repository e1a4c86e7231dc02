"""The one thread of a process on which its groups make progress.

It starts with the first group that is used and ends with the last one that is destroyed. It waits
for descriptors and deadlines only; what a group does on it never waits.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

# A group without deadlines needs no look; this bounds what a lost wake-up could cost.
_LONGEST_SLEEP = 5.0


class Client(Protocol):
    """What the engine carries forward."""

    def advance(self, now: float) -> float | None:
        """Does what can be done without waiting.

        Args:
            now: The time, by `time.monotonic()`.

        Returns:
            When to be called again at the latest, if nothing happens before; None for never.
        """


Ready = Callable[[int], None]  # is given the selectors' events of its descriptor


class Engine:
    """The thread, made when there is something to do. See `engine()`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._clients: list[Client] = []
        self._requests: deque[Callable[[], object]] = deque()
        self._bell = -1
        self._selector: selectors.BaseSelector = selectors.DefaultSelector()
        self._selector.close()

    @property
    def here(self) -> bool:
        """Whether the caller is the engine's thread."""
        return threading.current_thread() is self._thread

    def attach(self, client: Client) -> None:
        """Carries a client forward from now on, and looks at it at once."""
        with self._lock:
            if client not in self._clients:
                self._clients.append(client)
            if self._thread is None:
                self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                self._selector = selectors.DefaultSelector()
                self._selector.register(self._bell, selectors.EVENT_READ)
                self._thread = threading.Thread(
                    target=self._run, name="hybridcomm-reference", daemon=True
                )
                self._thread.start()
            else:
                os.eventfd_write(self._bell, 1)

    def detach(self, client: Client) -> None:
        """Ends what `attach` began. On the engine's thread only; the last one ends the thread."""
        with self._lock:
            if client in self._clients:
                self._clients.remove(client)

    def post(self, action: Callable[[], object]) -> bool:
        """Has something done on the thread.

        Returns:
            False if there is no thread.
        """
        with self._lock:
            if self._thread is None:
                return False
            self._requests.append(action)
            os.eventfd_write(self._bell, 1)
            return True

    def call(self, action: Callable[[], None]) -> None:
        """Has something done on the thread and waits for it; does it here if there is no thread."""
        done = threading.Event()

        def report() -> None:
            try:
                action()
            finally:
                done.set()

        if self.here or not self.post(report):
            action()
        else:
            done.wait()

    def join(self) -> None:
        """Waits for the end of the thread if no client is left for it."""
        with self._lock:
            thread = self._thread if not self._clients else None
        if thread is not None and not self.here:
            thread.join()

    def watch(self, descriptor: int, events: int, ready: Ready) -> None:
        """Calls `ready` whenever a descriptor is ready. On the engine's thread only."""
        if descriptor in self._selector.get_map():
            self._selector.modify(descriptor, events, ready)
        else:
            self._selector.register(descriptor, events, ready)

    def unwatch(self, descriptor: int) -> None:
        """Ends what `watch` began. On the engine's thread only."""
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def _run(self) -> None:
        while True:
            while self._requests:
                self._requests.popleft()()
            now = time.monotonic()
            deadlines = [client.advance(now) for client in tuple(self._clients)]
            with self._lock:
                if not self._clients and not self._requests:
                    os.close(self._bell)
                    self._selector.close()
                    self._thread = None
                    return
            nearest = min((at for at in deadlines if at is not None), default=now + _LONGEST_SLEEP)
            sleep = max(0.0, min(nearest - time.monotonic(), _LONGEST_SLEEP))
            for key, events in self._selector.select(sleep):
                if key.fd == self._bell:
                    os.eventfd_read(self._bell)
                else:
                    key.data(events)


_engine = Engine()


def engine() -> Engine:
    """The engine of this process."""
    return _engine


def _forget() -> None:
    # A forked child has none of the threads; the groups are its parent's.
    global _engine
    _engine = Engine()


os.register_at_fork(after_in_child=_forget)
