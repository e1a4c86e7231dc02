"""What torch gets back from a call: something to wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work

from hybridcomm.errors import CommError

from .callbacks import current_callback, run_callback
from .communicator import Communicator
from .operation import MessageOperation, Operation

_Tensors = list[Tensor]


class ReferenceWork(Work):
    """One operation, as torch sees it.

    C++ takes the result out of a future by its tensors. A failure that it finds there becomes a
    RuntimeError with the failure's class and text in its message: torch gives Python no other way
    to fail a future (DDP's backward is where that shows). Python sees the failure's own class.

    Args:
        communicator: Carries it out.
        operation: The operation, not yet submitted.
        outputs: What the future holds.
    """

    def __init__(
        self, communicator: Communicator, operation: Operation, outputs: Sequence[Tensor]
    ) -> None:
        super().__init__()
        self._communicator = communicator
        self._operation = operation
        self._outputs = list(outputs)
        self._lock = threading.Lock()
        self._future: torch.futures.Future[_Tensors] | None = None
        self._parent = current_callback()
        operation.on_done = self._done

    def submit(self) -> ReferenceWork:
        """Starts it.

        Raises:
            CommError: The group has failed or was destroyed.
        """
        self._communicator.submit(self._operation)
        return self

    def is_completed(self) -> bool:
        """Whether it succeeded or failed."""
        return self._operation.done

    def is_success(self) -> bool:
        """Whether it succeeded."""
        return self._operation.done and self._operation.failure is None

    def exception(self) -> Any:
        """Why it failed; None if it did not, or not yet."""
        failure = self._operation.failure
        return None if failure is None else failure.exception()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits until it is done.

        Args:
            timeout: At most so long; 0 for no limit of its own.

        Returns:
            True.

        Raises:
            CommError: It failed, or was not done in that time.
        """
        seconds = timeout.total_seconds()
        self._communicator.wait(self._operation, seconds if seconds > 0 else None)
        return True

    def synchronize(self) -> None:
        """Does nothing: there is no stream."""

    def block_current_stream(self) -> None:
        """Does what `wait` does: there is no stream."""
        self.wait()

    def abort(self) -> None:
        """Aborts the whole group."""
        self._communicator.abort("Work.abort() was called")

    def result(self) -> _Tensors:
        """The caller's output tensors."""
        return list(self._outputs)

    def source_rank(self) -> int:
        """The rank whose message a receive got."""
        if not isinstance(self._operation, MessageOperation):
            raise RuntimeError("only a receive has a source")
        return self._operation.source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[_Tensors]:
        """A future of the output tensors. Its callbacks run on threads of their own."""
        with self._lock:
            if self._future is not None:
                return self._future
            future: torch.futures.Future[_Tensors] = torch.futures.Future()
            future._set_unwrap_func(_unwrap)
            self._future = future
            settled = self._operation.done
        if settled:
            self._settle()
        return future

    def _done(self) -> None:
        with self._lock:
            has_future = self._future is not None
        if has_future:
            run_callback(self._communicator, self._parent, self._settle)

    def _settle(self) -> None:
        future = self._future
        assert future is not None
        failure = self._operation.failure
        value: object = self._outputs if failure is None else _Failed(failure.exception)
        # Twice, if it was asked for just when the operation was done.
        if not future.done():
            future.set_result(value)  # type: ignore[arg-type]


class _Failed:
    """In a future, in the place of a result: whoever looks for tensors in it gets the error."""

    def __init__(self, make: Callable[[], CommError | ValueError]) -> None:
        self.make = make

    def __reduce__(self) -> str:
        raise self.make()  # how torch looks for the tensors of a value (torch._jit_internal)


def _unwrap(value: object) -> None:
    if isinstance(value, _Failed):
        raise value.make()


class CoalescedWork(Work):
    """Several operations as one.

    Args:
        works: What they returned.
    """

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__()
        self._works = list(works)

    def is_completed(self) -> bool:
        """Whether all are done."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all succeeded."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> Any:
        """Why the first one that failed did."""
        return next(filter(None, (work.exception() for work in self._works)), None)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for all; the time-out is for each of them."""
        for work in self._works:
            work.wait(timeout)
        return True

    def synchronize(self) -> None:
        """Does nothing: there is no stream."""

    def result(self) -> _Tensors:
        """The output tensors of all."""
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> torch.futures.Future[_Tensors]:
        """A future of the output tensors of all."""
        together = torch.futures.collect_all([work.get_future() for work in self._works])
        return together.then(
            lambda futures: [tensor for future in futures.value() for tensor in future.value()]
        )
