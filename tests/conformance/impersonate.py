"""Makes every request for torch's "gloo" backend create another backend instead.

    impersonate.gloo("hybridcomm")

Code and tests written for Gloo then run on the named backend unchanged, with none of their
`backend == "gloo"` branches skipped. The name must already be registered with torch.distributed.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import Backend as AnyBackend
from torch._C._distributed_c10d import _DistributedBackendOptions

_REAL_GLOO = c10d.ProcessGroupGloo


def _create(name: str, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    plugin = dist.Backend._plugins[name.upper()]
    options = _DistributedBackendOptions()
    options.store = store
    options.group_rank = rank
    options.group_size = size
    options.timeout = timeout
    options.group_id = ""
    options.global_ranks_in_group = list(range(size))
    return plugin.creator_fn(options, None)


def gloo(name: str) -> None:
    """Replaces ProcessGroupGloo by another backend for the rest of this process.

    Args:
        name: The backend, registered with the extended interface.
    """

    class IsEither(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, (_REAL_GLOO, AnyBackend)) and not isinstance(
                instance, dist.ProcessGroup
            )

    class ImpersonatedGloo(metaclass=IsEither):
        Options = getattr(_REAL_GLOO, "Options", None)
        _Options = getattr(_REAL_GLOO, "_Options", None)
        create_device = staticmethod(_REAL_GLOO.create_device)
        create_default_device = staticmethod(_REAL_GLOO.create_default_device)

        def __new__(
            cls,
            store: Any,
            rank: int,
            size: int,
            *rest: Any,
            timeout: timedelta | None = None,
            **others: Any,
        ) -> Any:
            given = [timeout, *(value for value in rest if isinstance(value, timedelta))]
            limit = next((value for value in given if value), c10d.default_pg_timeout)
            return _create(name, store, rank, size, limit)

    for module in (c10d, dist):
        setattr(module, "ProcessGroupGloo", ImpersonatedGloo)  # noqa: B010
