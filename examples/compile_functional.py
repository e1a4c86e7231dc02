"""A compiled collective. Run: torchrun --nproc-per-node 2 examples/compile_functional.py"""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor


def standardized(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Brings the columns of rows that lie on all ranks to mean 0 and deviation 1.

    Args:
        rows: This rank's rows, of shape (number, columns).
        group: The ranks.

    Returns:
        Its rows again, of the same shape.
    """
    # Both are under way at once; each is waited for where it is used.
    sums = funcol.all_reduce(rows.sum(0), "sum", group)
    squares = funcol.all_reduce(rows.square().sum(0), "sum", group)
    count = len(rows) * group.size()
    mean = sums / count
    variance = squares / count - mean.square()
    result: Tensor = (rows - mean) / variance.sqrt()
    return result


def main() -> None:
    """Runs on every rank; torchrun says which one this is."""
    dist.init_process_group("hybridcomm")
    group = dist.group.WORLD
    assert group is not None
    torch.manual_seed(dist.get_rank())
    rows = 3 * torch.randn(1000, 4) + 5

    compiled = torch.compile(standardized, fullgraph=True)  # one graph, collectives and all
    result = compiled(rows, group)
    difference = (result - standardized(rows, group)).abs().max().item()

    moments = torch.stack([result.mean(0), result.square().mean(0)])
    dist.all_reduce(moments, dist.ReduceOp.AVG)
    if dist.get_rank() == 0:
        print(f"mean {moments[0].abs().max():.3f}, variance {moments[1].mean():.3f}")
        print(f"greatest difference between compiled and not: {difference:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
