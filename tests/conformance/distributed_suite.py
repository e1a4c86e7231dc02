"""PyTorch's own process-group suite with one backend in Gloo's place.

Not collected by itself: `run.py` runs it. The suite ships in the wheel of torch
(torch.testing._internal.distributed.distributed_test) and is configured by the environment.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
TARGET = os.environ.setdefault("CONFORMANCE_BACKEND", "hybridcomm")
os.environ["BACKEND"] = "gloo"
os.environ.setdefault("WORLD_SIZE", "4")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp())
for name in ("barrier", "test_dir", "init_dir"):
    Path(os.environ["TEMP_DIR"], name).mkdir(exist_ok=True)

if TARGET != "gloo":
    from tests.conformance import impersonate

    impersonate.gloo(TARGET)

import torch.testing._internal.distributed.distributed_test as _untyped  # noqa: E402

suite: Any = _untyped

if TARGET != "gloo":
    # A profiler's event begins with the name of the backend that it is about.
    _profiling_events = suite.get_profiling_event

    def _events_of_target(name: Any, *arguments: Any, **options: Any) -> Any:
        events = _profiling_events(name.replace("gloo:", f"{TARGET}:"), *arguments, **options)
        for event in events:
            event.name = event.name.replace(f"{TARGET}:", "gloo:")
        return events

    suite.get_profiling_event = _events_of_target


class TestDistBackendWithSpawn(
    suite.TestDistBackend,  # type: ignore[misc]
    suite.DistributedTest._DistTestBase,  # type: ignore[misc]
):
    """The suite's tests, each in processes of its own."""

    def setUp(self) -> None:
        """Starts the ranks of one test."""
        super().setUp()
        self._spawn_processes()
