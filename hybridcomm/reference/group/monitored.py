"""The monitored barrier: rank 0 hears from every rank and then answers all.

What they say carries a tag of its own, below those of users, so that a rank which came too late for
one barrier does not disturb the next.
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from hybridcomm.errors import CommTimeoutError

from .communicator import Communicator
from .errors import Failure, Kind
from .operation import MessageOperation


def barrier(communicator: Communicator, number: int, seconds: float, all_ranks: bool) -> None:
    """Waits for all ranks.

    Args:
        communicator: The group.
        number: Which monitored barrier this is in the group.
        seconds: How long to wait.
        all_ranks: Whether rank 0 names all that did not come, instead of the first.

    Raises:
        CommTimeoutError: Some did not come.
    """
    identity = communicator.identity
    rank, limit = identity.rank, f"{round(seconds * 1000)} ms"
    if seconds <= 0:
        _fail(communicator, rank, f"Rank {rank} timed out in monitoredBarrier after {limit}")
    if identity.world == 1:
        return
    if rank != 0:
        _attend(communicator, -number, seconds, limit)
        return
    arrivals = {
        peer: _begin(communicator, False, peer, -number, seconds, 0) for peer in identity.peers
    }
    missing = []
    for peer, (arrival, _) in arrivals.items():
        try:
            communicator.wait(arrival)
        except CommTimeoutError:
            missing.append(peer)
    verdict = missing[0] if missing else -1
    # Every rank is told, also one that comes too late; that one is not waited for.
    answers = {
        peer: _begin(communicator, True, peer, -number, seconds, verdict) for peer in identity.peers
    }
    for peer, (answer, _) in answers.items():
        if peer not in missing:
            communicator.wait(answer)
    if missing:
        who = f"Rank {missing[0]}"
        if all_ranks and len(missing) > 1:
            who = "Ranks " + ", ".join(map(str, missing))
        _fail(communicator, missing[0], f"{who} failed to pass monitoredBarrier in {limit}")


def _attend(communicator: Communicator, tag: int, seconds: float, limit: str) -> None:
    """What a rank other than 0 does."""
    rank = communicator.identity.rank
    trouble, verdict = "", -1
    try:
        communicator.wait(_begin(communicator, True, 0, tag, seconds, rank)[0])
        # Rank 0 may use up its own time before it answers.
        answer, word = _begin(communicator, False, 0, tag, 2 * seconds, 0)
        communicator.wait(answer)
        verdict = int(word)
    except CommTimeoutError as error:
        trouble = f": {error}"
    if not trouble and verdict < 0:
        return
    if verdict == rank:
        _fail(
            communicator,
            rank,
            f"Rank {rank} came to monitoredBarrier too late; rank 0 had waited for it for {limit}",
        )
    if verdict >= 0:
        trouble = f": rank {verdict} did not reach it"
    _fail(
        communicator,
        max(verdict, 0),
        f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for "
        f"send/recv from rank 0{trouble}",
    )


def _begin(
    communicator: Communicator, sends: bool, peer: int, tag: int, seconds: float, value: int
) -> tuple[MessageOperation, Tensor]:
    """Sends or receives one number."""
    word = torch.tensor([value], dtype=torch.int32)
    message = MessageOperation(
        "monitored_barrier",
        word.nbytes,
        torch.int32,
        seconds,
        sends=sends,
        peer=peer,
        tag=tag,
        data=word,
    )
    communicator.submit(message)
    return message, word


def _fail(communicator: Communicator, peer: int, why: str) -> NoReturn:
    identity = communicator.identity
    message = (
        f"monitored_barrier (group '{identity.group}', world size {identity.world}) on "
        f"{identity.name(identity.rank)}: {why}"
    )
    raise Failure(
        Kind.TIMEOUT, message, peer, identity.group, identity.rank, "monitored_barrier"
    ).exception()
