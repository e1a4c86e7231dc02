"""Data-parallel training. Run it with: torchrun --nproc-per-node 2 examples/ddp_torchrun.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Runs on every rank; torchrun says which one this is."""
    dist.init_process_group("hybridcomm")  # the one word to change in a script that has "gloo"
    torch.manual_seed(dist.get_rank())  # every rank draws its own data; DDP shares rank 0's weights
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))
    optimizer = torch.optim.Adam(model.parameters())

    for step in range(1, 201):
        inputs = torch.randn(32, 64)
        targets = inputs[:, :8].sum(1, keepdim=True)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # averages the gradients over all ranks
        optimizer.step()
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
