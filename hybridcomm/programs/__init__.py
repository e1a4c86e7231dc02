"""Collective algorithms as data: the step language, the algorithms, and the verifier.

Pure Python: nothing here imports torch or compiled code.

Start with ``algorithms/all_reduce_ring.py``, then ``ir.py``. ``registry.build`` makes a program,
``verify.verify`` proves it, ``registry.compile_flat`` gives the bytes that the executors run.
"""

from __future__ import annotations

from .ir import Op, Program, RankProgram, Step
from .layout import Chunk, Collective, Layout, Space
from .partition import partition
from .registry import algorithms, build, collectives, compile_flat
from .verify import ProgramFaultError, Report, verify

__all__ = [
    "Chunk",
    "Collective",
    "Layout",
    "Op",
    "Program",
    "ProgramFaultError",
    "RankProgram",
    "Report",
    "Space",
    "Step",
    "algorithms",
    "build",
    "collectives",
    "compile_flat",
    "partition",
    "verify",
]
