"""What tests say again and again about work: that there is some, and that all of it is done."""

from __future__ import annotations

from collections.abc import Iterable

import torch.distributed as dist


def begun(work: dist.Work | None) -> dist.Work:
    """Takes what an asynchronous call returns.

    Args:
        work: None where torch found that this rank has no part in the call.

    Returns:
        The work.
    """
    assert work is not None, "this rank has no part in the call"
    return work


def wait_all(works: Iterable[dist.Work | None]) -> None:
    """Waits for several calls.

    Args:
        works: What they returned.
    """
    for work in works:
        begun(work).wait()
