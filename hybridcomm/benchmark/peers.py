"""Who can be measured, by the names that the command line takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hybridcomm.programs.registry import algorithms, collectives

from .cases import Case, Form
from .driver_team import CopyTeam, DriverTeam, driver_is_built
from .team import CHECKOUT, RankTeam, Start, Team

OURS = "hybridcomm"
_BACKENDS = {OURS: "hybridcomm", "gloo": "gloo", "torch": "fake"}
_MPIS = ("openmpi", "mpich", "impi")
_MPI_ENVIRONMENTS = CHECKOUT / "build" / "peers"
_BOUNDS = {"bound": "nontemporal", "bound-plain": "plain"}
DRIVER = "driver"
NAMES = (*_BACKENDS, *_MPIS, DRIVER, *_BOUNDS)

# Each MPI's own word for: more ranks than cores is fine, and do not tie ranks to cores.
_MPI_ARGUMENTS = {
    "openmpi": ("--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"),
    "mpich": ("-bind-to", "none"),
    "impi": (),
}
_MPI_VARIABLES = {
    # Containers run as root.
    "openmpi": {
        f"{prefix}_ALLOW_RUN_AS_ROOT{suffix}": "1"
        for prefix in ("OMPI", "PRTE")
        for suffix in ("", "_CONFIRM")
    },
    "mpich": {},
    "impi": {"I_MPI_PIN": "0", "I_MPI_FABRICS": "shm"},
}
_MPI_MOVES_ONLY = ("float16", "bfloat16")


class PeerError(ValueError):
    """There is no such peer here; the message says why, and how to get it."""


@dataclass(frozen=True)
class Peer:
    """Something to measure.

    Args:
        name: As the command line takes it: one of `NAMES`; ours and the driver also with an
            algorithm, `hybridcomm/ring`, which they then use wherever a collective has it.
    """

    name: str

    def __post_init__(self) -> None:
        if self.kind not in NAMES or (self.algorithm and self.kind not in (OURS, DRIVER)):
            raise PeerError(
                f"there is no peer {self.name!r}; there are {', '.join(NAMES)}, and "
                f"{OURS}/ALGORITHM and {DRIVER}/ALGORITHM"
            )
        if self.algorithm and not _having(self.algorithm):
            raise PeerError(f"{self.name}: no collective has an algorithm {self.algorithm!r}")

    @property
    def kind(self) -> str:
        """The name without the algorithm."""
        return self.name.partition("/")[0]

    @property
    def algorithm(self) -> str:
        """The algorithm, "" if it is the peer's own choice."""
        return self.name.partition("/")[2]

    def refuses(self, case: Case) -> str:
        """Whether the peer cannot do what a case asks for.

        Args:
            case: The case.

        Returns:
            Why not; "" if it can.
        """
        if self.kind in _MPIS:
            if case.traits.reduces and case.dtype in _MPI_MOVES_ONLY:
                return f"MPI reduces no {case.dtype}"
            if case.reduction == "avg":
                return "MPI has no average"
            if case.collective == "reduce_scatter" and case.form is Form.IN_PLACE:
                return "MPI leaves the part elsewhere"
        if self.kind == DRIVER and (why := DriverTeam.refuses(case)):
            return why
        if self.kind in _BOUNDS:
            return CopyTeam.refuses(case)
        return self._lacks_algorithm(case)

    def _lacks_algorithm(self, case: Case) -> str:
        if not self.algorithm or case.collective in _having(self.algorithm):
            return ""
        return f"{case.collective} has no {self.algorithm}"

    def team(self, world: int) -> Team:
        """Makes the peer's processes, not yet started.

        Args:
            world: Number of ranks.

        Returns:
            The team.

        Raises:
            PeerError: The peer is not installed.
        """
        if self.kind in (DRIVER, *_BOUNDS) and not driver_is_built():
            raise PeerError(f"{self.name} needs the C++ driver; build it with: make driver")
        if self.kind in _BOUNDS:
            return CopyTeam(self.name, world, _BOUNDS[self.kind])
        if self.kind == DRIVER:
            return DriverTeam(self.name, world, self.algorithm)
        if self.kind in _MPIS:
            return RankTeam(self.name, world, self._mpi_start(world))
        return RankTeam(self.name, world, self._backend_start(world))

    def _backend_start(self, world: int) -> Callable[[Path, str], Start]:
        def start(folder: Path, socket: str) -> Start:
            store = str(folder / "store")
            name = _BACKENDS[self.kind]
            commands = [
                _rank(sys.executable, socket, "process_group", name, str(rank), str(world), store)
                for rank in range(world)
            ]
            return Start(commands, self._forced())

        return start

    def _mpi_start(self, world: int) -> Callable[[Path, str], Start]:
        binaries = _MPI_ENVIRONMENTS / self.kind / "bin"
        if not (binaries / "mpiexec").exists():
            raise PeerError(f"{self.name} is not installed; install it with: make bench-peers")

        def start(folder: Path, socket: str) -> Start:
            command = [str(binaries / "mpiexec"), *_MPI_ARGUMENTS[self.kind], "-n", str(world)]
            command += _rank(str(binaries / "python"), socket, "mpi")
            return Start([command], _MPI_VARIABLES[self.kind])

        return start

    def _forced(self) -> dict[str, str]:
        """Variables that make ours use the algorithm wherever a collective has it."""
        if not self.algorithm:
            return {}
        chosen = ",".join(
            f"{collective}={self.algorithm}" for collective in _having(self.algorithm)
        )
        return {"HYBRIDCOMM_ALGORITHM": chosen}


def _having(algorithm: str) -> list[str]:
    """The collectives that have an algorithm."""
    return [
        collective
        for collective in collectives()
        if algorithm in algorithms(collective, one_sided=False)
    ]


def _rank(python: str, socket: str, caller: str, *arguments: str) -> list[str]:
    return [python, "-m", "hybridcomm.benchmark.rank", socket, caller, *arguments]
