"""A torch.distributed backend and collectives for training one model on unlike hardware.

`import hybridcomm` imports no torch: the names below are looked up when they are first used. A
training script needs no import at all, because torch finds the backend through its
`torch.backends` entry point:

    torch.distributed.init_process_group("hybridcomm")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridcomm._autoload import register
    from hybridcomm.collectives import (
        abort,
        all_gather,
        all_gather_into_tensor,
        all_reduce,
        all_to_all,
        all_to_all_single,
        barrier,
        broadcast,
        gather,
        monitored_barrier,
        reduce,
        reduce_scatter,
        reduce_scatter_tensor,
        scatter,
        set_timeout,
    )
    from hybridcomm.errors import (
        CommAbortedError,
        CommError,
        CommTimeoutError,
        MismatchError,
        PeerLostError,
    )
    from hybridcomm.point_to_point import recv, send
    from hybridcomm.process_group.flight_recorder import dump_flight_recorder
    from hybridcomm.process_group.options import Options

__version__ = "0.1.0"

__all__ = [
    "CommAbortedError",
    "CommError",
    "CommTimeoutError",
    "MismatchError",
    "Options",
    "PeerLostError",
    "__version__",
    "abort",
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "dump_flight_recorder",
    "gather",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "register",
    "scatter",
    "send",
    "set_timeout",
]

# Where each public name is defined.
_HOME = {
    **dict.fromkeys(
        (
            "abort",
            "all_gather",
            "all_gather_into_tensor",
            "all_reduce",
            "all_to_all",
            "all_to_all_single",
            "barrier",
            "broadcast",
            "gather",
            "monitored_barrier",
            "reduce",
            "reduce_scatter",
            "reduce_scatter_tensor",
            "scatter",
            "set_timeout",
        ),
        "hybridcomm.collectives",
    ),
    **dict.fromkeys(("recv", "send"), "hybridcomm.point_to_point"),
    "CommAbortedError": "hybridcomm.errors",
    "CommError": "hybridcomm.errors",
    "CommTimeoutError": "hybridcomm.errors",
    "MismatchError": "hybridcomm.errors",
    "Options": "hybridcomm.process_group.options",
    "PeerLostError": "hybridcomm.errors",
    "dump_flight_recorder": "hybridcomm.process_group.flight_recorder",
    "register": "hybridcomm._autoload",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
