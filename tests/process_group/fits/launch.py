"""A program that starts its ranks with torch.multiprocessing; test_start_methods.py runs it.

python -m tests.process_group.fits.launch spawn STORE_PORT
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.multiprocessing.spawn import start_processes

import hybridcomm

WORLD = 2


def rank_main(rank: int, port: int) -> None:
    """What each rank does.

    Args:
        rank: Its number.
        port: Of the store on 127.0.0.1.
    """
    dist.init_process_group(
        "hybridcomm",
        store=TCPStore("127.0.0.1", port, is_master=False),
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=30),
    )
    total = torch.tensor([10.0**rank])
    dist.all_reduce(total)
    work = dist.all_reduce(total, async_op=True)  # now there is a thread to inherit
    assert work is not None
    work.wait()
    if total.item() != 22:
        raise SystemExit(f"rank {rank} got {total.item()}")
    refused_in_a_child(rank, total)
    # The child took nothing of the group away.
    dist.all_reduce(total)
    say(f"rank {rank}: {total.item():.0f}")
    dist.destroy_process_group()


def refused_in_a_child(rank: int, tensor: Tensor) -> None:
    """Tries the parent's group in a forked child.

    Args:
        rank: This process's rank.
        tensor: What the child would reduce.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            dist.all_reduce(tensor)
        except (hybridcomm.CommError, RuntimeError, ValueError) as error:
            say(f"child of rank {rank}: {type(error).__name__}: {error}")
            status = 0
        os._exit(status)
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise SystemExit(f"the child of rank {rank} ended with status {status}")


def say(line: str) -> None:
    """Prints a line in one piece, so that those of several processes do not mix.

    Args:
        line: Without its end.
    """
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    method, port = sys.argv[1], int(sys.argv[2])
    start_processes(rank_main, (port,), nprocs=WORLD, start_method=method)
