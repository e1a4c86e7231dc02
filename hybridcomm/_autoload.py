"""Makes torch.distributed know "hybridcomm".

torch calls `register_backend` at the end of `import torch`, in every program of an environment that
hybridcomm is installed in. So it is cheap, it never raises, and it leaves everything else in torch
as it was: torch's own defaults keep "cpu" and "cuda" because they were there first.

One thing does change, for every backend that is not torch's own: while any is registered, torch
(2.13) gives no default backend to groups made with a device list that names no NCCL, such as
"cpu:gloo". Their collectives work; only `pg.name()` and the sequence number do not. Plain "gloo",
"nccl", and the default of `init_process_group()` are not affected.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, ProcessGroup, _DistributedBackendOptions

NAME = "hybridcomm"
DEVICES = ("cpu", "cuda")


def register() -> None:
    """Makes `init_process_group("hybridcomm")` possible where torch's autoload is switched off.

    Not needed otherwise, and harmless when repeated.

    Raises:
        RuntimeError: This torch is built without distributed support.
    """
    import torch.distributed as dist

    if not dist.is_available():
        raise RuntimeError("this torch is built without distributed support")
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=list(DEVICES))


def register_backend() -> None:
    """The entry point that torch calls: `register`, with a failure logged instead of raised."""
    try:
        register()
    except Exception as error:
        # An exception here would make `import torch` fail, and so would a warning under -W error.
        logging.getLogger(__name__).warning(
            "the backend %r cannot be used: %s: %s", NAME, type(error).__name__, error
        )


def _create(group: _DistributedBackendOptions, options: object) -> Backend | ProcessGroup:
    """Makes the backend of a new group; imports what that takes only now."""
    from hybridcomm.process_group import create

    return create(group, options)
