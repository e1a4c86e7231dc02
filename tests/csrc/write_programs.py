"""Writes the flat programs that the C++ tests and the driver's checks run.

    python tests/csrc/write_programs.py DIRECTORY

gives DIRECTORY/w<world>c<channels>/<collective>.<algorithm>.rank<rank> for every algorithm, for
worlds of 1 to 8 ranks on one and two channels. Needs no torch.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hybridcomm.programs import algorithms, build, collectives, verify
from hybridcomm.programs.flat import encode
from hybridcomm.programs.layout import Layout, collective_named

SHAPES = [(world, channels) for world in range(1, 9) for channels in (1, 2)] + [(64, 1)]


def write(directory: Path, world: int, channels: int) -> None:
    """Write every algorithm for one world size.

    Args:
        directory: Where to; made if it is not there.
        world: Number of ranks.
        channels: Number of channels.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for collective in collectives():
        # Not rank 0, so that a root that is mistaken for it shows.
        rooted = Layout(collective_named(collective), world, channels).rooted
        root = world // 2 if rooted else None
        for algorithm in algorithms(collective):
            program = build(collective, algorithm, world, channels=channels, root=root)
            for rank in range(world):
                path = directory / f"{collective}.{algorithm}.rank{rank}"
                path.write_bytes(encode(program.rank_program(rank)))
            if program.layout.reduces and world <= 8:
                lines = [f"{value}\n" for value in verify(program).reductions]
                (directory / f"{collective}.{algorithm}.expressions").write_text("".join(lines))


if __name__ == "__main__":
    for world, channels in SHAPES:
        write(Path(sys.argv[1]) / f"w{world}c{channels}", world, channels)
