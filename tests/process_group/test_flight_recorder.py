"""The flight recorder: what it holds, and what torch's analyzer makes of the dumps of all ranks."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

import hybridcomm
from tests.support.ranks import RankPool
from tests.support.worker import rank_of_call

_PREFIX = "hybridcomm_trace_"


@pytest.fixture
def recorded(compiled: RankPool) -> Iterator[RankPool]:
    """The pool, for tests that run the analyzer."""
    yield compiled
    gc.enable()  # the analyzer leaves it off


# ---- what the analyzer says ----------------------------------------------------------------------


def _analyze(directory: Path) -> tuple[set[int], dict[int, str], int]:
    """Has torch's analyzer compare the dumps in a directory.

    Returns:
        The ranks that it misses in some operation, those that it blames for a mismatch with the
        kind of it, and the number of operations.
    """
    from torch.distributed.flight_recorder import fr_trace

    result = directory.parent / "result"
    fr_trace.main([str(directory), "-o", str(result)])
    _, database = pickle.loads(result.read_bytes())
    missing: set[int] = set()
    blamed: dict[int, str] = {}
    for operation in database.collectives:
        missing |= operation.missing_ranks or set()
        for rank, found in (operation.mismatch_collectives or {}).items():
            blamed[rank] = found.type_of_mismatch.state.name
    return missing, blamed, len(database.collectives)


def _one_of_each() -> None:
    """Collectives, even and uneven, a group of some ranks, and messages in all directions."""
    rank, world = dist.get_rank(), dist.get_world_size()
    values = torch.arange(6.0).reshape(2, 3) + rank
    dist.all_reduce(values)
    dist.broadcast(values, 1)
    dist.reduce(values, 0)
    dist.all_gather([torch.zeros(2, 3) for _ in range(world)], values)
    dist.all_gather([torch.zeros(i + 1) for i in range(world)], torch.ones(rank + 1))
    dist.all_gather_into_tensor(torch.zeros(2 * world, 3), values)
    dist.reduce_scatter(torch.zeros(2, 3), [values] * world)
    dist.reduce_scatter_tensor(torch.zeros(2), torch.ones(2 * world))
    dist.gather(values, [torch.zeros(2, 3) for _ in range(world)] if rank == 0 else None)
    dist.scatter(values, [torch.ones(2, 3)] * world if rank == 0 else None)
    dist.all_to_all([torch.zeros(2) for _ in range(world)], [torch.ones(2)] * world)
    sent = [(rank + to) % 3 for to in range(world)]
    received = [(rank + source) % 3 for source in range(world)]
    dist.all_to_all_single(torch.zeros(sum(received)), torch.ones(sum(sent)), received, sent)
    dist.all_reduce(torch.eye(4).to_sparse())
    work = dist.all_reduce(torch.tensor(1.0), async_op=True)
    assert work is not None
    work.wait()
    some = dist.new_group([0, 2])
    if rank != 1:
        dist.all_reduce(torch.ones(5), group=some)
        dist.barrier(some)
    for shape in ((4,), (2, 2)):
        requests = [
            call(torch.ones(shape), peer)
            for peer in range(world)
            if peer != rank
            for call in (dist.isend, dist.irecv)
        ]
        for request in requests:
            assert request is not None
            request.wait()
    if rank == 0:
        for _ in range(1, world):
            dist.recv(torch.zeros(3))
    else:
        dist.send(torch.ones(3), 0)
    dist.barrier()


def _dump_one_of_each(directory: str) -> dict[str, Any]:
    _one_of_each()
    return hybridcomm.dump_flight_recorder(Path(directory, f"{_PREFIX}{dist.get_rank()}"))


def _edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    dump = pickle.loads(path.read_bytes())
    change(dump)
    path.write_bytes(pickle.dumps(dump))


def _forget_third(dump: dict[str, Any]) -> None:
    del dump["entries"][2]


def _other_size(dump: dict[str, Any]) -> None:
    dump["entries"][0]["input_sizes"] = [[2, 4]]


def _other_call(dump: dict[str, Any]) -> None:
    dump["entries"][0]["profiling_name"] = "gloo:broadcast"


def test_the_analyzer_matches_all_that_ranks_did_alike(recorded: RankPool, tmp_path: Path) -> None:
    directory = tmp_path / "dumps"
    directory.mkdir()
    dumps = recorded.run(3, _dump_one_of_each, str(directory))
    for rank, dump in enumerate(dumps):
        assert dump["version"] == "2.10"
        assert [entry["record_id"] for entry in dump["entries"]] == list(
            range(len(dump["entries"]))
        )
        assert {entry["state"] for entry in dump["entries"]} == {"completed"}
        ranks = {name: group["ranks"] for name, group in dump["pg_config"].items()}
        assert ranks.pop("0") == "[0, 1, 2]"
        assert ranks["0:0-1" if rank != 2 else "0:1-2"] == ("[0, 1]" if rank != 2 else "[1, 2]")
    missing, blamed, count = _analyze(directory)
    assert (missing, blamed) == (set(), {})
    # Messages are matched in pairs: twice six, and two to rank 0.
    assert count == 15 + 2 + 12 + 2

    # And what is not alike is found, by the same test. (Which ranks are blamed depends on where the
    # analyzer begins.)
    last = directory / f"{_PREFIX}2"
    good = last.read_bytes()
    for change, expected in (
        (_other_size, "SIZE_OR_SYNTAX_MISMATCH"),
        (_other_call, "COLLECTIVE_TYPE_MISMATCH"),
    ):
        last.write_bytes(good)
        _edit(last, change)
        _, blamed, _ = _analyze(directory)
        assert set(blamed.values()) == {expected}
    last.write_bytes(good)
    _edit(last, _forget_third)
    missing, _, _ = _analyze(directory)
    assert missing == {2}


# ---- entries -------------------------------------------------------------------------------------


def _entries_while_under_way() -> tuple[list[dict[str, Any]], float, float]:
    began_at = time.time_ns()
    dist.all_reduce(torch.ones(2, 3, dtype=torch.bfloat16))
    if dist.get_rank() == 0:
        work = dist.irecv(torch.zeros(4, 1, dtype=torch.int32), 1)
        late = dist.all_reduce(torch.ones(7), async_op=True)
        time.sleep(0.05)
        dump = hybridcomm.dump_flight_recorder()
        _store().set("dumped", "")
        assert late is not None
        assert work is not None
        late.wait()
        work.wait()
        active = hybridcomm.dump_flight_recorder(only_active=True)
        assert active["entries"] == []
    else:
        _store().wait(["dumped"], timedelta(seconds=30))
        dist.all_reduce(torch.ones(7))
        dist.send(torch.zeros(4, 1, dtype=torch.int32), 0)
        dump = hybridcomm.dump_flight_recorder()
    return dump["entries"], began_at, time.time_ns()


def _store() -> Store:
    store: Store = dist.distributed_c10d._get_default_store()
    return store


def test_entries_say_what_and_when(recorded: RankPool) -> None:
    (waiting, began_at, ended_at), (through, _, _) = recorded.run(2, _entries_while_under_way)
    first, receive, late = waiting
    assert first["profiling_name"] == "gloo:all_reduce"
    assert first["process_group"] == ("0", "default_pg")
    assert (first["collective_seq_id"], first["op_id"], first["is_p2p"]) == (1, 1, False)
    assert first["input_sizes"] == first["output_sizes"] == [[2, 3]]
    assert first["input_dtypes"] == first["output_dtypes"] == ["BFloat16"]
    assert first["timeout_ms"] == 30_000
    assert (first["state"], first["retired"]) == ("completed", True)
    times = [
        first[key]
        for key in ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
    ]
    assert began_at <= times[0] <= times[1] <= times[2] <= ended_at
    assert first["duration_ms"] == pytest.approx((times[2] - times[1]) / 1e6, abs=0.001)
    assert "frames" not in first

    assert receive["profiling_name"] == "gloo:recv 0<-1"
    assert receive["process_group"] == ("0:0-1", "default_pg")
    assert (receive["output_sizes"], receive["output_dtypes"]) == ([[4, 1]], ["Int"])
    assert (receive["p2p_seq_id"], receive["is_p2p"], receive["state"]) == (1, True, "scheduled")
    assert (late["collective_seq_id"], late["state"]) == (2, "scheduled")
    assert late["time_discovered_started_ns"] is None
    assert not late["retired"]

    assert through[2]["profiling_name"] == "gloo:send 1->0"
    assert through[2]["collective_seq_id"] == receive["collective_seq_id"]


def _frames() -> list[str]:
    dist.barrier()
    (entry,) = hybridcomm.dump_flight_recorder()["entries"]
    return [frame["name"] for frame in entry["frames"]]


def test_frames_are_there_if_asked_for(recorded: RankPool) -> None:
    for names in recorded.run(2, _frames, environment={"HYBRIDCOMM_FR_FRAMES": "1"}):
        assert {"_frames", "barrier"} <= set(names)


_SWITCHED = """
import os, torch, torch.distributed as dist, hybridcomm
hybridcomm.register()
def make():
    dist.init_process_group("hybridcomm", store=dist.HashStore(), rank=0, world_size=1)
os.environ["TORCH_FR_BUFFER_SIZE"] = "many"
try:
    make()
except ValueError as error:
    assert "TORCH_FR_BUFFER_SIZE='many'" in str(error), error
else:
    raise SystemExit("'many' was taken")
os.environ["TORCH_FR_BUFFER_SIZE"] = "{size}"
make()
for _ in range(5):
    dist.barrier()
entries = hybridcomm.dump_flight_recorder()["entries"]
assert [entry["record_id"] for entry in entries] == {expected}, entries
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("size", "expected"), [(0, []), (3, [2, 3, 4])])
def test_the_number_of_entries_is_the_user_s(
    recorded: RankPool, size: int, expected: list[int]
) -> None:
    script = _SWITCHED.format(size=size, expected=expected)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- after a failure -----------------------------------------------------------------------------


def _miss_the_third(culprit: int, message: bool) -> None:
    """All but one rank wait for it in vain, and so write their dumps; it writes its own."""
    for _ in range(2):
        dist.all_reduce(torch.ones(10))
    others = [str(rank) for rank in range(dist.get_world_size()) if rank != culprit]
    if rank_of_call() == culprit:
        _store().wait(others, timedelta(seconds=30))
        prefix = os.environ["TORCH_FR_DUMP_TEMP_FILE"]
        hybridcomm.dump_flight_recorder(f"{prefix}{culprit}")
        return
    try:
        if message:
            dist.recv(torch.ones(10), culprit)
        else:
            dist.all_reduce(torch.ones(10))
    except hybridcomm.CommTimeoutError:
        _store().set(str(rank_of_call()), "")
    else:
        raise AssertionError("it did not time out")


@pytest.mark.parametrize("message", [False, True])
def test_after_a_time_out_the_analyzer_names_who_did_not_call(
    recorded: RankPool, tmp_path: Path, message: bool
) -> None:
    directory = tmp_path / "dumps"
    directory.mkdir()
    recorded.run(
        3,
        _miss_the_third,
        1,
        message,
        group_timeout=0.5,
        environment={"TORCH_FR_DUMP_TEMP_FILE": str(directory / _PREFIX)},
    )
    assert len(list(directory.iterdir())) == 3
    missing, blamed, _ = _analyze(directory)
    assert (missing, blamed) == ({1}, {})
    _, last = pickle.loads((directory / f"{_PREFIX}0").read_bytes())["entries"][-2:]
    assert (last["state"], last["retired"]) == ("scheduled", True)


def _die_in_the_second(culprit: int, home: str) -> list[str]:
    dist.all_reduce(torch.ones(10))
    if rank_of_call() == culprit:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(10))
    except hybridcomm.PeerLostError:
        return sorted(str(path) for path in Path(home).rglob("*"))
    raise AssertionError("nobody was missed")


@pytest.mark.parametrize("asked", [True, False])
def test_a_lost_peer_leaves_a_file_only_if_asked(
    recorded: RankPool, tmp_path: Path, asked: bool
) -> None:
    variables = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    if asked:
        variables["TORCH_FR_DUMP_TEMP_FILE"] = str(tmp_path / _PREFIX)
    call = recorded.start(3, _die_in_the_second, 2, str(tmp_path), environment=variables)
    outcomes = call.outcomes()
    for rank in range(2):
        assert outcomes[rank].failure is None, outcomes[rank].failure
        own = str(tmp_path / f"{_PREFIX}{rank}")
        assert (own in outcomes[rank].value) == asked
    if not asked:
        assert outcomes[0].value == []
