"""torch.distributed.checkpoint saves and loads over hybridcomm, also on another number of ranks."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tests.process_group.fits.small import batch, loss_of, network
from tests.support.ranks import RankPool


def _trained(steps: int, seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A sharded network that has made some steps, the same on every number of ranks."""
    model = network()
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for step in range(steps):
        loss_of(model, batch(seed + step, 0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def _state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    parameters, moments = get_state_dict(model, optimizer)
    return {"model": parameters, "optimizer": moments}


def _facts(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, list[float]]:
    """All that a checkpoint holds, put together from all ranks."""
    state = _state(model, optimizer)
    named = dict(state["model"])
    for name, moments in state["optimizer"]["state"].items():
        named |= {f"{name} {key}": value for key, value in moments.items()}
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).flatten().tolist()
        for name, value in named.items()
    }


def _save(where: Path) -> dict[str, list[float]]:
    model, optimizer = _trained(steps=3, seed=0)
    save(_state(model, optimizer), checkpoint_id=where)
    return _facts(model, optimizer)


def _save_while_training(where: Path) -> dict[str, list[float]]:
    group = dist.new_group()  # of its own: the thread that saves talks while training does
    model, optimizer = _trained(steps=3, seed=0)
    facts = _facts(model, optimizer)
    saving = async_save(_state(model, optimizer), checkpoint_id=where, process_group=group)
    for step in range(5):
        loss_of(model, batch(50 + step, dist.get_rank())).backward()
        optimizer.step()
    assert isinstance(saving, Future)
    saving.result()
    assert _facts(model, optimizer) != facts
    return facts


def _load(where: Path) -> dict[str, list[float]]:
    model, optimizer = _trained(steps=1, seed=100)
    state = _state(model, optimizer)
    load(state, checkpoint_id=where)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=StateDictOptions(strict=True),
    )
    return _facts(model, optimizer)


@pytest.mark.parametrize("asynchronously", [False, True])
def test_four_ranks_save_and_two_load(ours: RankPool, tmp_path: Path, asynchronously: bool) -> None:
    saved = ours.run(4, _save_while_training if asynchronously else _save, tmp_path)
    loaded = ours.run(2, _load, tmp_path)
    assert len(saved[0]) == 24  # six parameters, each with two moments and a count of steps
    assert all(facts == saved[0] for facts in (*saved, *loaded))


def _whole() -> torch.Tensor:
    return torch.arange(77.0).reshape(11, 7)


def _save_tensor(where: Path) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    tensor = distribute_tensor(_whole(), mesh, [Shard(1), Shard(0)])
    save({"tensor": tensor, "number": 7}, checkpoint_id=where)


def _load_tensor(where: Path) -> tuple[bool, int]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tensor = distribute_tensor(torch.zeros(11, 7), mesh, [Shard(0)])
    state: dict[str, Any] = {"tensor": tensor, "number": 0}
    load(state, checkpoint_id=where)
    whole = state["tensor"].redistribute(mesh, [Replicate()]).to_local()
    return torch.equal(whole, _whole()), state["number"]


def test_a_tensor_sharded_twice_is_loaded_sharded_otherwise(ours: RankPool, tmp_path: Path) -> None:
    ours.run(4, _save_tensor, tmp_path)
    assert ours.run(3, _load_tensor, tmp_path) == [(True, 7)] * 3
