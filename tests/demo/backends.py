"""The backends the demonstration is tested over."""

from __future__ import annotations

import pytest

try:
    from hybridcomm._compiled import load

    load()
    _why_not = ""
except ImportError as error:
    _why_not = str(error)

BACKENDS = (
    "gloo",
    pytest.param("hybridcomm", marks=pytest.mark.skipif(bool(_why_not), reason=_why_not)),
)
