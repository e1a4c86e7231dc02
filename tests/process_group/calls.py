"""How the calls of `cases.py` are made through torch.distributed, and what they did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.process_group.cases import Case, Setting
from tests.support.tensors import DTYPES, Placed, difference, place


@dataclass(frozen=True)
class Performed:
    """What a call did on one rank.

    Args:
        result: The result in one dimension, its parts one after the other; empty if it got none.
        damage: Memory that should not have changed and did, in words; empty if none.
    """

    result: Tensor
    damage: str


def begin(
    case: Case, setting: Setting, *, async_op: bool, group: dist.ProcessGroup | None = None
) -> Callable[[], Performed]:
    """Makes a call on this rank.

    Args:
        case: The call.
        setting: What the group is.
        async_op: Whether the call is asynchronous; a synchronous one is complete on return.
        group: The group; None for the default one.

    Returns:
        A function that waits for the call and tells what it did.
    """
    call = _Call(case, setting, dist.get_rank(group))
    work = call.start(async_op, group or dist.group.WORLD)

    def end() -> Performed:
        if work is not None:
            work.wait()
        return call.performed()

    return end


class _Call:
    """The tensors of one call on one rank."""

    def __init__(self, case: Case, setting: Setting, rank: int) -> None:
        form = case.form
        self._case = case
        self._root = rank == case.root
        # The root alone gives a scatter's parts, and gets those of a gather.
        self._gives = self._root or form.collective != "scatter"
        self._gets = self._root or form.collective not in ("gather", "reduce")
        self._same = form.collective in ("all_reduce", "broadcast", "reduce")
        in_place = case.layout == "in_place"
        layout = "contiguous" if in_place else case.layout

        def lay_out(parts: list[Tensor], many: bool) -> list[Placed]:
            joined = [torch.cat(parts)] if many and form.joined else parts
            return [place(layout, tensor) for tensor in joined]

        self._data = case.data(setting, rank)
        self.inputs = lay_out(self._data, form.parts) if self._gives else []
        self._before = [tensor.view.clone() for tensor in self.inputs]
        self.outputs: list[Placed] = []
        if self._same:
            self.outputs = self.inputs if self._gets else []
        elif self._gets:
            self.outputs = lay_out(case.stale(setting, rank), form.joins)
        if in_place and self.inputs and self.outputs:
            if form.joins:
                own = _part(self.outputs, rank, setting.world, form.joined)
                own.copy_(self.inputs[0].view)
                self.inputs = [Placed(own, self.outputs[0].memory)]
            else:
                own = _part(self.inputs, rank, setting.world, form.joined)
                self.outputs = [Placed(own, self.inputs[0].memory)]
        self._in_place = in_place or self._same
        self._splits: tuple[Any, Any] = (None, None)
        if form.uneven and form.joined:
            ranks = range(setting.world)
            self._splits = (
                [case.lengths(setting, sender, rank) for sender in ranks],
                [case.lengths(setting, rank, receiver) for receiver in ranks],
            )

    def start(self, async_op: bool, group: Any) -> Any:
        """Makes the call."""
        case = self._case
        function = _FUNCTIONS[case.name.removesuffix(" uneven")]
        inputs = [placed.view for placed in self.inputs]
        outputs = [placed.view for placed in self.outputs]
        work = function(_Arguments(case, inputs, outputs, self._splits, group, async_op))
        # Past torch's functions there is always a work.
        if work is not None and not async_op:
            work.wait()
            return None
        return work

    def performed(self) -> Performed:
        """Looks at the tensors after the call."""
        damage = []
        if not self._in_place:
            damage += [
                f"input {number} changed"
                for number, (now, before) in enumerate(zip(self.inputs, self._before, strict=True))
                if difference(now.view, before)
            ]
        elif self._same and not self._gets and difference(self.inputs[0].view, self._before[0]):
            damage.append("the tensor of a rank that is not the root changed")
        # In place, what lies around one of the two is the other.
        apart = [] if self._case.layout == "in_place" else [*self.inputs, *self.outputs]
        damage += [f"tensor {n}: {words}" for n, p in enumerate(apart) if (words := p.damaged())]
        parts = [placed.view.reshape(-1) for placed in self.outputs]
        empty = torch.empty(0, dtype=DTYPES[self._case.dtype])
        return Performed(torch.cat(parts) if parts else empty, "; ".join(damage))


def _part(tensors: Sequence[Placed], rank: int, world: int, joined: bool) -> Tensor:
    return tensors[0].view.chunk(world)[rank] if joined else tensors[rank].view


@dataclass(frozen=True)
class _Arguments:
    case: Case
    inputs: list[Tensor]
    outputs: list[Tensor]
    splits: tuple[Any, Any]
    group: Any
    async_op: bool

    @property
    def op(self) -> Any:
        return getattr(dist.ReduceOp, self.case.op)

    @property
    def complex(self) -> bool:
        """Whether torch's functions for reductions would make floats of it, or refuse it."""
        return DTYPES[self.case.dtype].is_complex

    def options(self, options: Any) -> Any:
        """Fills in what every reduction takes."""
        options.reduceOp = dist.ReduceOp(self.op)
        options.asyncOp = self.async_op
        return options


def _all_reduce(a: _Arguments) -> Any:
    if a.complex:
        return a.group.allreduce(a.inputs, a.options(dist.AllreduceOptions()))
    return dist.all_reduce(a.inputs[0], a.op, a.group, a.async_op)


def _reduce(a: _Arguments) -> Any:
    if a.complex:
        options = a.options(dist.ReduceOptions())
        options.rootRank = a.case.root
        return a.group.reduce(a.inputs, options)
    return dist.reduce(
        a.inputs[0], op=a.op, group=a.group, async_op=a.async_op, group_dst=a.case.root
    )


def _reduce_scatter(a: _Arguments) -> Any:
    if a.complex:
        options = a.options(dist.ReduceScatterOptions())
        return a.group.reduce_scatter(a.outputs, [a.inputs], options)
    return dist.reduce_scatter(a.outputs[0], a.inputs, a.op, a.group, a.async_op)


def _reduce_scatter_tensor(a: _Arguments) -> Any:
    if a.complex:
        options = a.options(dist.ReduceScatterOptions())
        return a.group._reduce_scatter_base(a.outputs[0], a.inputs[0], options)
    return dist.reduce_scatter_tensor(a.outputs[0], a.inputs[0], a.op, a.group, a.async_op)


def _broadcast(a: _Arguments) -> Any:
    return dist.broadcast(a.inputs[0], None, a.group, a.async_op, group_src=a.case.root)


def _all_gather(a: _Arguments) -> Any:
    return dist.all_gather(a.outputs, a.inputs[0], a.group, a.async_op)


def _all_gather_into_tensor(a: _Arguments) -> Any:
    return dist.all_gather_into_tensor(a.outputs[0], a.inputs[0], a.group, a.async_op)


def _gather(a: _Arguments) -> Any:
    to = a.outputs or None
    return dist.gather(a.inputs[0], to, group=a.group, async_op=a.async_op, group_dst=a.case.root)


def _scatter(a: _Arguments) -> Any:
    of = a.inputs or None
    return dist.scatter(a.outputs[0], of, group=a.group, async_op=a.async_op, group_src=a.case.root)


def _all_to_all(a: _Arguments) -> Any:
    return dist.all_to_all(a.outputs, a.inputs, a.group, a.async_op)


def _all_to_all_single(a: _Arguments) -> Any:
    return dist.all_to_all_single(a.outputs[0], a.inputs[0], *a.splits, a.group, a.async_op)


_FUNCTIONS: dict[str, Callable[[_Arguments], Any]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
}
