"""Training with sharded parameters. Run: torchrun --nproc-per-node 2 examples/fsdp2_torchrun.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def main() -> None:
    """Runs on every rank; torchrun says which one this is."""
    dist.init_process_group("hybridcomm")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))

    torch.manual_seed(0)  # every rank begins with the same weights, and keeps its part of them
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)  # gathered before its layer runs, freed afterwards
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters())  # its state is sharded as well

    torch.manual_seed(1 + rank)  # every rank draws its own data
    for step in range(1, 201):
        inputs = torch.randn(32, 64)
        targets = inputs[:, :8].sum(1, keepdim=True)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # reduce-scatter: each rank gets the average of its part
        optimizer.step()
        if step % 50 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.3f}")

    parts = [p.to_local() for p in model.parameters() if isinstance(p, DTensor)]
    here = sum(part.numel() for part in parts)
    total = sum(parameter.numel() for parameter in model.parameters())
    for turn in range(world):
        if turn == rank:
            print(f"rank {rank} keeps {here} of {total} parameters", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
