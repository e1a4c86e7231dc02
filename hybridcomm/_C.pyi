# What csrc/torch binds.
from datetime import timedelta

from torch._C._distributed_c10d import Backend, Store

from hybridcomm.process_group.options import Options

def create_backend(
    store: Store,
    rank: int,
    size: int,
    timeout: timedelta,
    group: str,
    global_ranks: list[int],
    options: Options,
) -> Backend: ...
def build_info() -> dict[str, str]: ...
def isa() -> str: ...
