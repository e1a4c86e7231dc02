"""The group that torch calls: its names for collectives, messages and life, in Python.

torch lets Python subclass `ProcessGroup` but not `Backend`, so this stands in the place of the
whole group: it serves CPU tensors, and no other backend beside it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, ErrorType, PrefixStore, Store

from . import monitored
from .choice import (
    LONGEST_TIMEOUT,
    CallPreferences,
    choose_shape,
    exchange_call_preferences,
    seconds_of,
)
from .collectives import Collectives
from .communicator import Communicator
from .errors import Identity, Kind
from .operation import ANY_SOURCE, MessageOperation
from .tensors import CallSite, Operands
from .work import CoalescedWork, ReferenceWork

Tensors = Sequence[Tensor]


@dataclass(frozen=True)
class GroupOptions:
    """What belongs to one group.

    Attributes:
        timeout: How long an operation may take.
        name: The group's name, for errors.
        global_ranks: Rank i of the group is global_ranks[i] of the job; empty: the same number.
        algorithms: Algorithms by collective, where the user has fixed them.
        channels: Number of channels; None is left to the implementation, as in the next two.
        slots: Slots of a link.
        slot_bytes: Bytes of a slot.
    """

    timeout: timedelta
    name: str
    global_ranks: tuple[int, ...] = ()
    algorithms: Mapping[str, str] | None = None
    channels: int | None = None
    slots: int | None = None
    slot_bytes: int | None = None


# What torch's stubs say of it names the same arguments otherwise in each overload.
_ProcessGroup: Any = dist.ProcessGroup


class ReferenceProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """One rank of a group, with nothing compiled.

    Nothing is sent and no thread is started before the first operation.

    Args:
        store: Where the ranks meet.
        rank: This rank.
        size: The world size.
        options: What belongs to the group.

    Raises:
        ValueError: The time-out is not positive.
    """

    def __init__(self, store: Store, rank: int, size: int, options: GroupOptions) -> None:
        super().__init__(rank, size)  # with a store, torch makes no group that Python can extend
        if options.timeout <= timedelta(0):
            raise ValueError(f"timeout must be positive, is {options.timeout}")
        self._store = store
        self._options = options
        self._name = options.name
        self._description = "undefined"
        shape = choose_shape(size, options.channels, options.slots, options.slot_bytes)
        identity = Identity(options.name, rank, size, options.global_ranks)
        seconds = min(options.timeout, LONGEST_TIMEOUT).total_seconds()
        self._communicator = Communicator(identity, shape, store, seconds)
        self._collectives = Collectives(self._communicator, options.algorithms or {})
        self._batches: dict[int, list[ReferenceWork]] = {}  # by thread
        self._barriers = 0  # monitored ones
        self._shrunk = 0
        # Also at the program's end.
        self._finalizer = weakref.finalize(self, self._communicator.shutdown)

    # ---- collectives -----------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, **given: Any) -> ReferenceWork:
        """Reduces one tensor of each rank, everywhere."""
        options = _options(dist.AllreduceOptions, opts, given, "op", "reduceOp")
        return self._begun(self._collectives.all_reduce(_listed(tensors), options))

    def broadcast(self, tensors: Any, opts: Any = None, **given: Any) -> ReferenceWork:
        """Gives the root's tensor to all."""
        options = _options(dist.BroadcastOptions, opts, given, "root", "rootRank")
        return self._begun(self._collectives.broadcast(_listed(tensors), options))

    def reduce(self, tensors: Any, opts: Any = None, **given: Any) -> ReferenceWork:
        """Reduces one tensor of each rank, to the root."""
        options = _options(dist.ReduceOptions, opts, given, "root", "rootRank")
        return self._begun(self._collectives.reduce(_listed(tensors), options))

    def allgather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, **given: Any
    ) -> ReferenceWork:
        """Gives the tensors of all ranks to all."""
        options = _options(AllgatherOptions, opts, given)
        outputs, inputs = _nested(output_tensors), _listed(input_tensors)
        return self._begun(self._collectives.all_gather(outputs, inputs, options))

    def all_gather_single(
        self, output: Tensor, input: Tensor, opts: Any = None, **given: Any
    ) -> ReferenceWork:
        """The same, into one tensor."""
        options = _options(AllgatherOptions, opts, given)
        return self._begun(self._collectives.all_gather_into_tensor(output, input, options))

    _allgather_base = all_gather_single

    def gather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, **given: Any
    ) -> ReferenceWork:
        """Gives the tensors of all ranks to the root."""
        options = _options(dist.GatherOptions, opts, given, "root", "rootRank")
        outputs, inputs = _nested(output_tensors), _listed(input_tensors)
        return self._begun(self._collectives.gather(outputs, inputs, options))

    def scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, **given: Any
    ) -> ReferenceWork:
        """Gives each rank one of the root's tensors."""
        options = _options(dist.ScatterOptions, opts, given, "root", "rootRank")
        outputs, inputs = _listed(output_tensors), _nested(input_tensors)
        return self._begun(self._collectives.scatter(outputs, inputs, options))

    def reduce_scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, **given: Any
    ) -> ReferenceWork:
        """Reduces a list of tensors; each rank gets one of the results."""
        options = _options(dist.ReduceScatterOptions, opts, given, "op", "reduceOp")
        outputs, inputs = _listed(output_tensors), _nested(input_tensors)
        return self._begun(self._collectives.reduce_scatter(outputs, inputs, options))

    def reduce_scatter_single(
        self, output: Tensor, input: Tensor, opts: Any = None, **given: Any
    ) -> ReferenceWork:
        """The same, of parts of one tensor."""
        options = _options(dist.ReduceScatterOptions, opts, given, "op", "reduceOp")
        return self._begun(self._collectives.reduce_scatter_tensor(output, input, options))

    _reduce_scatter_base = reduce_scatter_single

    def alltoall(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None, **given: Any
    ) -> ReferenceWork:
        """Gives each rank a tensor of its own, from lists."""
        options = _options(dist.AllToAllOptions, opts, given)
        return self._begun(self._collectives.all_to_all(output_tensors, input_tensors, options))

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
        **given: Any,
    ) -> ReferenceWork:
        """The same, from rows of one tensor to rows of another."""
        options = _options(dist.AllToAllOptions, opts, given)
        return self._begun(
            self._collectives.all_to_all_single(
                output, input, output_split_sizes or [], input_split_sizes or [], options
            )
        )

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, **given: Any) -> ReferenceWork:
        """Waits for all ranks."""
        return self._begun(self._collectives.barrier(_options(dist.BarrierOptions, opts, given)))

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Waits for all ranks; rank 0 names those that do not come.

        Args:
            timeout: How long; None: the group's time-out.
            wait_all_ranks: Whether to name all of them, instead of the first.

        Raises:
            CommTimeoutError: Some did not come.
        """
        self._barriers += 1
        seconds = self._communicator.timeout if timeout is None else timeout.total_seconds()
        monitored.barrier(self._communicator, self._barriers, seconds, wait_all_ranks)

    # ---- several as one --------------------------------------------------------------------------

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> CoalescedWork:
        """Reduces several tensors."""
        return CoalescedWork([self.allreduce([tensor], opts) for tensor in tensors])

    def allgather_coalesced(
        self, output_lists: Sequence[Tensors], input_list: Tensors, opts: Any = None
    ) -> CoalescedWork:
        """Gathers several tensors; output_lists[r][i] is tensor i of rank r."""
        site = self._site("all_gather_coalesced")
        if len(output_lists) != self.size():
            site.refuse(
                "output_tensor_lists",
                f"{len(output_lists)} lists given, but {self.size()} are needed, one for each rank",
            )
        for outputs in output_lists:
            _require_pairs(site, outputs, input_list)
        return CoalescedWork(
            [
                self.allgather([[outputs[number] for outputs in output_lists]], [tensor], opts)
                for number, tensor in enumerate(input_list)
            ]
        )

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> CoalescedWork:
        """Gathers several tensors, each into one tensor."""
        _require_pairs(self._site("all_gather_into_tensor_coalesced"), outputs, inputs)
        pairs = zip(outputs, inputs, strict=True)
        return CoalescedWork([self.all_gather_single(out, given, opts) for out, given in pairs])

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> CoalescedWork:
        """Reduces parts of several tensors."""
        _require_pairs(self._site("reduce_scatter_tensor_coalesced"), outputs, inputs)
        pairs = zip(outputs, inputs, strict=True)
        return CoalescedWork([self.reduce_scatter_single(out, given, opts) for out, given in pairs])

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _start_coalescing(self, device: object) -> None:
        if self._batches.setdefault(threading.get_ident(), []):
            self._site("start_coalescing").refuse(
                "group", "this thread has begun a batch already; end that one first"
            )

    def _end_coalescing(self, device: object) -> CoalescedWork:
        batch = self._batches.pop(threading.get_ident(), None)
        if batch is None:
            self._site("end_coalescing").refuse("group", "this thread has begun no batch")
        return CoalescedWork(batch)

    def _begun(self, work: ReferenceWork) -> ReferenceWork:
        batch = self._batches.get(threading.get_ident())
        if batch is not None:
            batch.append(work)
        return work

    # ---- messages --------------------------------------------------------------------------------

    def send(self, tensors: Tensors, dstRank: int, tag: int = 0) -> ReferenceWork:
        """Sends a tensor to a rank."""
        return self._message("send", tensors, dstRank, tag)

    def recv(self, tensors: Tensors, srcRank: int, tag: int = 0) -> ReferenceWork:
        """Receives a tensor of a rank."""
        return self._message("recv", tensors, srcRank, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> ReferenceWork:
        """Receives a tensor of whoever sends one first."""
        return self._message("recv", tensors, ANY_SOURCE, tag)

    def _message(self, name: str, tensors: Tensors, peer: int, tag: int) -> ReferenceWork:
        sends = name == "send"
        site = self._site(name)
        tensor = site.only(tensors, "tensors")
        argument = "dst" if sends else "src"
        any_source = not sends and peer == ANY_SOURCE
        if not any_source and not 0 <= peer < self.size():
            site.refuse(
                argument, f"rank {peer} is not in the group, which has ranks 0 to {self.size() - 1}"
            )
        if peer == self.rank():
            site.refuse(argument, f"rank {peer} is this rank itself; a message needs another one")
        if any_source and self.size() == 1:
            site.refuse(argument, "there is no other rank in the group")
        if tag < 0:
            site.refuse("tag", f"{tag} is negative")
        check = site.check if sends else site.check_output
        dtype = check(tensor, "tensor").dtype
        operands = Operands()
        data = operands.read(tensor) if sends else operands.write(tensor)
        operation = MessageOperation(
            name,
            data.nbytes,
            dtype,
            seconds_of(timedelta(0), self._communicator.timeout),
            operands.copy_back if operands.must_copy_back else None,
            sends=sends,
            peer=peer,
            tag=tag,
            data=data,
        )
        outputs = [] if sends else [tensor]
        return self._begun(ReferenceWork(self._communicator, operation, outputs).submit())

    # ---- the group -------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        """The backend's name, for C++."""
        return "hybridcomm"

    def getGroupName(self) -> str:
        """The group's name, for C++."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Names the group."""
        self._name = name

    _set_group_name = setGroupName

    def getGroupDesc(self) -> str:
        """The group's description, for C++."""
        return self._description

    def setGroupDesc(self, description: str) -> None:
        """Describes the group."""
        self._description = description

    _set_group_desc = setGroupDesc

    @property
    def group_name(self) -> Any:
        """The group's name."""
        return self._name

    @property
    def group_desc(self) -> str:
        """The group's description."""
        return self._description

    @property
    def shape(self) -> dict[str, int]:
        """The group's links, as the compiled backend shows them."""
        shape = self._communicator.shape
        return {
            "channels": shape.channels,
            "slots": shape.slots,
            "slot_bytes": shape.slot_bytes,
        }

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        return self

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def get_group_store(self) -> Store:
        """Where the ranks meet."""
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time-out of later operations.

        Raises:
            ValueError: It is not positive.
        """
        if timeout <= timedelta(0):
            raise ValueError(f"timeout must be positive, got {timeout}")
        self._communicator.timeout = min(timeout, LONGEST_TIMEOUT).total_seconds()

    _set_default_timeout = set_timeout

    @staticmethod
    def exchange_call_preferences(
        algorithm: str, deterministic: bool, timeout: timedelta
    ) -> tuple[str, bool, timedelta]:
        """Sets what this thread's next calls ask for, and gives back what held before."""
        before = exchange_call_preferences(CallPreferences(algorithm, deterministic, timeout))
        return before.algorithm, before.deterministic, before.timeout

    def get_error(self) -> ErrorType:
        """Whether the group has failed, and how."""
        failure = self._communicator.failure
        if failure is None:
            return ErrorType.SUCCESS
        kinds = {Kind.TIMEOUT: ErrorType.TIMEOUT, Kind.PEER_LOST: ErrorType.REMOTE_ERROR}
        return kinds.get(failure.kind, ErrorType.COMM_ERROR)

    def _set_sequence_number_for_group(self) -> None:
        """Operations are numbered from 1 on every rank, so there is nothing to agree on."""

    def _get_sequence_number_for_group(self) -> int:
        return self._communicator.sequence

    def abort(self) -> None:
        """Fails what is pending, on all ranks."""
        self._communicator.abort("abort() was called")

    def shutdown(self) -> None:
        """Leaves the group; what is pending on this rank fails."""
        self._finalizer()

    # ---- other groups ----------------------------------------------------------------------------

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: Any = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ReferenceProcessGroup | None:
        """Makes a group of some ranks of this one, as `ProcessGroup.split_group` does."""
        site = self._site("split")
        for rank in new_ranks:
            if not 0 <= rank < self.size():
                site.refuse(
                    "ranks",
                    f"{rank} is not in the group, which has ranks 0 to {self.size() - 1}",
                )
            if list(new_ranks).count(rank) > 1:
                site.refuse("ranks", f"{rank} is named twice")
        if self.rank() not in new_ranks:
            return None
        name = group_name or f"{self._name}:split:{'-'.join(map(str, new_ranks))}"
        ranks = tuple(self._global_rank(rank) for rank in new_ranks)
        store = PrefixStore(f"{name}/", self._store)
        options = replace(
            self._options,
            name=str(name),
            global_ranks=ranks,
            timeout=timeout or self._options.timeout,
        )
        own = list(new_ranks).index(self.rank())
        group = ReferenceProcessGroup(store, own, len(ranks), options)
        group.setGroupDesc(group_desc or f"{self._description}:split")
        return group

    def merge_remote_group(
        self,
        store: Store,
        size: int,
        timeout: timedelta | None = None,
        group_name: Any = None,
        group_desc: str | None = None,
    ) -> ReferenceProcessGroup:
        """Makes a group with ranks of others, as `ProcessGroup.merge_remote_group` does."""
        name = str(group_name or f"{self._name}:merged")
        rank = store.add("mergeRank", 1) - 1
        options = replace(
            self._options, name=name, global_ranks=(), timeout=timeout or self._options.timeout
        )
        group = ReferenceProcessGroup(PrefixStore(f"{name}/", store), rank, size, options)
        group.setGroupDesc(group_desc or f"{self._description}:merged")
        return group

    def shrink(
        self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, opts: Any = None
    ) -> ReferenceProcessGroup:
        """Makes a group without some ranks, which may be dead; this one may have failed."""
        site = self._site("shrink")
        for rank in ranks_to_exclude:
            if not 0 <= rank < self.size():
                site.refuse(
                    "ranks_to_exclude",
                    f"{rank} is not in the group, which has ranks 0 to {self.size() - 1}",
                )
            if rank == self.rank():
                site.refuse("ranks_to_exclude", "it names the rank that calls")
        left = [rank for rank in range(self.size()) if rank not in ranks_to_exclude]
        if shrink_flags & 1:
            self.abort()
        self._shrunk += 1
        out = "".join(f"-{rank}" for rank in sorted(set(ranks_to_exclude)))
        store = PrefixStore(f"hybridcomm/shrunk{self._shrunk}{out}", self._store)
        ranks = tuple(map(self._global_rank, left))
        options = replace(self._options, name=f"{self._name}/{len(left)}", global_ranks=ranks)
        return ReferenceProcessGroup(store, left.index(self.rank()), len(left), options)

    def _global_rank(self, rank: int) -> int:
        known = self._options.global_ranks
        return known[rank] if rank < len(known) else rank

    def _site(self, name: str) -> CallSite:
        return CallSite(name, self.rank(), self._options.name)


def _options(make: Callable[[], Any], given: Any, words: dict[str, Any], *names: str) -> Any:
    """torch's options of a call: given as such, or as arguments of their own.

    Args:
        make: Makes the default ones.
        given: Options; or the reduction or root by itself; or None.
        words: Keyword arguments of the call.
        *names: How the reduction or root is called as an argument, and in the options.

    Returns:
        Options.
    """
    if given is not None and type(given).__name__.endswith("Options"):
        return given
    options = make()
    if names:
        value = words.get(names[0], given)
        if value is not None:
            reduces = names[1] == "reduceOp"
            setattr(options, names[1], dist.ReduceOp(value) if reduces else value)
    if hasattr(options, "reduceOp") and "op" in words:
        options.reduceOp = dist.ReduceOp(words["op"])
    if words.get("timeout") is not None:
        options.timeout = words["timeout"]
    return options


def _listed(tensors: Any) -> Tensors:
    return [tensors] if isinstance(tensors, Tensor) else tensors


def _nested(tensors: Any) -> Sequence[Tensors]:
    return [tensors] if tensors and isinstance(tensors[0], Tensor) else tensors


def _require_pairs(site: CallSite, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
    if len(outputs) != len(inputs):
        site.refuse(
            "outputs",
            f"{len(outputs)} given for {len(inputs)} inputs; there must be one for each",
        )
