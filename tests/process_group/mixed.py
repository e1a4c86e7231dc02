"""Plans of mixed operations on several groups, and what a rank does to carry one out.

A plan is the same on all ranks. All values are small whole numbers, so every result is exact
whatever the order of its operands, and what is right is computed from the plan alone.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import hybridcomm
from tests.process_group.cases import settings
from tests.support.tensors import DTYPES, Placed, difference, place

Members = tuple[int, ...]


@dataclass(frozen=True)
class NewGroup:
    """All ranks make a group.

    Args:
        members: Its ranks, in its own order.
        setting: Which of `cases.settings`.
    """

    members: Members
    setting: int


@dataclass(frozen=True)
class Destroy:
    """The members of a group destroy it, once what it has under way is done."""

    group: int


@dataclass(frozen=True)
class Call:
    """A collective, or messages among the members of a group.

    Args:
        number: Of the call in the plan; it decides values, and the tags of messages.
        group: Number of the group, in the order in which they were made; 0 is the default group.
        name: A function of `_KINDS`.
        dtype: Name of the element type.
        op: Name of the reduction.
        count: Elements of a part.
        root: Rank of the group that is the root, where there is one.
        uneven: Whether parts differ in length, where they may.
        layout: How tensors lie in memory.
    """

    number: int
    group: int
    name: str
    dtype: str
    op: str
    count: int
    root: int
    uneven: bool
    layout: str


@dataclass(frozen=True)
class Calls:
    """Calls that are made together.

    Args:
        how: "in turn": one after the other, waiting for each; "at once": all begun, then waited
            for; "later": all begun, and waited for some steps later; "shuffled": as later, and
            each rank visits the groups in an order of its own; "threads": a thread for each
            group; "batch": as one work, if they are of one group.
        calls: In an order that all ranks keep within each group.
    """

    how: str
    calls: tuple[Call, ...]


Step = NewGroup | Destroy | Calls
Plan = Sequence[Step]
HOW = ("in turn", "at once", "later", "shuffled", "threads", "batch")
# Types whose values are exact under every reduction of five small numbers.
SUMMED = ("uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
MOVED = (*SUMMED, "bool", "complex64", "float8_e4m3fn", "uint16")
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BXOR")


def data(call: Call, rank: int, part: int) -> Tensor:
    """What a rank gives in a call.

    Args:
        call: The call.
        rank: The rank, within the group.
        part: Which part, where a rank gives several.

    Returns:
        Small whole numbers, as int64.
    """
    count = length(call, rank, part)
    position = torch.arange(count)
    numbers = position * (2 * rank + 3) + (position >> 4) + 5 * rank + 3 * part + call.number
    if call.dtype == "bool":
        return numbers % 2
    # A product of five stays exact in eight bits of mantissa.
    return numbers % (4 if DTYPES[call.dtype].is_floating_point else 13)


def length(call: Call, rank: int, part: int) -> int:
    """How many elements they are.

    Args:
        call: The call.
        rank: The rank that gives them.
        part: For which rank they are.

    Returns:
        The same for all where parts are even.
    """
    if not call.uneven:
        return call.count
    # Of all-to-all each pair has its own; of the others each part.
    which = rank * 5 + part if call.name.startswith("all_to_all") else part
    return call.count * (which % 3) // 2


def reduced(call: Call, world: int, part: int) -> Tensor:
    """What a reduction makes of one part of all ranks.

    Args:
        call: The call.
        world: Number of ranks of the group.
        part: Which.

    Returns:
        The result in the call's dtype.
    """
    dtype = DTYPES[call.dtype]
    parts = torch.stack([data(call, rank, part) for rank in range(world)])
    if call.op == "AVG" and dtype.is_floating_point:
        wide = torch.float64 if call.dtype == "float64" else torch.float32
        return (parts.sum(0).to(wide) / world).to(dtype)
    makers: Mapping[str, Callable[[], Tensor]] = {
        "SUM": lambda: parts.sum(0),
        "PRODUCT": lambda: parts.prod(0),
        "MIN": lambda: parts.amin(0),
        "MAX": lambda: parts.amax(0),
        "AVG": lambda: parts.sum(0) // world,
        "BAND": lambda: _fold(parts, torch.bitwise_and),
        "BXOR": lambda: _fold(parts, torch.bitwise_xor),
    }
    return makers[call.op]().to(dtype)


def _fold(parts: Tensor, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    result = parts[0]
    for part in parts[1:]:
        result = function(result, part)
    return result


class _Begun:
    """A call under way on this rank."""

    def __init__(self, call: Call, group: Any) -> None:
        self.call = call
        self.group = group
        self.rank = dist.get_rank(group)
        self.ranks = range(dist.get_world_size(group))
        self.works: list[dist.Work | None] = []
        self._given: list[tuple[Placed, Tensor]] = []
        self._expected: list[tuple[Placed, Tensor]] = []
        _KINDS[call.name](self)

    @property
    def op(self) -> Any:
        """The reduction, for torch."""
        return getattr(dist.ReduceOp, self.call.op)

    def of(self, rank: int, part: int) -> Tensor:
        """What a rank gives, in the call's dtype."""
        return data(self.call, rank, part).to(DTYPES[self.call.dtype])

    def give(self, part: int = 0) -> Tensor:
        """An input of this rank, which must not change."""
        values = self.of(self.rank, part)
        return self.give_values(values)

    def give_values(self, values: Tensor) -> Tensor:
        """An input, which must not change."""
        placed = place(self.call.layout, values)
        self._given.append((placed, values))
        return placed.view

    def take(self, expected: Tensor, before: Tensor | None = None) -> Tensor:
        """An output, with what it will have to hold."""
        stale = torch.ones_like(expected) if before is None else before
        placed = place(self.call.layout, stale)
        self._expected.append((placed, expected))
        return placed.view

    def finish(self, wait: bool, altered: bool) -> str | None:
        """Waits, and says what is wrong."""
        for work in self.works:
            if work is not None and wait:
                work.wait()
        if altered:
            for placed, _ in self._expected:
                placed.view.zero_().add_(1)
        for placed, values in (*self._expected, *self._given):
            what = difference(placed.view, values) or placed.damaged()
            if what:
                return f"{self.call} on rank {self.rank} of {len(self.ranks)}: {what}"
        return None


def _all_reduce(b: _Begun) -> None:
    tensor = b.take(reduced(b.call, len(b.ranks), 0), before=b.of(b.rank, 0))
    b.works.append(dist.all_reduce(tensor, b.op, b.group, True))


def _reduce(b: _Begun) -> None:
    own = b.of(b.rank, 0)
    root = b.call.root
    expected = reduced(b.call, len(b.ranks), 0) if b.rank == root else own
    tensor = b.take(expected, before=own)
    b.works.append(dist.reduce(tensor, op=b.op, group=b.group, async_op=True, group_dst=root))


def _broadcast(b: _Begun) -> None:
    expected = b.of(b.call.root, 0)
    tensor = b.take(expected, before=expected if b.rank == b.call.root else None)
    b.works.append(dist.broadcast(tensor, None, b.group, True, group_src=b.call.root))


def _all_gather(b: _Begun) -> None:
    outputs = [b.take(b.of(rank, rank)) for rank in b.ranks]
    b.works.append(dist.all_gather(outputs, b.give(b.rank), b.group, True))


def _all_gather_into_tensor(b: _Begun) -> None:
    output = b.take(torch.cat([b.of(rank, 0) for rank in b.ranks]))
    b.works.append(dist.all_gather_into_tensor(output, b.give(), b.group, True))


def _reduce_scatter(b: _Begun) -> None:
    inputs = [b.give(part) for part in b.ranks]
    output = b.take(reduced(b.call, len(b.ranks), b.rank))
    b.works.append(dist.reduce_scatter(output, inputs, b.op, b.group, True))


def _reduce_scatter_tensor(b: _Begun) -> None:
    whole = b.give_values(torch.cat([b.of(b.rank, part) for part in b.ranks]))
    output = b.take(reduced(b.call, len(b.ranks), b.rank))
    b.works.append(dist.reduce_scatter_tensor(output, whole, b.op, b.group, True))


def _gather(b: _Begun) -> None:
    root = b.call.root
    outputs = [b.take(b.of(rank, 0)) for rank in b.ranks] if b.rank == root else None
    b.works.append(dist.gather(b.give(), outputs, group=b.group, async_op=True, group_dst=root))


def _scatter(b: _Begun) -> None:
    root = b.call.root
    inputs = [b.give(part) for part in b.ranks] if b.rank == root else None
    output = b.take(b.of(root, b.rank))
    b.works.append(dist.scatter(output, inputs, group=b.group, async_op=True, group_src=root))


def _all_to_all(b: _Begun) -> None:
    inputs = [b.give(part) for part in b.ranks]
    outputs = [b.take(b.of(rank, b.rank)) for rank in b.ranks]
    b.works.append(dist.all_to_all(outputs, inputs, b.group, True))


def _all_to_all_single(b: _Begun) -> None:
    given = [b.of(b.rank, part) for part in b.ranks]
    taken = [b.of(rank, b.rank) for rank in b.ranks]
    splits = [len(part) for part in taken], [len(part) for part in given]
    whole = b.give_values(torch.cat(given))
    work = dist.all_to_all_single(b.take(torch.cat(taken)), whole, *splits, b.group, True)
    b.works.append(work)


def _barrier(b: _Begun) -> None:
    b.works.append(dist.barrier(b.group, True))


def _ring(b: _Begun) -> None:
    """Messages to the next rank, with two tags that are received in the other order."""
    world = len(b.ranks)
    if world == 1:
        return
    to, source = (b.rank + 1) % world, (b.rank - 1) % world
    for part in (0, 1):
        tag = 2 * b.call.number + part
        b.works.append(dist.isend(b.give(part), group=b.group, group_dst=to, tag=tag))
    for part in (1, 0):
        tag = 2 * b.call.number + part
        tensor = b.take(b.of(source, part))
        b.works.append(dist.irecv(tensor, group=b.group, group_src=source, tag=tag))


def _to_root(b: _Begun) -> None:
    """A message from every other rank to the root, which does not say whose it wants first."""
    root, tag = b.call.root, 2 * b.call.number
    if b.rank != root:
        b.works.append(dist.isend(b.give(), group=b.group, group_dst=root, tag=tag))
        return
    others = [rank for rank in b.ranks if rank != root]
    tensors = [torch.zeros_like(b.of(root, 0)) for _ in others]
    works = [dist.irecv(tensor, None, b.group, tag) for tensor in tensors]
    b.works.append(_AnySource(b, works, tensors))


class _AnySource(dist.Work):
    """Receives from any rank: which tensor is whose is known when they are done."""

    def __init__(self, b: _Begun, works: Sequence[Any], tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self._begun = b
        self._parts = [*zip(works, tensors, strict=True)]

    def wait(self, timeout: Any = None) -> bool:
        """Waits, and gives each tensor what it must hold."""
        b = self._begun
        sources = set()
        for work, tensor in self._parts:
            work.wait()
            source = work._source_rank()  # within the group
            sources.add(source)
            b.take(b.of(source, 0)).copy_(tensor)
        assert len(sources) == len(self._parts), f"{b.call}: a message was received twice"
        return True


_KINDS: dict[str, Callable[[_Begun], None]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "barrier": _barrier,
    "ring": _ring,
    "to root": _to_root,
}
NAMES = tuple(_KINDS)
REDUCING = frozenset(name for name in NAMES if "reduce" in name)
MAY_BE_UNEVEN = frozenset({"all_gather", "reduce_scatter", "all_to_all", "all_to_all_single"})


class Player:
    """Carries out plans on one rank.

    Args:
        altered: Number of a call whose result is altered on one rank; a planted fault.
        on: The rank of the default group on which it is.
    """

    def __init__(self, altered: int | None = None, on: int = 0) -> None:
        self._altered = altered if dist.get_rank() == on else None
        self._groups: list[Any] = [dist.group.WORLD]
        self._members: list[Members] = [tuple(range(dist.get_world_size()))]
        self._later: list[tuple[int, _Begun]] = []
        self._chance = random.Random(dist.get_rank())
        self.wrong: list[str] = []

    def play(self, plan: Plan) -> list[str]:
        """Carries out a plan, and destroys its groups.

        Args:
            plan: The plan.

        Returns:
            What was wrong.
        """
        for number, step in enumerate(plan):
            if isinstance(step, NewGroup):
                self._make(step)
            elif isinstance(step, Destroy):
                self._destroy(step.group)
            else:
                self._play(step, number)
            old = self._chance.randrange(1, 8)  # steps after which this rank waits
            self._finish([b for _, b in self._take_later_than(number - old)])
        self._finish([b for _, b in self._take_later_than(len(plan))])
        for which, group in enumerate(self._groups[1:], 1):
            if group is not None and self._here(which):
                dist.destroy_process_group(group)
        return self.wrong

    def _here(self, group: int) -> bool:
        return dist.get_rank() in self._members[group]

    def _make(self, step: NewGroup) -> None:
        options = None
        if dist.get_backend() == "hybridcomm":
            options = hybridcomm.Options(**settings(len(step.members))[step.setting].options())
        group = dist.new_group([*step.members], pg_options=options, sort_ranks=False)
        self._groups.append(group)
        self._members.append(step.members)

    def _destroy(self, group: int) -> None:
        self._finish([b for _, b in self._take_later(lambda b: b.call.group == group)])
        if self._here(group):
            dist.destroy_process_group(self._groups[group])
        self._groups[group] = None

    def _play(self, step: Calls, number: int) -> None:
        calls = [call for call in step.calls if self._here(call.group)]
        if step.how == "in turn":
            for call in calls:
                self._finish([self._begin(call)])
        elif step.how == "threads":
            self._in_threads(calls)
        elif step.how == "batch":
            self._in_batches(calls)
        elif step.how == "shuffled":
            self._later += [(number, self._begin(call)) for call in self._interleaved(calls)]
        else:
            begun = [self._begin(call) for call in calls]
            if step.how == "later":
                self._later += [(number, b) for b in begun]
            else:
                self._finish(begun)

    def _begin(self, call: Call) -> _Begun:
        return _Begun(call, self._groups[call.group])

    def _finish(self, begun: Sequence[_Begun], wait: bool = True) -> None:
        """Waits in an order of this rank's own."""
        for b in self._chance.sample(begun, len(begun)):
            what = b.finish(wait, altered=b.call.number == self._altered)
            if what:
                self.wrong.append(what)

    def _take_later(self, which: Callable[[_Begun], bool]) -> list[tuple[int, _Begun]]:
        taken = [entry for entry in self._later if which(entry[1])]
        self._later = [entry for entry in self._later if not which(entry[1])]
        return taken

    def _take_later_than(self, number: int) -> list[tuple[int, _Begun]]:
        taken = [entry for entry in self._later if entry[0] <= number]
        self._later = [entry for entry in self._later if entry[0] > number]
        return taken

    def _interleaved(self, calls: Sequence[Call]) -> Iterator[Call]:
        """In the order of each group, and between groups in one of this rank's own."""
        queues = [*_by_group(calls).values()]
        while queues:
            queue = self._chance.choice(queues)
            yield queue.pop(0)
            queues = [queue for queue in queues if queue]

    def _in_threads(self, calls: Sequence[Call]) -> None:
        failures: list[BaseException] = []

        def work(queue: Sequence[Call]) -> None:
            try:
                for call in queue:
                    self._finish([self._begin(call)])
            except BaseException as error:
                failures.append(error)

        threads = [
            threading.Thread(target=work, args=(queue,)) for queue in _by_group(calls).values()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def _in_batches(self, calls: Sequence[Call]) -> None:
        cpu = torch.device("cpu")
        for which, queue in _by_group(calls).items():
            group = self._groups[which]
            # Receives from any rank are looked at one by one.
            queue = [call for call in queue if call.name != "to root"]
            group._start_coalescing(cpu)
            begun = [self._begin(call) for call in queue]
            group._end_coalescing(cpu).wait()
            self._finish(begun, wait=False)


def _by_group(calls: Sequence[Call]) -> dict[int, list[Call]]:
    queues: dict[int, list[Call]] = {}
    for call in calls:
        queues.setdefault(call.group, []).append(call)
    return queues
