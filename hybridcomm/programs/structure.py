"""Is a step well formed by itself: the right fields for its verb, peers and chunks that exist?

The flat decoder, the text parser and the verifier all ask this module, so that what one of them
accepts the others do.
"""

from __future__ import annotations

from typing import NamedTuple

from .faults import Fault, FaultName
from .ir import REDUCING, Op, RankProgram, Step
from .layout import Chunk, Layout, Space


class _Shape(NamedTuple):
    """How many peers a verb has and which chunks: ``n`` never, ``y`` always, ``?`` either."""

    frm: str  # "0", "1" or "+"
    to: str
    src: str
    dst: str
    remote: str


_SHAPES = {
    Op.SEND: _Shape("0", "+", "y", "n", "n"),
    Op.RECV: _Shape("1", "0", "n", "y", "n"),
    Op.COPY: _Shape("0", "0", "y", "y", "n"),
    Op.RECV_REDUCE: _Shape("+", "0", "y", "y", "n"),
    Op.RECV_COPY_SEND: _Shape("1", "+", "n", "y", "n"),
    Op.RECV_REDUCE_SEND: _Shape("+", "+", "y", "n", "n"),
    Op.RECV_REDUCE_COPY_SEND: _Shape("+", "+", "y", "y", "n"),
    Op.READ_REDUCE: _Shape("+", "0", "?", "y", "y"),
    Op.WRITE: _Shape("0", "+", "y", "n", "y"),
    Op.SIGNAL: _Shape("0", "+", "n", "n", "n"),
    Op.WAIT: _Shape("+", "0", "n", "n", "n"),
}
_PEERS = {"0": "no peer", "1": "exactly one peer", "+": "at least one peer"}


class Complaint(NamedTuple):
    """What is wrong with a step, before it is known where the step stands."""

    name: FaultName
    sentence: str


def step_complaint(step: Step, rank: int, layout: Layout, n_tmp: int) -> Complaint | None:
    """Look at one step by itself.

    Args:
        step: The step.
        rank: Whose step it is.
        layout: The call's chunk table.
        n_tmp: Number of ``tmp`` chunks.

    Returns:
        The first thing that is wrong with it, or None.
    """
    return (
        _shape_complaint(step)
        or _peer_complaint(step, rank, layout.world)
        or _chunk_complaint(step, rank, layout, n_tmp)
    )


def faults_of_steps(part: RankProgram) -> list[Fault]:
    """Look at every step of one rank.

    Args:
        part: The rank's program.

    Returns:
        A fault for each step that is not well formed.
    """
    faults = []
    for channel, lane in enumerate(part.lanes):
        for index, step in enumerate(lane):
            complaint = step_complaint(step, part.rank, part.layout, part.n_tmp)
            if complaint:
                sentence = f"`{step}`: {complaint.sentence}"
                faults.append(Fault(complaint.name, part.rank, channel, index, sentence))
    return faults


def _shape_complaint(step: Step) -> Complaint | None:
    shape = _SHAPES[step.op]
    for name, wanted, peers in (("from", shape.frm, step.frm), ("to", shape.to, step.to)):
        if len(peers) != int(wanted) if wanted != "+" else not peers:
            sentence = f"{step.op.word} has {_PEERS[wanted]} in '{name}', not {len(peers)}"
            return Complaint(FaultName.MALFORMED_STEP, sentence)
    for name, wanted, chunk in (
        ("src", shape.src, step.src),
        ("dst", shape.dst, step.dst),
        ("remote", shape.remote, step.remote),
    ):
        if wanted == "y" and chunk is None:
            return Complaint(FaultName.MALFORMED_STEP, f"{step.op.word} needs '{name}'")
        if wanted == "n" and chunk is not None:
            return Complaint(FaultName.MALFORMED_STEP, f"{step.op.word} has no '{name}'")
    if step.finish and step.op not in REDUCING:
        return Complaint(FaultName.MALFORMED_STEP, f"{step.op.word} reduces nothing to finish")
    return None


def _peer_complaint(step: Step, rank: int, world: int) -> Complaint | None:
    for name, peers in (("from", step.frm), ("to", step.to)):
        for peer in peers:
            if not 0 <= peer < world:
                sentence = f"'{name}' names rank {peer}; there are ranks 0 to {world - 1}"
                return Complaint(FaultName.PEER_OUT_OF_RANGE, sentence)
            if peer == rank:
                sentence = f"'{name}' names rank {rank} itself; a rank has no link to itself"
                return Complaint(FaultName.SELF_PEER, sentence)
        if len(set(peers)) != len(peers):
            return Complaint(FaultName.DUPLICATE_PEER, f"'{name}' names a rank twice")
    if step.op in REDUCING and any(a >= b for a, b in zip(step.frm, step.frm[1:], strict=False)):
        sentence = "operands are taken in rank order, so 'from' must be ascending"
        return Complaint(FaultName.UNSORTED_PEERS, sentence)
    return None


def _chunk_complaint(step: Step, rank: int, layout: Layout, n_tmp: int) -> Complaint | None:
    counts = (layout.n_in, layout.n_out, n_tmp)
    for name, chunk in (("src", step.src), ("dst", step.dst), ("remote", step.remote)):
        if chunk is not None and not 0 <= chunk.number < counts[chunk.space]:
            sentence = f"'{name}' is {chunk}; there are {counts[chunk.space]} such chunks"
            return Complaint(FaultName.CHUNK_OUT_OF_RANGE, sentence)
    for owner, chunk in _named(step, rank):
        if not layout.has(owner, chunk.space):
            sentence = f"rank {owner} has no {chunk}; only the root, rank {layout.root}, has"
            return Complaint(FaultName.NOT_THE_ROOT, sentence)
    written = step.remote if step.op is Op.WRITE else step.dst
    if written is not None and written.space is Space.IN:
        sentence = f"writes {written}, which belongs to the caller"
        return Complaint(FaultName.WRITES_INPUT, sentence)
    return _length_complaint(step, rank, layout)


def _named(step: Step, rank: int) -> list[tuple[int, Chunk]]:
    """The chunks of a step, each with the rank whose chunk it is."""
    named = [(rank, chunk) for chunk in (step.src, step.dst) if chunk is not None]
    if step.remote is not None:
        named += [(peer, step.remote) for peer in step.frm + step.to]
    return named


def _length_complaint(step: Step, rank: int, layout: Layout) -> Complaint | None:
    """All chunks of a step must hold one piece, or it would move different lengths."""
    named = _named(step, rank)
    pieces = {layout.piece(owner, chunk) for owner, chunk in named}
    if len(pieces) > 1:
        held = ", ".join(f"rank {owner}'s {chunk}" for owner, chunk in named)
        return Complaint(FaultName.LENGTH_MISMATCH, f"{held} are different pieces")
    return None


def piece_of(step: Step, rank: int, layout: Layout) -> int | None:
    """Which piece a well-formed step moves.

    Args:
        step: The step.
        rank: Whose step it is.
        layout: The call's chunk table.

    Returns:
        The piece's number, or None for a step that moves no bytes.
    """
    chunk = step.src or step.dst
    return None if chunk is None else layout.piece(rank, chunk)
