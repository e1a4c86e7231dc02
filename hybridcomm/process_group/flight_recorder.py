"""The flight recorder on demand: the last operations of this process, as torch's analyzer reads.

Variables (docs/flight-recorder.md): TORCH_FR_BUFFER_SIZE, TORCH_FR_DUMP_TEMP_FILE and
HYBRIDCOMM_FR_FRAMES.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

__all__ = ["dump_flight_recorder"]


def dump_flight_recorder(
    path: str | os.PathLike[str] | None = None, *, only_active: bool = False
) -> dict[str, Any]:
    """Gives what the flight recorder holds, of all groups of this process.

    Any thread may call this at any time, also while operations are under way or after a group has
    failed. `python -m torch.distributed.flight_recorder.fr_trace DIRECTORY` compares the files of
    all ranks, whose names must be one prefix followed by the rank of the job.

    Args:
        path: File to write it to, in the same pickled form in which torch writes its own; None to
            write nothing.
        only_active: Leave out operations that have succeeded.

    Returns:
        The dump: "version" (of torch's format), "pg_config" (groups by name), "pg_status", and
        "entries", one for each operation, the oldest first.

    Raises:
        ImportError: There is no compiled part, and so no recorder.
        OSError: The file cannot be written.
    """
    from hybridcomm import _compiled

    pickled: bytes = _compiled.load().dump_flight_recorder(only_active)
    if path is not None:
        Path(path).write_bytes(pickled)
    dump: dict[str, Any] = pickle.loads(pickled)
    return dump
