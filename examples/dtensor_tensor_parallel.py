"""A layer split over ranks. Run: torchrun --nproc-per-node 2 examples/dtensor_tensor_parallel.py"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def main() -> None:
    """Runs on every rank; torchrun says which one this is."""
    dist.init_process_group("hybridcomm")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tensor",))

    torch.manual_seed(0)  # the same weights and the same data everywhere
    whole = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))
    # The first layer's outputs are split over the ranks, and with them the second one's inputs: one
    # all_reduce, after the second, is all that is exchanged.
    split = parallelize_module(
        copy.deepcopy(whole), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )

    inputs = torch.randn(32, 64)
    expected, outputs = whole(inputs), split(inputs)
    expected.square().mean().backward()
    outputs.square().mean().backward()

    differences = [(outputs - expected).abs().max().item()]
    for ours, theirs in zip(split.parameters(), whole.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        gradient = ours.grad.full_tensor()  # type: ignore[attr-defined]
        differences.append((gradient - theirs.grad).abs().max().item())
    if dist.get_rank() == 0:
        shape = tuple(split[0].weight.to_local().shape)  # type: ignore[index]
        print(f"rank 0 has {shape} of the first layer's (256, 64) weights")
        print(f"greatest difference from one process: {max(differences):.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
