"""What torch's profiler records of a call, beyond its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from tests.support.ranks import RankPool


def _profiled(directory: str) -> list[dict[str, Any]]:
    """The details of the events of some calls, in order."""
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))  # joins: its time is not what is looked for
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        dist.all_reduce(torch.ones(5, 2))
        if rank == 0:
            dist.send(torch.ones(3, dtype=torch.int64), 1)
        else:
            dist.recv(torch.zeros(3, dtype=torch.int64), 0)
        sent = [1, 2] if rank == 0 else [3, 1]
        received = [1, 3] if rank == 0 else [2, 1]
        work = dist.all_to_all_single(
            torch.zeros(sum(received)), torch.ones(sum(sent)), received, sent, async_op=True
        )
        assert work is not None
        work.wait()
        dist.barrier()
    path = Path(directory, f"trace{rank}.json")
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    named = [event for event in events if event.get("name") == "record_param_comms"]
    return [event["args"] for event in sorted(named, key=lambda event: float(event["ts"]))]


def test_events_describe_collectives_and_messages(compiled: RankPool, tmp_path: Path) -> None:
    for rank, events in enumerate(compiled.run(2, _profiled, str(tmp_path))):
        assert [event["Collective name"] for event in events] == [
            "all_reduce",
            "send" if rank == 0 else "recv",
            "all_to_all_single",
            "barrier",
        ]
        reduced, message, exchanged, _ = events
        for event in events:
            assert event["Process Group Name"] == "0"
            assert event["Process Group Description"] == "default_pg"
            assert json.loads(event["Process Group Ranks"]) == [0, 1]
            assert event["Group size"] == 2
        assert (reduced["In msg nelems"], reduced["Out msg nelems"]) == (10, 10)
        assert reduced["dtype"] == "Float"
        assert (message["dtype"], message["In msg nelems"]) == ("Long", 3)
        assert json.loads(exchanged["In split size"]) == ([1, 2] if rank == 0 else [3, 1])
        assert json.loads(exchanged["Out split size"]) == ([1, 3] if rank == 0 else [2, 1])
        assert [event["Seq"] for event in events] == [2, 1, 3, 4]
