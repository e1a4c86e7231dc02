"""The two 8-bit float formats that reduce, converted by table.

OCP "8-bit Floating Point Specification (OFP8)", 2023. Not torch's cast, which turns infinity into
448: here finite values that are too large saturate, infinities and NaNs stay what they are, and
    in E4M3, which
has no infinity, become NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_SIGN = 0x80
_NAN = 0x7F  # in both formats


@dataclass(frozen=True)
class Float8:
    """One format: a sign bit, then exponent, then ``fraction_bits`` of fraction.

    Attributes:
        fraction_bits: Bits of the fraction.
        bias: What is subtracted from the exponent field.
        largest: Code of the largest finite value.
        infinity: Code of infinity; a NaN's where the format has none.
    """

    fraction_bits: int
    bias: int
    largest: int
    infinity: int

    @cached_property
    def _magnitudes(self) -> Tensor:
        """The finite values from 0 up, by code, as float64."""
        values = []
        for code in range(self.largest + 1):
            exponent, fraction = divmod(code, 1 << self.fraction_bits)
            # Exponent field 0 has no implicit one, and the scale of field 1.
            significand = fraction + (1 << self.fraction_bits if exponent else 0)
            power = max(exponent, 1) - self.bias - self.fraction_bits
            values.append(significand * 2.0**power)
        return torch.tensor(values, dtype=torch.float64)

    @cached_property
    def _by_code(self) -> Tensor:
        """The value of each of the 256 codes, as float32 (exact)."""
        values = torch.full((256,), torch.nan, dtype=torch.float32)
        values[: self.largest + 1] = self._magnitudes.to(torch.float32)
        if self.infinity != _NAN:
            values[self.infinity] = torch.inf
        values[_SIGN:] = -values[:_SIGN]
        return values

    def decode(self, codes: Tensor) -> Tensor:
        """Read codes as float32; every code is exact.

        Args:
            codes: uint8, any shape.

        Returns:
            float32 of that shape.
        """
        return self._by_code[codes.to(torch.int64)]

    def encode(self, values: Tensor) -> Tensor:
        """Round to the nearest value of the format, ties to the even code.

        Args:
            values: float32, any shape.

        Returns:
            uint8 codes of that shape.
        """
        exact = values.to(torch.float64)
        size = exact.abs().nan_to_num(nan=0.0, posinf=0.0)
        # Between codes i and i + 1 lies midpoint i, exact in float64. So the code is the number of
        # midpoints below, or the number at or below: they differ in a tie, and one of them is even.
        midpoints = (self._magnitudes[:-1] + self._magnitudes[1:]) / 2
        below = torch.searchsorted(midpoints, size.contiguous())
        at_or_below = torch.searchsorted(midpoints, size.contiguous(), right=True)
        code = torch.where(below % 2 == 0, below, at_or_below)
        code = torch.where(exact.isinf(), self.infinity, code)
        code = torch.where(exact.isnan(), _NAN, code)
        return (code + _SIGN * exact.signbit()).to(torch.uint8)


FORMATS = {
    torch.float8_e4m3fn: Float8(fraction_bits=3, bias=7, largest=0x7E, infinity=_NAN),
    torch.float8_e5m2: Float8(fraction_bits=2, bias=15, largest=0x7B, infinity=0x7C),
}
