"""The process group: what torch.distributed asks for when a group named "hybridcomm" is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridcomm.process_group.options import Options

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, _DistributedBackendOptions

__all__ = ["Options", "create"]


def create(group: _DistributedBackendOptions, options: object = None) -> Backend:
    """Makes the backend of one group. torch calls it on every rank; nothing is sent yet.

    Args:
        group: What torch knows of the group: its store, this rank, the world size, the time-out,
            the group's name and the global ranks of its members.
        options: `Options`, or None for those of the environment.

    Returns:
        The backend.

    Raises:
        ImportError: The compiled part is missing, or was built against another torch.
        TypeError: `options` are another backend's.
        ValueError: An option is not allowed, here or in the environment.
    """
    if options is None:
        options = Options()
    if not isinstance(options, Options):
        raise TypeError(
            f"pg_options is {type(options).__name__}; hybridcomm takes hybridcomm.Options"
        )
    chosen = options.with_environment()

    from hybridcomm import _compiled

    backend: Backend = _compiled.load().create_backend(
        group.store,
        group.group_rank,
        group.group_size,
        group.timeout,
        group.group_id,
        list(group.global_ranks_in_group),
        chosen,
    )
    return backend
