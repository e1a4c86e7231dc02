"""The operations of one rank of one group, in their order, and what ends them.

The calling threads queue operations and wait for them; all else happens on the engine's thread.
Every collective goes through the same stages: *join* (all ranks are connected, once), *agree* (what
every rank is about to do is compared, so that a difference is an error and not a hang), *run*. One
that fails ends the group: the first cause goes to all ranks, and they raise that one.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable

from torch._C._distributed_c10d import Store

from .choice import find_program
from .collective import Board, Run, call_for
from .engine import engine
from .errors import FailedError, Failure, Identity, Kind
from .frames import Call, Cause, Frame, Frames, Limits, numbered
from .links import LinkEnds
from .messages import Messages, Trouble
from .operation import Collect, CollectiveOperation, MessageOperation, Operation
from .peers import Peers
from .rendezvous import Making, Met, Rendezvous, Shape, announce
from .story import Story

# What `shutdown` waits for the others to take note, and then for the threads to end.
_LAST_WAIT = 5.0


class Communicator:
    """One rank of a group. Costs nothing until its first operation.

    Args:
        identity: Which rank of which group.
        shape: Its links.
        store: Where the ranks meet.
        timeout: Seconds that an operation may take.
    """

    def __init__(self, identity: Identity, shape: Shape, store: Store, timeout: float) -> None:
        self.identity = identity
        self.shape = shape
        self.timeout = timeout
        self._pid = os.getpid()
        self._engine = engine()
        self._lock = threading.Lock()  # guards the next five
        self._queue: deque[CollectiveOperation] = deque()
        self._posted: deque[MessageOperation] = deque()
        self._sequence = 0
        self._message_sequence = 0
        self._left = False
        self._failure: Failure | None = None
        self._cause: Cause | None = None

        # The rest is the engine's thread's.
        limits = Limits(shape.channels, shape.slot_bytes)
        self._peers = Peers(
            identity, limits, self._engine, self._guarded, self._hear, self._distrust
        )
        self._board = Board(identity)
        self._links = LinkEnds(identity.rank, shape.slots, self._peers.send)
        self._messages = Messages(identity, self._peers)
        self._rendezvous: Rendezvous | None = None
        self._run: Run | None = None
        self._phases = 0  # collectives begun, counted alike on all ranks
        self._story = Story(identity, self._peers, self._board)
        self._gone = threading.Event()
        # Until the group is left; see shutdown.
        self._making: Making | None = announce(store, identity.rank) if identity.world > 1 else None

    # ---- for callers -----------------------------------------------------------------------------

    @property
    def sequence(self) -> int:
        """Number of the last collective."""
        return self._sequence

    @property
    def failure(self) -> Failure | None:
        """Why the group has failed, if it has."""
        return self._failure

    def submit(self, operation: Operation) -> None:
        """Queues an operation.

        Raises:
            CommError: The group has failed or was destroyed.
            ValueError: The group is that of the process which forked this one.
        """
        identity = self.identity
        if self._pid != os.getpid():
            raise ValueError(
                f"group '{identity.group}' belongs to the process that made it (pid {self._pid}); "
                "make a new group after fork"
            )
        with self._lock:
            if self._left:
                raise Failure(
                    Kind.ABORTED,
                    f"{operation.name} on rank {identity.rank}: group '{identity.group}' has been "
                    "destroyed",
                    None,
                    identity.group,
                    identity.rank,
                    operation.name,
                ).exception()
            if self._failure is not None:
                raise self._not_begun(operation).exception()
            if isinstance(operation, MessageOperation):
                self._message_sequence += 1
                operation.begin(self._message_sequence)
                self._posted.append(operation)
            else:
                assert isinstance(operation, CollectiveOperation)
                self._sequence += 1
                operation.begin(self._sequence)
                self._queue.append(operation)
        self._engine.attach(self)

    def wait(self, operation: Operation, seconds: float | None = None) -> None:
        """Waits until an operation is done.

        Args:
            operation: The operation.
            seconds: At most so long; None: until it is done or has failed.

        Raises:
            CommError: It failed, or was not done in that time.
        """
        try:
            done = operation.wait(seconds)
        except BaseException:
            if threading.current_thread() is threading.main_thread():
                self.abort("interrupted by a signal")
            raise
        if not done:
            raise self._gave_up(operation).exception()
        if operation.failure is not None:
            raise operation.failure.exception()

    def abort(self, reason: str) -> None:
        """Fails what is pending, on all ranks."""
        if self._pid == os.getpid():
            self._engine.call(lambda: self._abort(reason))

    def shutdown(self) -> None:
        """Leaves the group; what is pending on this rank fails."""
        with self._lock:
            if self._left or self._pid != os.getpid():
                return
            self._left = True
        self._engine.call(self._leave)
        if not self._engine.here:
            self._gone.wait(_LAST_WAIT)
            if self._rendezvous is not None:
                self._rendezvous.join(1.0)
            self._engine.join()
            # This object and its parts know each other, so it lives until Python looks for cycles;
            # a store may hold sockets, or even be the server.
            self._making = self._rendezvous = None

    # ---- going on --------------------------------------------------------------------------------

    def advance(self, now: float) -> float | None:
        """Does what can be done without waiting. See `engine.Client`."""
        if self._left:
            if not self._gone.is_set() and self._peers.left(now):
                self._engine.detach(self)
                self._gone.set()
            return self._peers.deadline
        if self._failure is not None:
            return None
        busy = self._guarded(lambda: self._advance(now))
        if busy:
            return now
        with self._lock:
            deadlines = [operation.deadline for operation in self._queue]
        deadlines += [message.deadline for message in self._messages.pending]
        return min(deadlines, default=None)

    def _guarded(self, action: Callable[[], object]) -> bool:
        """Does something of this group; an error in it ends the group and nothing else."""
        try:
            return bool(action())
        except Trouble as trouble:
            self._fail(trouble, trouble.message)
        except FailedError as error:
            self._fail(error, self._current())
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            self._fail(FailedError(Kind.SYSTEM, None, why), self._current())
        return False

    def _current(self) -> CollectiveOperation | None:
        with self._lock:
            return self._queue[0] if self._queue else None

    def _advance(self, now: float) -> bool:
        """Goes on with all that is pending; returns whether it could go on at once."""
        with self._lock:
            posted = tuple(self._posted)
            self._posted.clear()
        if (
            not self._left
            and (posted or self._queue)
            and self._peers.missing
            and not self._rendezvous
            and self._making
        ):
            self._rendezvous = Rendezvous(
                self.identity,
                self.shape,
                self._making,
                self._met,
                lambda rank: self._told(lambda: self._peers.note_left(rank)),
                lambda reason: self._told(lambda: self._no_meeting(reason)),
            )
        for message in posted:
            self._messages.post(message)
        self._messages.advance(now)
        while (operation := self._current()) is not None:
            done, busy = self._step(operation)
            if not done:
                self._look_for_trouble(operation, now)
                return busy
            operation.finish()
            with self._lock:
                self._queue.popleft()
        return False

    def _step(self, operation: CollectiveOperation) -> tuple[bool, bool]:
        """Goes on with one operation: whether it is done, and whether it could go on at once."""
        if self._peers.missing:
            return False, False
        while True:
            if self._run is None:
                collect = next(operation.phases, None)
                if collect is None:
                    return True, False
                self._run = self._begin(collect)
            done, busy = self._run.advance()
            if not done:
                return False, busy
            self._run = None

    def _begin(self, collect: Collect) -> Run:
        self._phases += 1
        program = find_program(
            collect.collective,
            collect.algorithm,
            self.identity.world,
            self.identity.rank,
            collect.root,
            self.shape.channels,
        )
        return Run(
            collect,
            program,
            self._phases,
            self.identity,
            self.shape,
            self._peers,
            self._board,
            self._links,
        )

    # ---- what others say -------------------------------------------------------------------------

    def _told(self, action: Callable[[], None]) -> None:
        """Does on the engine's thread what the rendezvous has found, if there still is one."""
        self._engine.post(lambda: self._guarded(action))

    def _met(self, met: Met) -> None:
        if not self._engine.post(lambda: self._guarded(lambda: self._welcome(met))):
            met.turn_away(self._last_words())

    def _welcome(self, met: Met) -> None:
        if self._left:
            met.turn_away(self._last_words())
            return
        self._peers.add(met)
        if self._cause is not None:
            self._peers.send(met.rank, self._cause.encode())

    def _last_words(self) -> bytes:
        """What a rank is told that comes when this one has left."""
        return numbered(Frames.BYE, 0) if self._cause is None else self._cause.encode()

    def _no_meeting(self, reason: FailedError | Cause) -> None:
        if isinstance(reason, Cause):
            self._adopt(reason)
        else:
            raise reason

    def _distrust(self, rank: int, what: str) -> None:
        why = f"{self.identity.name(rank)} sent {what}"
        self._fail(FailedError(Kind.SYSTEM, rank, why), self._current())

    def _hear(self, rank: int, frame: Frame) -> None:
        if self._failure is not None:
            return
        if frame.kind is Frames.CALL:
            self._board.hear(rank, frame.body)
        elif frame.kind in (Frames.SLOT, Frames.CREDIT):
            self._links.hear(rank, frame)
        elif frame.kind is Frames.CAUSE:
            self._adopt(Cause.decode(frame.body, self.identity.world))
        else:
            try:
                self._messages.hear(rank, frame)
            except Trouble as trouble:
                self._fail(trouble, trouble.message)

    # ---- trouble ---------------------------------------------------------------------------------

    def _look_for_trouble(self, operation: CollectiveOperation, now: float) -> None:
        self._story.look_for_losses(self._run, self._phases, self._links)
        with self._lock:
            late = min(self._queue, key=lambda queued: queued.deadline)
        if now >= late.deadline:
            what, peer = self._story.waiting_for(operation, operation, self._run)
            spent = round(late.timeout * 1000)
            raise FailedError(Kind.TIMEOUT, peer, f"Timed out after {spent} ms waiting for {what}")

    def _gave_up(self, operation: Operation) -> Failure:
        found: list[tuple[str, int | None]] = []

        def look() -> None:
            if isinstance(operation, MessageOperation):
                found.append((self._messages.waiting_for(operation), operation.peer))
            else:
                found.append(self._story.waiting_for(operation, self._current(), self._run))

        self._engine.call(look)
        what, peer = found[0] if found else ("the engine's thread", None)
        why = f"not done within the time given to wait(), and goes on; it waits for {what}"
        return operation.failed(self.identity, Kind.TIMEOUT, peer, why)

    def _adopt(self, cause: Cause) -> None:
        """Fails for the reason that another rank has found first."""
        if self._failure is None and self._cause is None:
            self._cause = cause
            self._end(self._current(), told=True)

    def _fail(self, error: FailedError, operation: Operation | None) -> None:
        """Fails for a reason that this rank has found, and tells the others."""
        if self._failure is not None:
            return
        rank = self.identity.rank
        self._cause = Cause(error.kind, error.peer, rank, error.why)
        self._end(operation, told=False)

    def _end(self, culprit: Operation | None, told: bool) -> None:
        cause = self._cause
        assert cause is not None
        # Also what another rank has told: whoever hears next that this rank leaves must know why.
        self._peers.send_all(cause.encode())
        if self._rendezvous is not None:
            self._rendezvous.stop(cause, told=told)
        identity = self.identity
        with self._lock:
            pending: list[Operation] = [*self._queue, *self._messages.pending, *self._posted]
            self._queue.clear()
            self._posted.clear()
            if culprit is None and pending and isinstance(pending[0], MessageOperation):
                culprit = pending[0]
            self._failure = self._story.failure(culprit, cause, self._call_of(culprit))
            failure = self._failure
        self._messages.forget()
        for operation in pending:
            if operation is culprit:
                operation.finish(failure)
            else:
                why = f"not begun, because an earlier operation failed: {failure.message}"
                if isinstance(operation, MessageOperation):
                    why = f"not finished, because the group failed: {failure.message}"
                operation.finish(operation.failed(identity, failure.kind, failure.peer, why))

    def _call_of(self, operation: Operation | None) -> Call | None:
        """What this rank is, or would be, about to do."""
        if self._run is not None:
            return self._run.call
        collect = None
        if isinstance(operation, CollectiveOperation):
            collect = next(operation.phases, None)
        return None if collect is None else call_for(collect, self._phases + 1)

    def _not_begun(self, operation: Operation) -> Failure:
        """The failure of an operation that comes after the group's."""
        failure, cause = self._failure, self._cause
        assert failure is not None
        assert cause is not None
        if failure.operation is None and isinstance(operation, CollectiveOperation):
            # Nothing was under way here when another rank failed: this is what it told.
            return self._story.failure(operation, cause, self._call_of(operation))
        why = f"not begun, because the group had failed: {failure.message}"
        return operation.failed(self.identity, failure.kind, failure.peer, why)

    def _abort(self, reason: str) -> None:
        if not self._left and self._failure is None:
            error = FailedError(Kind.ABORTED, self.identity.rank, f"aborted on this rank: {reason}")
            self._fail(error, self._current())

    def _leave(self) -> None:
        identity = self.identity
        with self._lock:
            pending: list[Operation] = [*self._queue, *self._messages.pending, *self._posted]
            self._queue.clear()
            self._posted.clear()
        self._messages.forget()
        if self._rendezvous is not None:
            self._rendezvous.stop(self._cause, told=self._cause is not None)
        done = self._phases - (self._run is not None)
        self._peers.leave(done, time.monotonic())
        why = "the group was destroyed on this rank before it was done"
        for operation in pending:
            operation.finish(operation.failed(identity, Kind.ABORTED, identity.rank, why))
        if self._peers.left(time.monotonic()):
            self._engine.detach(self)
            self._gone.set()
