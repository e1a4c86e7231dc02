"""The process group: what torch.distributed asks for when a group named "hybridcomm" is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridcomm.process_group.environment import warn_of_unknown
from hybridcomm.process_group.implementation import choose
from hybridcomm.process_group.options import Options

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, ProcessGroup, _DistributedBackendOptions

__all__ = ["Options", "create"]


def create(group: _DistributedBackendOptions, options: object = None) -> Backend | ProcessGroup:
    """Makes one group's backend, or all of the group. torch calls it on every rank.

    Nothing is sent yet.

    Args:
        group: What torch knows of the group: its store, this rank, the world size, the time-out,
            the group's name and the global ranks of its members.
        options: `Options`, or None for those of the environment.

    Returns:
        The compiled backend, or the group in plain Python: see `implementation.choose`.

    Raises:
        ImportError: The compiled part was built against another torch, or is missing and asked for.
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
    warn_of_unknown()
    global_ranks = list(group.global_ranks_in_group)
    if choose() == "reference":
        from hybridcomm.reference.group import GroupOptions, ReferenceProcessGroup

        return ReferenceProcessGroup(
            group.store,
            group.group_rank,
            group.group_size,
            GroupOptions(
                group.timeout,
                group.group_id,
                tuple(global_ranks),
                chosen.algorithms,
                chosen.channels,
                chosen.slots,
                chosen.slot_bytes,
            ),
        )

    from hybridcomm import _compiled

    backend: Backend = _compiled.load().create_backend(
        group.store,
        group.group_rank,
        group.group_size,
        group.timeout,
        group.group_id,
        global_ranks,
        chosen,
    )
    return backend
