"""Who is to blame, and the sentences that say so."""

from __future__ import annotations

from .collective import Board, Run
from .errors import FailedError, Failure, Identity, Kind
from .frames import Call, Cause
from .links import LinkEnds
from .operation import Operation
from .peers import Peers


class Story:
    """What one rank can tell of the others.

    Args:
        identity: Who this is.
        peers: The other ranks.
        board: What they have said they are about to do.
    """

    def __init__(self, identity: Identity, peers: Peers, board: Board) -> None:
        self._identity = identity
        self._peers = peers
        self._board = board

    def look_for_losses(self, run: Run | None, phase: int, links: LinkEnds) -> None:
        """Looks whether a rank is gone that is still needed.

        Args:
            run: The collective under way; None while the ranks are meeting.
            phase: Its number.
            links: Is told of ranks that need nothing more.

        Raises:
            FailedError: There is one.
        """
        awaited = {rank for rank, _ in run.awaited()} if run is not None else set()
        for rank, how in sorted(self._peers.lost.items()):
            completed = self._peers.completed.get(rank)
            if completed is not None and completed >= phase and run is not None:
                links.finish(rank)
                if rank not in {peer for peer, sends in run.awaited() if sends}:
                    continue
            # It may have done its part before it died: whoever still waits for it will know.
            died_later = completed is None and run is not None and run.agreed
            if died_later and rank not in awaited:
                continue
            doing = self.doing(rank, phase)
            raise FailedError(Kind.PEER_LOST, rank, f"{self._identity.name(rank)} {how}{doing}")

    def doing(self, rank: int, phase: int) -> str:
        """What a rank was doing last, as this one sees it."""
        latest = self._board.latest(rank)
        if latest is None:
            return " before its first operation"
        if latest.sequence < phase:
            return f" before this operation; its last was #{latest.sequence}"
        return " in the middle of it"

    def waiting_for(
        self, operation: Operation, current: Operation | None, run: Run | None
    ) -> tuple[str, int | None]:
        """What an operation waits for.

        Args:
            operation: The operation.
            current: The one that is carried out now.
            run: The collective under way, if the ranks have met.

        Returns:
            That in words, and the rank to blame.
        """
        name = self._identity.name
        if operation is not current:
            return "an earlier operation", None
        missing = self._peers.missing
        if missing or run is None:
            return ", ".join(map(name, missing)) + " to join", missing[0] if missing else None
        if not run.agreed:
            late = self._board.missing()
            words = []
            for rank in late:
                latest = self._board.latest(rank)
                known = (
                    f"whose last call was #{latest.sequence}"
                    if latest
                    else "which has called nothing"
                )
                words.append(f"{name(rank)} ({known})")
            return ", ".join(words) + " to call it", late[0] if late else None
        awaited = run.awaited()
        if not awaited:
            return "its last bytes to leave", None
        rank, sends = awaited[0]
        doing = self.doing(rank, run.call.sequence)
        return f"{name(rank)} to {'send' if sends else 'receive'}; that rank is{doing}", rank

    # ---- failures --------------------------------------------------------------------------------

    def failure(self, operation: Operation | None, cause: Cause, call: Call | None) -> Failure:
        """Puts the cause of a failure into words.

        Args:
            operation: The operation to describe; None if none was under way.
            cause: Why the group failed.
            call: What this rank is about to do, if that is known.

        Returns:
            The failure.
        """
        identity = self._identity
        own = identity.rank
        peer, why = cause.blamed, cause.text
        if cause.reporter != own:
            reporter = identity.name(cause.reporter)
            by = f" (reported by {reporter})"
            if cause.kind is Kind.TIMEOUT and cause.blamed == own:
                why = f"{reporter} had given up waiting for this rank, which came too late"
            elif cause.kind is Kind.ABORTED:
                why = f"{reporter} aborted the group (abort() or Ctrl-C)"
            elif cause.kind is Kind.MISMATCH:
                peer = self._first_to_differ(cause, call)
                why += by
            else:
                why += by
        if operation is None:
            message = f"group '{identity.group}' on {identity.name(own)}: {why}"
            return Failure(cause.kind, message, peer, identity.group, own)
        return operation.failed(identity, cause.kind, peer, why)

    def _first_to_differ(self, cause: Cause, call: Call | None) -> int | None:
        """A rank whose call is another than this one's."""
        theirs = {rank: self._board.of(rank) for rank in self._identity.peers}
        for rank, other in theirs.items():
            if call is not None and other is not None and not call.agrees(other):
                return rank
        # Of the two that differ, the one that this rank has heard nothing of yet.
        two = [rank for rank in (cause.blamed, cause.reporter) if rank in theirs]
        return next((rank for rank in two if rank is not None and theirs[rank] is None), two[0])
