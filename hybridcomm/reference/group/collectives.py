"""From torch's collectives to operations: which tensors, checked how, in which buffers.

The same checks, in the same order, as csrc/torch/collectives.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from hybridcomm.programs.layout import Collective

from ..numerics import RedOp
from .choice import choose_algorithm, find_program, seconds_of
from .communicator import Communicator
from .operation import Collect, CollectiveOperation
from .sparse import SparseSum
from .tensors import PREMUL_SUM, CallSite, Elements, Operands, find_shared_elements, overlap
from .work import ReferenceWork

Tensors = Sequence[Tensor]


@dataclass
class _Call:
    """A call that is being put together."""

    collective: Collective
    site: CallSite
    operands: Operands = field(default_factory=Operands)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


class Collectives:
    """Makes operations of the calls of one group.

    Args:
        communicator: Carries them out.
        algorithms: What the user prefers, by collective.
    """

    def __init__(self, communicator: Communicator, algorithms: Mapping[str, str]) -> None:
        self._communicator = communicator
        self._algorithms = algorithms
        self._rank = communicator.identity.rank
        self._world = communicator.identity.world

    # ---- reductions ------------------------------------------------------------------------------

    def all_reduce(self, tensors: Tensors, options: Any) -> ReferenceWork:
        """Reduces one tensor of each rank, everywhere."""
        call = self._begin(Collective.ALL_REDUCE, "all_reduce")
        tensor = call.site.only(tensors, "tensors")
        if isinstance(tensor, Tensor) and tensor.layout is not torch.strided:
            return self._all_reduce_sparse(call, tensor, options)
        elements = call.site.check_output(tensor, "tensor")
        op = call.site.check_reduction(tensor, "tensor", _number(options))
        if _number(options) == PREMUL_SUM:
            call.inputs = [self._contribution(call, tensor, options)]
            call.outputs = [call.operands.write(tensor)]
        else:
            call.inputs = call.outputs = [call.operands.update(tensor)]
        return self._start(call, elements, options.timeout, [tensor], op=op)

    def _all_reduce_sparse(self, call: _Call, tensor: Tensor, options: Any) -> ReferenceWork:
        sparse = SparseSum(call.site, tensor, _number(options), self._communicator.identity)
        algorithm = self._choose(Collective.ALL_GATHER, torch.int64, RedOp.SUM)
        return self._submit(
            call,
            tensor._nnz() * tensor.itemsize,
            tensor.dtype,
            options.timeout,
            sparse.phases(algorithm),
            [tensor],
            sparse.finish,
        )

    def reduce(self, tensors: Tensors, options: Any) -> ReferenceWork:
        """Reduces one tensor of each rank, to the root."""
        call = self._begin(Collective.REDUCE, "reduce")
        tensor = call.site.only(tensors, "tensors")
        root = self._check_root(call.site, "dst", options.rootRank, options.rootTensor)
        is_root = root == self._rank
        check = call.site.check_output if is_root else call.site.check
        elements = check(tensor, "tensor")
        op = call.site.check_reduction(tensor, "tensor", _number(options))
        # Only the root's tensor changes.
        if not is_root or _number(options) == PREMUL_SUM:
            call.inputs = [self._contribution(call, tensor, options)]
            call.outputs = [call.operands.write(tensor)] if is_root else []
        else:
            call.inputs = call.outputs = [call.operands.update(tensor)]
        return self._start(call, elements, options.timeout, [tensor], op=op, root=root)

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], options: Any
    ) -> ReferenceWork:
        """Reduces a list of tensors; each rank gets one of the results."""
        call = self._begin(Collective.REDUCE_SCATTER, "reduce_scatter")
        output = call.site.only(outputs, "output_tensors")
        tensors = call.site.only_list(inputs, "input_tensors")
        dtype = call.site.check_output(output, "output").dtype
        self._check_list(call.site, tensors, "input_list", output, "output", False)
        own = self._rank
        call.site.check_match(
            output, "output", tensors[own].numel(), tensors[own], f"input_list[{own}]"
        )
        op = call.site.check_reduction(output, "output", _number(options))
        call.inputs = [self._contribution(call, tensor, options) for tensor in tensors]
        call.outputs = [self._place_output(call, output)]
        count, splits = _lengths(tensors)
        elements = Elements(dtype, count)
        return self._start(call, elements, options.timeout, [output], op=op, splits=splits)

    def reduce_scatter_tensor(self, output: Tensor, given: Tensor, options: Any) -> ReferenceWork:
        """The same, of parts of one tensor."""
        call = self._begin(Collective.REDUCE_SCATTER, "reduce_scatter_tensor")
        elements = call.site.check_output(output, "output")
        call.site.check(given, "input")
        call.site.check_match(given, "input", output.numel() * self._world, output, "output")
        op = call.site.check_reduction(output, "output", _number(options))
        call.inputs = self._even_parts(self._contribution(call, given, options))
        call.outputs = [self._place_output(call, output)]
        return self._start(call, elements, options.timeout, [output], op=op)

    def _contribution(self, call: _Call, tensor: Tensor, options: Any) -> Tensor:
        if _number(options) != PREMUL_SUM:
            return call.operands.read(tensor)
        factor = options.reduceOp.factor
        if factor is None:
            call.site.refuse("op", "PREMUL_SUM comes without a factor")
        return call.operands.scaled(tensor, factor)

    # ---- one rank's data to others ---------------------------------------------------------------

    def broadcast(self, tensors: Tensors, options: Any) -> ReferenceWork:
        """Gives the root's tensor to all."""
        call = self._begin(Collective.BROADCAST, "broadcast")
        tensor = call.site.only(tensors, "tensors")
        root = self._check_root(call.site, "src", options.rootRank, options.rootTensor)
        if root == self._rank:
            elements = call.site.check(tensor, "tensor")
            call.inputs = call.outputs = [call.operands.read(tensor)]
        else:
            elements = call.site.check_output(tensor, "tensor")
            call.inputs = call.outputs = [call.operands.write(tensor)]
        return self._start(call, elements, options.timeout, [tensor], root=root)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], options: Any) -> ReferenceWork:
        """Gives each rank one of the root's tensors."""
        call = self._begin(Collective.SCATTER, "scatter")
        output = call.site.only(outputs, "output_tensors")
        root = self._check_root(call.site, "src", options.rootRank, 0)
        elements = call.site.check_output(output, "tensor")
        if root == self._rank:
            tensors = call.site.only_list(inputs, "input_tensors")
            self._check_list(call.site, tensors, "scatter_list", output, "tensor", False)
            for number, tensor in enumerate(tensors):
                name = f"scatter_list[{number}]"
                call.site.check_match(tensor, name, output.numel(), output, "tensor")
            call.inputs = [call.operands.read(tensor) for tensor in tensors]
        elif inputs:
            call.site.refuse(
                "scatter_list",
                f"given on a rank that is not the source; only rank {root} gives one",
            )
        call.outputs = [self._place_output(call, output)]
        return self._start(call, elements, options.timeout, [output], root=root)

    # ---- all ranks' data to some -----------------------------------------------------------------

    def all_gather(
        self, outputs: Sequence[Tensors], inputs: Tensors, options: Any
    ) -> ReferenceWork:
        """Gives the tensors of all ranks to all."""
        call = self._begin(Collective.ALL_GATHER, "all_gather")
        given = call.site.only(inputs, "input_tensors")
        tensors = call.site.only_list(outputs, "output_tensors")
        dtype = call.site.check(given, "tensor").dtype
        self._check_list(call.site, tensors, "tensor_list", given, "tensor", True)
        own = self._rank
        call.site.check_match(tensors[own], f"tensor_list[{own}]", given.numel(), given, "tensor")
        call.outputs = [call.operands.write(tensor) for tensor in tensors]
        self._gather_from(call, given)
        count, splits = _lengths(tensors)
        return self._start(call, Elements(dtype, count), options.timeout, tensors, splits=splits)

    def all_gather_into_tensor(self, output: Tensor, given: Tensor, options: Any) -> ReferenceWork:
        """The same, into one tensor."""
        call = self._begin(Collective.ALL_GATHER, "all_gather_into_tensor")
        elements = call.site.check(given, "input_tensor")
        call.site.check_output(output, "output_tensor")
        needed = given.numel() * self._world
        call.site.check_match(output, "output_tensor", needed, given, "input_tensor")
        call.outputs = self._even_parts(call.operands.write(output))
        self._gather_from(call, given)
        return self._start(call, elements, options.timeout, [output])

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, options: Any) -> ReferenceWork:
        """Gives the tensors of all ranks to the root."""
        call = self._begin(Collective.GATHER, "gather")
        given = call.site.only(inputs, "input_tensors")
        root = self._check_root(call.site, "dst", options.rootRank, 0)
        elements = call.site.check(given, "tensor")
        tensors: Tensors = []
        if root == self._rank:
            tensors = call.site.only_list(outputs, "output_tensors")
            self._check_list(call.site, tensors, "gather_list", given, "tensor", True)
            for number, tensor in enumerate(tensors):
                name = f"gather_list[{number}]"
                call.site.check_match(tensor, name, given.numel(), given, "tensor")
            call.outputs = [call.operands.write(tensor) for tensor in tensors]
        elif outputs:
            call.site.refuse(
                "gather_list",
                f"given on a rank that is not the destination; only rank {root} gives one",
            )
        self._gather_from(call, given)
        return self._start(call, elements, options.timeout, tensors, root=root)

    # ---- all to all ------------------------------------------------------------------------------

    def all_to_all(self, outputs: Tensors, inputs: Tensors, options: Any) -> ReferenceWork:
        """Gives each rank a tensor of its own, from lists."""
        call = self._begin(Collective.ALL_TO_ALL, "all_to_all")
        if not inputs:
            call.site.refuse("input_tensor_list", "it is empty")
        model = (inputs[0], "input_tensor_list[0]")
        self._check_list(call.site, inputs, "input_tensor_list", *model, False)
        self._check_list(call.site, outputs, "output_tensor_list", *model, True)
        own = self._rank
        call.site.check_match(
            outputs[own],
            f"output_tensor_list[{own}]",
            inputs[own].numel(),
            inputs[own],
            f"input_tensor_list[{own}]",
        )
        dtype = call.site.check(*model).dtype
        call.inputs = [call.operands.read(tensor) for tensor in inputs]
        call.outputs = [self._place_output(call, tensor) for tensor in outputs]
        return self._start_exchange(call, dtype, options.timeout, outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        given: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        options: Any,
    ) -> ReferenceWork:
        """The same, from rows of one tensor to rows of another."""
        call = self._begin(Collective.ALL_TO_ALL, "all_to_all_single")
        dtype = call.site.check(given, "input").dtype
        call.site.check_output(output, "output")
        call.site.check_dtype(output, "output", given, "input")
        leaving = self._elements_of(call.site, given, "input", input_splits, "input_split_sizes")
        coming = self._elements_of(call.site, output, "output", output_splits, "output_split_sizes")
        own = self._rank
        if leaving[own] != coming[own]:
            call.site.refuse(
                "output_split_sizes",
                f"this rank sends itself {leaving[own]} elements and expects {coming[own]}",
            )
        scale = given.itemsize // dtype.itemsize  # of types that are moved as bytes
        call.inputs = _parts(call.operands.read(given), [scale * n for n in leaving])
        call.outputs = _parts(self._place_output(call, output), [scale * n for n in coming])
        return self._start_exchange(call, dtype, options.timeout, [output])

    def _start_exchange(
        self, call: _Call, dtype: torch.dtype, timeout: timedelta, results: Tensors
    ) -> ReferenceWork:
        """Every pair of ranks has a size of its own, which it compares."""
        sends = [tensor.nbytes for tensor in call.inputs]
        expects = [tensor.nbytes for tensor in call.outputs]
        # Not counted as a whole: the totals of ranks may differ.
        return self._start(call, Elements(dtype, 0), timeout, results, sends=sends, expects=expects)

    def _elements_of(
        self,
        site: CallSite,
        tensor: Tensor,
        argument: str,
        splits: Sequence[int],
        splits_argument: str,
    ) -> list[int]:
        """The elements that go to or come from each rank. Splits count rows; none: even."""
        world = self._world
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if rows % world:
                site.refuse(
                    argument,
                    f"its first dimension, {rows}, is no multiple of the world size, {world}; "
                    f"pass {splits_argument}",
                )
            return [tensor.numel() // world] * world
        if len(splits) != world:
            site.refuse(
                splits_argument,
                f"{len(splits)} given, but {world} are needed, one for each rank",
            )
        for number, split in enumerate(splits):
            if split < 0:
                site.refuse(f"{splits_argument}[{number}]", str(split))
        if sum(splits) != rows:
            site.refuse(
                splits_argument,
                f"its sum is {sum(splits)}, but the first dimension of {argument} is {rows}",
            )
        row = tensor.numel() // rows if rows else 0
        return [split * row for split in splits]

    # ---- no data ---------------------------------------------------------------------------------

    def barrier(self, options: Any) -> ReferenceWork:
        """Waits for all ranks."""
        call = self._begin(Collective.BARRIER, "barrier")
        return self._start(call, Elements(torch.uint8, 0), options.timeout, [])

    # ---- what they have in common ----------------------------------------------------------------

    def _begin(self, collective: Collective, name: str) -> _Call:
        return _Call(collective, CallSite(name, self._rank, self._communicator.identity.group))

    def _check_root(self, site: CallSite, argument: str, root: int, root_tensor: int) -> int:
        if not 0 <= root < self._world:
            site.refuse(
                argument,
                f"rank {root} is not in the group, which has ranks 0 to {self._world - 1}",
            )
        if root_tensor:
            site.refuse(
                "rootTensor",
                f"{root_tensor} given, and there is one tensor on each rank: use 0",
            )
        return root

    def _check_list(
        self,
        site: CallSite,
        tensors: Tensors,
        argument: str,
        model: Tensor,
        model_argument: str,
        written: bool,
    ) -> None:
        if len(tensors) != self._world:
            site.refuse(
                argument,
                f"{len(tensors)} tensors given, but {self._world} are needed, one for each rank",
            )
        for number, tensor in enumerate(tensors):
            name = f"{argument}[{number}]"
            check = site.check_output if written else site.check
            check(tensor, name)
            site.check_dtype(tensor, name, model, model_argument)
        # Two outputs in the same memory would leave one of the results nowhere.
        shared = find_shared_elements(tensors) if written else None
        if shared is not None:
            site.refuse(
                f"{argument}[{shared[1]}]", f"it shares memory with {argument}[{shared[0]}]"
            )

    def _gather_from(self, call: _Call, given: Tensor) -> None:
        own = call.operands.read(given)
        for rank, output in enumerate(call.outputs):
            # In place is fine: the input is exactly this rank's part of the output.
            in_place = rank == self._rank and own.data_ptr() == output.data_ptr()
            if not in_place and overlap(own, output):
                own = own.clone()
                break
        call.inputs = [own]

    def _place_output(self, call: _Call, output: Tensor) -> Tensor:
        place = call.operands.write(output)
        for rank, given in enumerate(call.inputs):
            # In place is fine: the output is exactly this rank's part of the input.
            in_place = (
                call.collective is not Collective.ALL_TO_ALL
                and rank == self._rank
                and place.data_ptr() == given.data_ptr()
                and place.nbytes == given.nbytes
            )
            if not in_place and overlap(place, given):
                return call.operands.write(output, apart=True)
        return place

    def _even_parts(self, whole: Tensor) -> list[Tensor]:
        return _parts(whole, [whole.numel() // self._world] * self._world)

    def _choose(self, collective: Collective, dtype: torch.dtype, op: RedOp) -> str:
        return choose_algorithm(collective, dtype, op, self._world, self._algorithms)

    def _start(
        self,
        call: _Call,
        elements: Elements,
        timeout: timedelta,
        results: Tensors,
        *,
        op: RedOp = RedOp.SUM,
        root: int | None = None,
        splits: int = 0,
        sends: Sequence[int] = (),
        expects: Sequence[int] = (),
    ) -> ReferenceWork:
        dtype = elements.dtype
        algorithm = self._choose(call.collective, dtype, op)
        channels = self._communicator.shape.channels
        # Made when it is asked for, so that the caller hears what is wrong with it.
        find_program(call.collective, algorithm, self._world, self._rank, root, channels)
        collect = Collect(
            call.collective,
            algorithm,
            dtype,
            elements.number,
            call.inputs,
            call.outputs,
            op,
            root,
            splits,
            sends,
            expects,
        )
        size = elements.number * dtype.itemsize if not sends else sum(sends)
        moved = None if call.collective is Collective.BARRIER else dtype
        epilogue = call.operands.copy_back if call.operands.must_copy_back else None
        phases = iter((collect,))
        return self._submit(call, size, moved, timeout, phases, results, epilogue)

    def _submit(
        self,
        call: _Call,
        size: int,
        dtype: torch.dtype | None,
        timeout: timedelta,
        phases: Iterator[Collect],
        results: Tensors,
        epilogue: Any,
    ) -> ReferenceWork:
        seconds = seconds_of(timeout, self._communicator.timeout)
        name = call.collective.word  # one for all forms of a collective, as ranks may mix them
        operation = CollectiveOperation(name, size, dtype, seconds, epilogue, phases=phases)
        return ReferenceWork(self._communicator, operation, results).submit()


def _number(options: Any) -> int:
    """torch's number of the reduction."""
    return int(options.reduceOp.op)


def _lengths(tensors: Tensors) -> tuple[int, int]:
    """What ranks compare of one tensor for each rank: the count, and a digest if it differs."""
    lengths = [tensor.numel() for tensor in tensors]
    if len(set(lengths)) == 1:
        return lengths[0], 0
    digest = 0xCBF29CE484222325  # FNV-1a, a length at a time
    for length in lengths:
        digest = (digest ^ length) * 0x100000001B3 % (1 << 64)
    return sum(lengths), digest | 1


def _parts(whole: Tensor, counts: Iterable[int]) -> list[Tensor]:
    """Consecutive parts of a tensor."""
    return list(whole.split(list(counts)))
