"""Tensors as operands: the checks of arguments, and memory that lies as programs need it.

The same checks and sentences as csrc/torch/tensors.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from ..numerics import RedOp, refusal
from .dtypes import CODES, name_of


class Elements(NamedTuple):
    """What a tensor consists of.

    Attributes:
        dtype: Type of the elements; bytes if the type is not known to programs.
        number: How many there are.
    """

    dtype: torch.dtype
    number: int


class CallSite:
    """Where arguments are checked: names the call, the rank and the group in refusals.

    Args:
        operation: torch's name of the call.
        rank: This rank.
        group: The group's name.
    """

    def __init__(self, operation: str, rank: int, group: str) -> None:
        self.operation = operation
        self._rank = rank
        self._group = group

    def refuse(self, argument: str, why: str) -> NoReturn:
        """Raises the error of a wrong argument."""
        raise ValueError(
            f"{self.operation} on rank {self._rank} of group '{self._group}': argument "
            f"{argument}: {why}"
        )

    def only(self, tensors: Sequence[Tensor], argument: str) -> Tensor:
        """The tensor of a list that must have one."""
        if len(tensors) != 1:
            self.refuse(argument, f"{len(tensors)} given, and there is one on each rank")
        return tensors[0]

    def only_list(self, lists: Sequence[Sequence[Tensor]], argument: str) -> Sequence[Tensor]:
        """The list of a list that must have one."""
        if len(lists) != 1:
            self.refuse(argument, f"{len(lists)} lists given, and there is one on each rank")
        return lists[0]

    def check(self, tensor: Tensor, argument: str) -> Elements:
        """Checks a tensor that is read."""
        if not isinstance(tensor, Tensor):
            self.refuse(argument, "it is no tensor")
        if tensor.is_nested:
            self.refuse(argument, "it is a nested tensor; pass its dense values")
        if tensor.device.type != "cpu":
            self.refuse(
                argument,
                f"it is on {tensor.device}, and this version moves tensors in host memory only: "
                "pass tensor.cpu(), or give other devices a backend of their own, as in "
                "init_process_group('cpu:hybridcomm,cuda:nccl')",
            )
        if tensor.layout is not torch.strided:
            self.refuse(
                argument,
                "it is sparse or laid out otherwise than by strides; pass a dense tensor, for "
                "instance tensor.to_dense()",
            )
        try:
            stored = tensor.untyped_storage().nbytes()
        except (NotImplementedError, RuntimeError):
            self.refuse(argument, "it has no memory of its own (a fake or wrapped tensor)")
        # FSDP, for one, frees storage under tensors that live on.
        if tensor.numel() and _end(tensor) * tensor.itemsize > stored:
            self.refuse(
                argument,
                f"its storage has {stored} bytes, too few for its {_describe(tensor)}: it has been "
                "freed or resized",
            )
        if tensor.is_quantized:
            self.refuse(
                argument,
                f"its dtype is {name_of(tensor.dtype)}, which means nothing without its scale; "
                "pass tensor.int_repr()",
            )
        if tensor.dtype in CODES:
            return Elements(tensor.dtype, tensor.numel())
        return Elements(torch.uint8, tensor.nbytes)

    def check_output(self, tensor: Tensor, argument: str) -> Elements:
        """Checks a tensor that is written."""
        elements = self.check(tensor, argument)
        if not tensor.is_contiguous() and _elements_overlap(tensor):
            self.refuse(
                argument,
                f"some of its elements share memory (sizes {list(tensor.shape)}, strides "
                f"{list(tensor.stride())}), so there is no room for the result; pass "
                "tensor.contiguous()",
            )
        return elements

    def check_dtype(
        self, tensor: Tensor, argument: str, model: Tensor, model_argument: str
    ) -> None:
        """Checks that two tensors have one type."""
        if tensor.dtype != model.dtype:
            self.refuse(
                argument,
                f"it has {_describe(tensor)}, but {model_argument} has {_describe(model)}; they "
                "must have one dtype",
            )

    def check_match(
        self, tensor: Tensor, argument: str, needed: int, model: Tensor, model_argument: str
    ) -> None:
        """Checks that a tensor has another's type and so many elements."""
        self.check_dtype(tensor, argument, model, model_argument)
        if tensor.numel() != needed:
            self.refuse(
                argument,
                f"it has {_describe(tensor)}, but {needed} are needed, because {model_argument} "
                f"has {_describe(model)}",
            )

    def check_reduction(self, tensor: Tensor, argument: str, number: int) -> RedOp:
        """Checks that a reduction is defined; PREMUL_SUM counts as SUM.

        Args:
            tensor: What is reduced.
            argument: Its name.
            number: torch's number of the reduction.

        Returns:
            The reduction that programs do.
        """
        premultiplied = number == PREMUL_SUM
        if not premultiplied and number not in RedOp.__members__.values():
            self.refuse("op", f"there is no reduction with number {number}")
        if tensor.dtype not in CODES:
            self.refuse(argument, f"{name_of(tensor.dtype)} is moved, never reduced")
        op = RedOp.SUM if premultiplied else RedOp(number)
        name = "PREMUL_SUM" if premultiplied else op.name
        if premultiplied and not (tensor.is_floating_point() or tensor.is_complex()):
            self.refuse(
                "op",
                f"PREMUL_SUM of {name_of(tensor.dtype)}: a factor would be cut to a whole number; "
                "use SUM",
            )
        why = refusal(op, tensor.dtype)
        if why is not None:
            self.refuse("op", f"{name} of {name_of(tensor.dtype)}: {why}")
        return op


PREMUL_SUM = 8


class Operands:
    """A call's tensors as contiguous memory: their own where it lies so, or a copy."""

    def __init__(self) -> None:
        self._copies: list[tuple[Tensor, Tensor]] = []

    def read(self, tensor: Tensor) -> Tensor:
        """Memory that holds what the tensor holds."""
        return _flat(tensor) if _lies_as_used(tensor) else _flat(_copy(tensor))

    def write(self, tensor: Tensor, apart: bool = False) -> Tensor:
        """Memory whose content the tensor gets at the end; with `apart`, not the tensor's own."""
        if _lies_as_used(tensor) and not apart:
            return _flat(tensor)
        return self._staged(tensor, torch.empty(tensor.shape, dtype=tensor.dtype))

    def update(self, tensor: Tensor) -> Tensor:
        """Both of the above."""
        return _flat(tensor) if _lies_as_used(tensor) else self._staged(tensor, _copy(tensor))

    def scaled(self, tensor: Tensor, factor: float | Tensor) -> Tensor:
        """Memory that holds the tensor times a factor, rounded to its type."""
        with torch.no_grad():
            wide = tensor.float() if tensor.itemsize == 1 else tensor  # torch multiplies no float8
            number = factor.item() if isinstance(factor, Tensor) else factor
            return _flat(torch.empty(tensor.shape, dtype=tensor.dtype).copy_(wide * number))

    def copy_back(self) -> None:
        """Gives the tensors what was written for them."""
        with torch.no_grad():
            for tensor, memory in self._copies:
                tensor.data.copy_(memory)

    @property
    def must_copy_back(self) -> bool:
        """Whether `copy_back` has anything to do."""
        return bool(self._copies)

    def _staged(self, tensor: Tensor, memory: Tensor) -> Tensor:
        self._copies.append((tensor, memory))
        return _flat(memory)


def _copy(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)


def _flat(tensor: Tensor) -> Tensor:
    """The elements of a contiguous tensor; writing to them is not seen by autograd."""
    # Not view(-1), which keeps the odd stride that a tensor of one element may have.
    flat = tensor.data.as_strided((tensor.numel(),), (1,))
    return flat if tensor.dtype in CODES else flat.view(torch.uint8)


def _lies_as_used(tensor: Tensor) -> bool:
    # Conjugate and negative views hold other numbers than their memory does.
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _describe(tensor: Tensor) -> str:
    return f"{tensor.numel()} elements of {name_of(tensor.dtype)}"


def _end(tensor: Tensor) -> int:
    """Elements from the begin of the storage to behind the last element."""
    spans = zip(tensor.shape, tensor.stride(), strict=True)
    return int(tensor.storage_offset()) + 1 + sum((size - 1) * stride for size, stride in spans)


def _elements_overlap(tensor: Tensor) -> bool:
    """Whether two elements may share an address.

    They do not if each dimension, in the order of strides, steps over all that the smaller ones
    span.
    """
    if tensor.numel() < 2:
        return False
    span = 0
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(pair for pair in pairs if pair[1] > 1):
        if stride <= span:
            return True
        span += stride * (size - 1)
    return False


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two contiguous tensors have memory in common."""
    if not one.numel() or not other.numel():
        return False
    begin, end = one.data_ptr(), one.data_ptr() + one.nbytes
    return begin < other.data_ptr() + other.nbytes and other.data_ptr() < end


def find_shared_elements(tensors: Sequence[Tensor]) -> tuple[int, int] | None:
    """Finds two tensors that have elements in common.

    Args:
        tensors: Any.

    Returns:
        The places of the first two that are found; None if there are none.
    """
    present = [(number, tensor) for number, tensor in enumerate(tensors) if tensor.numel()]
    by_place = sorted(present, key=lambda pair: pair[1].data_ptr())
    reach, owner = 0, 0
    for number, tensor in by_place:
        if tensor.data_ptr() < reach:
            if all(other.is_contiguous() for _, other in present):
                return min(owner, number), max(owner, number)
            return _compare_addresses(by_place)
        extent = (_end(tensor) - int(tensor.storage_offset())) * tensor.itemsize
        if tensor.data_ptr() + extent > reach:
            reach, owner = tensor.data_ptr() + extent, number
    return None


def _compare_addresses(tensors: Sequence[tuple[int, Tensor]]) -> tuple[int, int] | None:
    """Compares the address of every element, for instance of columns of one matrix."""
    addresses, owners = [], []
    base = tensors[0][1].data_ptr()
    for number, tensor in tensors:
        places = torch.zeros((), dtype=torch.long)
        for dimension, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            steps = torch.arange(size) * stride
            places = places + steps.view(-1, *[1] * (tensor.dim() - dimension - 1))
        addresses.append(places.reshape(-1) * tensor.itemsize + (tensor.data_ptr() - base))
        owners.append(torch.full((tensor.numel(),), number))
    order = torch.cat(addresses).sort(stable=True)
    owner = torch.cat(owners)[order.indices]
    close = (order.values.diff() < tensors[0][1].itemsize).nonzero()
    if not len(close):
        return None
    at = int(close[0])
    pair = sorted((int(owner[at]), int(owner[at + 1])))
    return pair[0], pair[1]
