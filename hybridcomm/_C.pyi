# What csrc/torch/bindings.cpp binds.
from datetime import timedelta
from typing import TypedDict

from torch._C._distributed_c10d import Backend, Store

from hybridcomm.process_group.options import Options as _Options

class _BuildInfo(TypedDict):
    torch: str
    compiler: str
    isa: str

class _Shape(TypedDict):
    channels: int
    slots: int
    slot_bytes: int

class _ProgramSummary(TypedDict):
    collective: str
    world: int
    rank: int
    root: int | None
    channels: int
    inputs: int
    outputs: int
    temporaries: int
    steps: int
    min_slots: int
    deterministic: bool
    one_sided: bool

class ProcessGroupHybridcomm(Backend):
    class Options(Backend.Options): ...

    @property
    def options(self) -> Options: ...
    @property
    def shape(self) -> _Shape: ...

def create_backend(
    store: Store,
    rank: int,
    size: int,
    timeout: timedelta,
    group: str,
    global_ranks: list[int],
    options: _Options,
) -> ProcessGroupHybridcomm: ...
def build_info() -> _BuildInfo: ...
def isa() -> str: ...
def parse_program(flat: bytes) -> _ProgramSummary: ...
