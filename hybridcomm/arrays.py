"""Arrays of other libraries as tensors over the same memory."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack


class SupportsDLPack(Protocol):
    """An array that can be lent without a copy: of torch, NumPy, CuPy, JAX, …"""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        """Lends the memory."""
        ...

    def __dlpack_device__(self) -> tuple[Any, Any]:
        """Says where the memory is."""
        ...


# What the collectives take.
Array = Tensor | SupportsDLPack


def as_tensor(array: Array, argument: str, *, written: bool) -> Tensor:
    """Looks at an array's memory as a tensor.

    Args:
        array: A tensor, a NumPy array, or any array that speaks DLPack.
        argument: Its name in the call, for errors.
        written: Whether the call writes to it.

    Returns:
        A tensor over the same memory; of a read-only array that is only read, a copy.

    Raises:
        TypeError: It is no array, or of a type that torch does not know.
        ValueError: It must be written and is read-only, or torch cannot express its strides.
    """
    if isinstance(array, Tensor):
        return array
    # NumPy is not needed to know one of its arrays.
    flags = getattr(array, "flags", None)
    if getattr(flags, "writeable", True) is False:
        if written:
            raise ValueError(f"argument {argument}: the array is read-only, and gets the result")
        array = array.copy()  # type: ignore[union-attr]
    if any(stride < 0 for stride in getattr(array, "strides", None) or ()):
        raise ValueError(
            f"argument {argument}: it has negative strides, which tensors cannot have; "
            f"pass numpy.ascontiguousarray(array)"
        )
    if not hasattr(array, "__dlpack__"):
        raise TypeError(
            f"argument {argument}: {type(array).__name__} is neither a tensor nor an array that "
            f"speaks DLPack (NumPy, CuPy, …)"
        )
    try:
        # NumPy's own way knows bool and uint16, which its DLPack did not always.
        if type(array).__module__.partition(".")[0] == "numpy":
            return torch.from_numpy(array)
        return from_dlpack(array)
    except (TypeError, BufferError, RuntimeError) as error:
        raise TypeError(f"argument {argument}: torch cannot take this array: {error}") from None
