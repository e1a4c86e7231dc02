# What csrc/torch binds.
from datetime import timedelta
from typing import TypedDict

from torch._C._distributed_c10d import Backend, ErrorType, Store

import hybridcomm.process_group.options

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
    # What torch reads and sets: _timeout, group_name, global_ranks_in_group.
    class Options(Backend.Options): ...

    @property
    def options(self) -> Options: ...
    # What joins each pair of ranks.
    @property
    def shape(self) -> _Shape: ...
    def _set_default_timeout(self, timeout: timedelta) -> None: ...
    # What the calls that this thread makes ask for beyond the group's options; gives back what
    # held before. An empty name, or a time-out of zero, asks for nothing.
    @staticmethod
    def exchange_call_preferences(
        algorithm: str, deterministic: bool, timeout: timedelta
    ) -> tuple[str, bool, timedelta]: ...
    # How the group failed; SUCCESS if it did not.
    def get_error(self) -> ErrorType: ...

def create_backend(
    store: Store,
    rank: int,
    size: int,
    timeout: timedelta,
    group: str,
    global_ranks: list[int],
    options: hybridcomm.process_group.options.Options,
) -> ProcessGroupHybridcomm: ...

# The torch built against, the compiler, the instruction set in use.
def build_info() -> dict[str, str]: ...

# The instruction set that reductions use: "baseline", "avx2" or "avx512".
def isa() -> str: ...

# Everything in the flight recorder, pickled as torch's; or only what has not succeeded.
def dump_flight_recorder(only_active: bool) -> bytes: ...

# Validates a program in its flat form and says what it is. Raises ValueError.
def parse_program(flat: bytes) -> _ProgramSummary: ...
