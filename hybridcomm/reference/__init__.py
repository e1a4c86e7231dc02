"""The reference: programs run over tensors in plain Python, the oracle of every executor.

Imports no compiled code of this project. ``run_collective`` is the whole of it in one call.
"""

from __future__ import annotations

from .executor import DeadlockError, Statistics, execute, in_order, random_order
from .numerics import RedOp, reduce, refusal
from .run import run_collective, run_program
from .tables import ChunkTable, chunk_table

__all__ = [
    "ChunkTable",
    "DeadlockError",
    "RedOp",
    "Statistics",
    "chunk_table",
    "execute",
    "in_order",
    "random_order",
    "reduce",
    "refusal",
    "run_collective",
    "run_program",
]
