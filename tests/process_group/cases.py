"""The calls that are compared with the reference executor: which there are.

A `Setting` fixes what belongs to a group (options, world size), a `Case` what belongs to a call;
how it is made is in `calls.py`. `matrix` lists all combinations for a world size; `thinned` keeps
enough of them that any two, or any three, values still meet in some case: each type with each size,
each size with each layout, each layout with each setting, ...
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor

from hybridcomm.reference import RedOp, run_collective
from tests.support.tensors import DTYPES, LAYOUTS, shape_for, values

WORLDS = range(1, 9)


@dataclass(frozen=True)
class Form:
    """One way to call a collective.

    Args:
        collective: What it computes.
        reduces: Whether it takes a reduction.
        rooted: Whether it takes a root.
        parts: Whether each rank's data has a part for every rank.
        joins: Whether each rank's result has a part from every rank.
        joined: Whether those parts lie in one tensor, else in a list.
        in_place: Whether input and output may share memory.
        uneven: Whether the parts are of different lengths.
    """

    collective: str
    reduces: bool = False
    rooted: bool = False
    parts: bool = False
    joins: bool = False
    joined: bool = False
    in_place: bool = False
    uneven: bool = False


FORMS = {
    "all_reduce": Form("all_reduce", reduces=True),
    "broadcast": Form("broadcast", rooted=True),
    "reduce": Form("reduce", reduces=True, rooted=True),
    "all_gather": Form("all_gather", joins=True, in_place=True),
    "all_gather uneven": Form("all_gather", joins=True, in_place=True, uneven=True),
    "all_gather_into_tensor": Form("all_gather", joins=True, joined=True, in_place=True),
    "reduce_scatter": Form("reduce_scatter", reduces=True, parts=True, in_place=True),
    "reduce_scatter uneven": Form(
        "reduce_scatter", reduces=True, parts=True, in_place=True, uneven=True
    ),
    "reduce_scatter_tensor": Form(
        "reduce_scatter", reduces=True, parts=True, joined=True, in_place=True
    ),
    "gather": Form("gather", rooted=True, joins=True, in_place=True),
    "scatter": Form("scatter", rooted=True, parts=True, in_place=True),
    "all_to_all": Form("all_to_all", parts=True, joins=True),
    "all_to_all uneven": Form("all_to_all", parts=True, joins=True, uneven=True),
    "all_to_all_single": Form("all_to_all", parts=True, joins=True, joined=True),
    "all_to_all_single uneven": Form(
        "all_to_all", parts=True, joins=True, joined=True, uneven=True
    ),
}
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


_NEIGHBOURS = {
    "all_reduce": "ring",
    "broadcast": "chain",
    "reduce": "binomial",
    "all_gather": "ring",
    "reduce_scatter": "ring",
    "all_to_all": "pairwise",
    "gather": "binomial",
    "scatter": "binomial",
}
_DIRECT = dict.fromkeys(_NEIGHBOURS, "direct") | {"all_reduce": "two_shot"}
_TREES = {
    "all_reduce": "double_binary_tree",
    "broadcast": "binomial",
    "reduce": "binomial",
    "all_gather": "bruck",
    "reduce_scatter": "recursive_halving",
    "all_to_all": "pairwise",
    "gather": "binomial",
    "scatter": "binomial",
}
_ONE_SHOT = _DIRECT | {"all_reduce": "one_shot"}
_HALVING = _TREES | {"all_reduce": "halving_doubling"}


def settings(world: int) -> tuple[Setting, ...]:
    """The groups of one size that are tried.

    Args:
        world: Number of ranks.

    Returns:
        Every algorithm, with one channel and with several.
    """
    return (
        Setting("neighbours", world, _NEIGHBOURS, channels=1, slots=2, slot_bytes=4096),
        Setting("neighbours, 3 channels", world, _NEIGHBOURS, channels=3, slots=4, slot_bytes=256),
        Setting("direct", world, _DIRECT, channels=1, slots=2, slot_bytes=4096),
        Setting("direct, 2 channels", world, _DIRECT, channels=2, slots=4, slot_bytes=512),
        Setting("trees", world, _TREES, channels=1, slots=3, slot_bytes=1024),
        Setting("one shot, 2 channels", world, _ONE_SHOT, channels=2, slots=2, slot_bytes=2048),
        Setting("halving, 2 channels", world, _HALVING, channels=2, slots=2, slot_bytes=512),
    )


@dataclass(frozen=True)
class Case:
    """One call.

    Args:
        name: One of `FORMS`: the function of torch.distributed, and whether its parts are uneven.
        dtype: Name of the element type.
        op: Name of the reduction; "" if there is none.
        size: One of `SIZES`.
        layout: One of `LAYOUTS`, or "in_place" where input and output share memory.
        root: Root rank where there is one, otherwise 0.
    """

    name: str
    dtype: str
    op: str
    size: str
    layout: str
    root: int

    def __str__(self) -> str:
        words = [self.name, self.op, self.dtype, f"size {self.size}", self.layout]
        if self.form.rooted:
            words.append(f"root {self.root}")
        return " ".join(filter(None, words))

    @property
    def seed(self) -> int:
        """A number of this case alone, the same in every process."""
        return int.from_bytes(hashlib.blake2b(str(self).encode(), digest_size=4).digest(), "big")

    @property
    def form(self) -> Form:
        """The way to call."""
        return FORMS[self.name]

    def count(self, setting: Setting) -> int:
        """Elements of each rank's tensor, or of one of its parts; of the average one if uneven.

        Args:
            setting: The group. Sizes around a slot are such that a chunk is as long as a slot.

        Returns:
            The number.
        """
        if self.size.isdecimal():
            return int(self.size)
        ranks = setting.world if self.form.collective == "all_reduce" else 1
        slot = setting.slot_bytes // DTYPES[self.dtype].itemsize
        whole = slot * ranks * setting.channels
        if self.size == "segments":  # two and a piece, whatever a message's share of the slots
            return whole * setting.slots * 2 + slot // 2 + 3
        return whole + {"slot - 1": -1, "slot": 0, "slot + 1": 1}[self.size]

    def lengths(self, setting: Setting, sender: int, receiver: int) -> int:
        """Elements that go from one rank to another; of an uneven call some are none.

        Args:
            setting: The group.
            sender: Whose data.
            receiver: Whose result. Of an all-gather or reduce-scatter only one of the two counts.

        Returns:
            The number.
        """
        count = self.count(setting)
        if not self.form.uneven:
            return count
        pair = {"all_gather": sender, "reduce_scatter": receiver}
        mixed = pair.get(self.form.collective, 2 * sender + 3 * receiver)
        return count * ((mixed + 1) % 3) // 2 + (mixed % 2 if count else 0)

    def data(self, setting: Setting, rank: int) -> list[Tensor]:
        """The data of one rank, as parts: one for every rank, or a single one for all.

        Args:
            setting: The group.
            rank: The rank.

        Returns:
            Contiguous tensors, of one dimension if the parts are uneven.
        """
        to = range(setting.world) if self.form.parts else [rank]
        lengths = [self.lengths(setting, rank, receiver) for receiver in to]
        flat = values(DTYPES[self.dtype], sum(lengths), self.seed, rank)
        return self._shaped(list(flat.split(lengths)))

    def stale(self, setting: Setting, rank: int) -> list[Tensor]:
        """What lies in the memory of a rank's result before the call, as parts.

        Args:
            setting: The group.
            rank: The rank.

        Returns:
            As if a call before had left its result there, so that an element never written shows.
        """
        of = range(setting.world) if self.form.joins else [rank]
        lengths = [self.lengths(setting, sender, rank) for sender in of]
        flat = values(DTYPES[self.dtype], sum(lengths), self.seed + 1, rank)
        return self._shaped(list(flat.split(lengths)))

    def _shaped(self, parts: list[Tensor]) -> list[Tensor]:
        if self.form.uneven:
            return parts
        return [part.view(shape_for(self.layout, part.numel())) for part in parts]


Call = tuple[Setting, Case]


def matrix(world: int) -> list[Call]:
    """All calls of one world size.

    Args:
        world: Number of ranks.

    Returns:
        Every combination that means something.
    """
    calls = []
    for name, form in FORMS.items():
        kinds = [(dtype, op) for dtype in DTYPES for op in legal_ops(dtype)]
        every = product(
            settings(world),
            kinds if form.reduces else [(dtype, "") for dtype in DTYPES],
            SIZES,
            (*LAYOUTS, "in_place") if form.in_place else LAYOUTS,
            range(world if form.rooted else 1),
        )
        calls += [
            (setting, Case(name, dtype, op, size, layout, root))
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


def thinned(calls: Iterable[Call], seed: int, strength: int) -> Iterator[Call]:
    """Drops calls as long as values that meet in some call still meet in one that is left.

    Args:
        calls: Calls; they are taken in a random order.
        seed: Of that order.
        strength: How many values must meet.

    Yields:
        The calls that are left.
    """
    met: set[Any] = set()
    shuffled = list(calls)
    random.Random(seed).shuffle(shuffled)
    for call in shuffled:
        new = meetings(call, strength) - met
        if new:
            met |= new
            yield call


def meetings(call: Call, strength: int) -> set[Any]:
    """The values that meet in a call, so many at a time.

    Of an all-reduce, type and reduction count as one value: what a reduction does depends on both,
    and is the same in all collectives that reduce.

    Args:
        call: The call.
        strength: How many.

    Returns:
        The combinations of its values, with their places, and the form.
    """
    setting, case = call
    kind = ((case.dtype, case.op),) if case.name == "all_reduce" else (case.dtype, case.op)
    fields = (setting.name, case.size, case.layout, case.root, *kind)
    return {(case.name, some) for some in combinations(enumerate(fields), strength)}


def for_gloo(case: Case) -> bool:
    """Whether Gloo can do a case, with a result that does not depend on the order of operands.

    Args:
        case: The case.

    Returns:
        True if so.
    """
    if case.layout not in ("contiguous", "offset") or case.form.uneven:
        return False
    if case.form.collective not in ("all_reduce", "broadcast", "all_gather"):
        return False
    moved = case.dtype in ("uint8", "int8", "int32", "int64", "float32", "float64", "float16")
    if case.op:
        return case.dtype in ("uint8", "int8", "int32", "int64") and case.op != "AVG"
    return moved


def algorithm_of(case: Case, setting: Setting) -> str:
    """The algorithm that carries a case out.

    Args:
        case: The call.
        setting: The group.

    Returns:
        The setting's, but where integers are averaged: that is exact only where all operands meet.
    """
    form, dtype = case.form, DTYPES[case.dtype]
    chosen = setting.algorithms[form.collective]
    if case.op != "AVG" or dtype.is_floating_point or dtype.is_complex:
        return chosen
    if form.collective == "all_reduce":
        return chosen if chosen in ("two_shot", "one_shot") else "two_shot"
    return "direct"


def expected(case: Case, setting: Setting) -> list[Tensor]:
    """Runs the reference executor.

    Args:
        case: The call.
        setting: The group.

    Returns:
        Each rank's result in one dimension, all parts of it; empty where it gets none.
    """
    form, ranks = case.form, range(setting.world)
    flat = [torch.cat([part.reshape(-1) for part in case.data(setting, r)]) for r in ranks]
    splits: Any = None
    if form.uneven and form.collective == "all_to_all":
        splits = [[case.lengths(setting, s, d) for d in ranks] for s in ranks]
    elif form.uneven:
        splits = [case.lengths(setting, r, r) for r in ranks]
    elif form.parts:
        flat = [tensor.view(setting.world, -1) for tensor in flat]
    results = run_collective(
        form.collective,
        algorithm_of(case, setting),
        flat,
        op=RedOp[case.op] if case.op else RedOp.SUM,
        root=case.root if form.rooted else None,
        channels=setting.channels,
        splits=splits,
        # One segment: how many there are makes no difference, and the reference is quicker.
        slot_bytes=1 << 24,
    )
    return [result.reshape(-1) for result in results]
