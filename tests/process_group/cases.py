"""The calls that are compared with the reference executor: which there are, and how to make one.

A `Setting` fixes what belongs to a group (options, world size), a `Case` what belongs to a call.
`matrix` lists all combinations for a world size; `thinned` keeps enough of them that any two values
still meet in some case: each type and reduction with each size, each size with each layout, each
layout with each setting, ...
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hybridcomm.reference import RedOp, run_collective
from tests.support.tensors import DTYPES, LAYOUTS, Placed, difference, place, shape_for, values

WORLDS = range(1, 9)
FORMS = ("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor")
SIZES = ("0", "1", "7", "1031", "slot - 1", "slot", "slot + 1", "segments")

_FLOATS = frozenset(["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"])
_COMPLEX = frozenset({"complex64", "complex128"})
_MOVED_ONLY = frozenset({"float8_e4m3fnuz", "float8_e5m2fnuz", "complex32"})
_ARITHMETIC = ("SUM", "AVG", "PRODUCT")
_ORDER = ("MIN", "MAX")
_BITWISE = ("BAND", "BOR", "BXOR")


@dataclass(frozen=True)
class Setting:
    """A group: its size and its options.

    Args:
        name: Of the options, for people.
        world: Number of ranks.
        algorithms: The algorithm of each collective.
        channels: Number of channels.
        slots: Slots of a link.
        slot_bytes: Bytes of a slot. Small ones reach many segments with few bytes.
    """

    name: str
    world: int
    algorithms: Mapping[str, str]
    channels: int
    slots: int
    slot_bytes: int

    def __str__(self) -> str:
        return f"{self.name}, {self.world} ranks"

    def options(self) -> dict[str, Any]:
        """The same as keyword arguments of `hybridcomm.Options`.

        Returns:
            A new dictionary.
        """
        return {
            "algorithms": dict(self.algorithms),
            "channels": self.channels,
            "slots": self.slots,
            "slot_bytes": self.slot_bytes,
        }


_RING = {"all_reduce": "ring", "broadcast": "binomial", "all_gather": "ring"}
_DIRECT = {"all_reduce": "two_shot", "broadcast": "direct", "all_gather": "direct"}


def settings(world: int) -> tuple[Setting, ...]:
    """The groups of one size that are tried.

    Args:
        world: Number of ranks.

    Returns:
        Both families of algorithms, each with one channel and with several.
    """
    return (
        Setting("ring", world, _RING, channels=1, slots=2, slot_bytes=4096),
        Setting("ring, 3 channels", world, _RING, channels=3, slots=4, slot_bytes=256),
        Setting("direct", world, _DIRECT, channels=1, slots=2, slot_bytes=4096),
        Setting("direct, 2 channels", world, _DIRECT, channels=2, slots=4, slot_bytes=512),
    )


@dataclass(frozen=True)
class Case:
    """One call.

    Args:
        form: The function of torch.distributed.
        dtype: Name of the element type.
        op: Name of the reduction; "" if there is none.
        size: One of `SIZES`.
        layout: One of `LAYOUTS`, or "in_place" for a gather whose input lies in its output.
        root: Root rank of a broadcast, otherwise 0.
    """

    form: str
    dtype: str
    op: str
    size: str
    layout: str
    root: int

    def __str__(self) -> str:
        words = [self.form, self.op, self.dtype, f"size {self.size}", self.layout]
        if self.form == "broadcast":
            words.append(f"from {self.root}")
        return " ".join(filter(None, words))

    @property
    def seed(self) -> int:
        """A number of this case alone, the same in every process."""
        return int.from_bytes(hashlib.blake2b(str(self).encode(), digest_size=4).digest(), "big")

    @property
    def collective(self) -> str:
        """The collective behind the function."""
        return self.form.removesuffix("_into_tensor")

    def count(self, setting: Setting) -> int:
        """Elements of each rank's tensor.

        Args:
            setting: The group. Sizes around a slot are such that a chunk is as long as a slot.

        Returns:
            The number.
        """
        if self.size.isdecimal():
            return int(self.size)
        ranks = setting.world if self.form == "all_reduce" else 1
        slot = setting.slot_bytes // DTYPES[self.dtype].itemsize
        whole = slot * ranks * setting.channels
        if self.size == "segments":  # two and a piece, whatever a message's share of the slots
            return whole * setting.slots * 2 + slot // 2 + 3
        return whole + {"slot - 1": -1, "slot": 0, "slot + 1": 1}[self.size]

    def input(self, setting: Setting, rank: int) -> Tensor:
        """The data of one rank.

        Args:
            setting: The group.
            rank: The rank.

        Returns:
            A contiguous tensor of the shape that the call has.
        """
        count = self.count(setting)
        data = values(DTYPES[self.dtype], count, self.seed, rank)
        return data.view(shape_for(self.layout, count))


Call = tuple[Setting, Case]


def matrix(world: int) -> list[Call]:
    """All calls of one world size.

    Args:
        world: Number of ranks.

    Returns:
        Every combination that means something.
    """
    calls = []
    for form in FORMS:
        gather = form.startswith("all_gather")
        kinds = [(dtype, op) for dtype in DTYPES for op in legal_ops(dtype)]
        every = product(
            settings(world),
            kinds if form == "all_reduce" else [(dtype, "") for dtype in DTYPES],
            SIZES,
            (*LAYOUTS, "in_place") if gather else LAYOUTS,
            range(world if form == "broadcast" else 1),
        )
        calls += [
            (setting, Case(form, dtype, op, size, layout, root))
            for setting, (dtype, op), size, layout, root in every
        ]
    return calls


def legal_ops(dtype: str) -> tuple[str, ...]:
    """The reductions that are defined for a type.

    Args:
        dtype: Its name.

    Returns:
        Their names.
    """
    if dtype in _MOVED_ONLY:
        return ()
    if dtype in _FLOATS:
        return _ARITHMETIC + _ORDER
    if dtype in _COMPLEX:
        return _ARITHMETIC
    if dtype == "bool":
        return ("SUM", "PRODUCT", *_ORDER, *_BITWISE)
    return _ARITHMETIC + _ORDER + _BITWISE


def thinned(calls: Iterable[Call], seed: int) -> Iterator[Call]:
    """Drops calls as long as any two values that meet in some call still meet in one that is left.

    Args:
        calls: Calls; they are taken in a random order.
        seed: Of that order.

    Yields:
        The calls that are left.
    """
    met: set[Any] = set()
    shuffled = list(calls)
    random.Random(seed).shuffle(shuffled)
    for call in shuffled:
        new = pairs(call) - met
        if new:
            met |= new
            yield call


def pairs(call: Call) -> set[Any]:
    """The pairs of values that meet in a call.

    Type and reduction count as one value: what a reduction does depends on both.

    Args:
        call: The call.

    Returns:
        Any two of its values, with their places, and the form.
    """
    setting, case = call
    fields = (setting.name, (case.dtype, case.op), case.size, case.layout, case.root)
    return {(case.form, pair) for pair in combinations(enumerate(fields), 2)}


def for_gloo(case: Case) -> bool:
    """Whether Gloo can do a case, with a result that does not depend on the order of operands.

    Args:
        case: The case.

    Returns:
        True if so.
    """
    if case.layout not in ("contiguous", "offset"):
        return False
    moved = case.dtype in ("uint8", "int8", "int32", "int64", "float32", "float64", "float16")
    if case.op:
        return case.dtype in ("uint8", "int8", "int32", "int64") and case.op != "AVG"
    return moved


def expected(case: Case, setting: Setting) -> list[Tensor]:
    """Runs the reference executor.

    Args:
        case: The call.
        setting: The group.

    Returns:
        Each rank's result, as `begin` gives it, in some shape.
    """
    algorithm = setting.algorithms[case.collective]
    if (
        case.op == "AVG"
        and not DTYPES[case.dtype].is_floating_point | DTYPES[case.dtype].is_complex
    ):
        algorithm = "two_shot"  # integers are averaged only where all operands meet
    return run_collective(
        case.collective,
        algorithm,
        [case.input(setting, rank) for rank in range(setting.world)],
        op=RedOp[case.op] if case.op else RedOp.SUM,
        root=case.root if case.collective == "broadcast" else None,
        channels=setting.channels,
        # One segment: how many there are makes no difference, and the reference is quicker.
        slot_bytes=1 << 24,
    )


@dataclass(frozen=True)
class Performed:
    """What a call did on one rank.

    Args:
        result: The result; a gather's is the ranks' tensors one after the other.
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
    rank = dist.get_rank(group)
    layout = "contiguous" if case.layout == "in_place" else case.layout
    data = case.input(setting, rank)
    source = place(layout, data)
    if not case.form.startswith("all_gather"):
        if case.form == "all_reduce":
            work = _all_reduce(source.view, getattr(dist.ReduceOp, case.op), group, async_op)
        else:
            work = dist.broadcast(source.view, None, group, async_op, group_src=case.root)
        return _ending(work, lambda: Performed(source.view, _damage(tensor=source)))

    # As if a call before had left its result there, so that an element never written shows.
    world = setting.world
    stale = values(data.dtype, world * data.numel(), case.seed + 1, rank).view(world, *data.shape)
    if case.form == "all_gather":
        outputs = [place(layout, tensor) for tensor in stale]
        if case.layout == "in_place":
            outputs[rank] = source
        work = dist.all_gather([o.view for o in outputs], source.view, group, async_op)
        return _ending(work, lambda: _gathered(case, source, data, outputs))
    if case.layout == "in_place":  # with the output in its other legal shape, a stack
        output = place(layout, stale)
        source = Placed(output.view[rank].copy_(data), output.memory)
    else:
        output = place(layout, stale.flatten(0, 1))
    work = dist.all_gather_into_tensor(output.view, source.view, group, async_op)
    return _ending(work, lambda: _gathered(case, source, data, [output]))


def _all_reduce(
    tensor: Tensor, op: dist.ReduceOp.RedOpType, group: dist.ProcessGroup | None, async_op: bool
) -> dist.Work | None:
    work: dist.Work | None
    if not tensor.is_complex():
        work = dist.all_reduce(tensor, op, group, async_op)
        return work
    # dist.all_reduce makes floats of complex numbers, and refuses products: go past it.
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp(op)
    options.asyncOp = async_op
    group = group or dist.group.WORLD
    assert group is not None
    work = group.allreduce([tensor], options)
    return work


def _gathered(case: Case, source: Placed, data: Tensor, outputs: list[Placed]) -> Performed:
    damage = _damage(**{f"output {number}": output for number, output in enumerate(outputs)})
    if case.layout != "in_place" and (source.damaged() or difference(source.view, data)):
        damage += "; the input changed"
    return Performed(torch.cat([output.view for output in outputs]), damage)


def _ending(work: dist.Work | None, result: Callable[[], Performed]) -> Callable[[], Performed]:
    def end() -> Performed:
        if work is not None:
            work.wait()
        return result()

    return end


def _damage(**tensors: Placed) -> str:
    found = {name: placed.damaged() for name, placed in tensors.items()}
    return "; ".join(f"{name}: {words}" for name, words in found.items() if words)
