"""Takes samples of several peers in turn, so that what changes with time falls on all alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .cases import Case
from .ratios import Quartiles, pair_ratios
from .team import Team

_WARM_UP_CALLS = 2
_MOST_CALLS = 1_000_000


@dataclass(frozen=True)
class Sampling:
    """How samples are taken.

    Args:
        pairs: Samples of each peer; the nth of all are taken one after the other.
        seconds: About how long a sample takes; that of one call if it is longer.
    """

    pairs: int = 15
    seconds: float = 0.02


@dataclass(frozen=True)
class Measured:
    """What one peer did in one case.

    Args:
        samples: Seconds of a call, one for each sample, or of a message where several make a call;
            empty if the peer cannot do it.
        calls: Calls in a sample.
        wrong: Elements of the result that were wrong, on all ranks together; None if they mean
            nothing.
        refused: Why the peer cannot do it; "" if it can.
    """

    samples: tuple[float, ...] = ()
    calls: int = 0
    wrong: int | None = None
    refused: str = ""

    @property
    def seconds(self) -> Quartiles:
        """Time of a call."""
        return pair_ratios(self.samples, [1.0] * len(self.samples))


@dataclass(frozen=True)
class Row:
    """A case, measured.

    Args:
        case: The case.
        peers: What each peer did, by name; the first is what the others are compared with.
    """

    case: Case
    peers: Mapping[str, Measured]

    def times_faster(self, peer: str) -> Quartiles | None:
        """How many times faster the first peer is than another.

        Args:
            peer: Name of the other.

        Returns:
            Quartiles of the ratios within pairs; None if one of the two cannot do it.
        """
        first, other = next(iter(self.peers.values())), self.peers[peer]
        if not first.samples or not other.samples:
            return None
        return pair_ratios(other.samples, first.samples)


def measure(
    case: Case,
    teams: Mapping[str, Team],
    refusals: Mapping[str, str],
    sampling: Sampling,
    progress: Callable[[str], None],
) -> Row:
    """Measures a case with all peers.

    Args:
        case: The case.
        teams: The peers, started, by name.
        refusals: For each peer why it cannot do the case, "" if it can.
        sampling: How samples are taken.
        progress: Called with what is being done.

    Returns:
        The row, in the order of the teams.

    Raises:
        TeamError: A peer failed; the message names it.
    """
    able = {name: team for name, team in teams.items() if not refusals[name]}
    wrong, calls = {}, {}
    for name, team in able.items():
        progress(f"{name}: {case}")
        wrong[name] = team.prepare(case)
        calls[name] = _calls(team, sampling.seconds)
    progress(str(case))
    samples: dict[str, list[float]] = {name: [] for name in able}
    names = list(able)
    for pair in range(sampling.pairs):
        # Each is first in turn: who comes after a slow one finds other caches than who comes first.
        turn = pair % len(names) if names else 0
        for name in names[turn:] + names[:turn]:
            samples[name].append(able[name].sample(calls[name]) / case.traits.messages)
    return Row(
        case,
        {
            name: Measured(tuple(samples[name]), calls[name], wrong[name])
            if name in able
            else Measured(refused=refusals[name])
            for name in teams
        },
    )


def _calls(team: Team, seconds: float) -> int:
    """How many calls take about so long."""
    calls = 1
    # A few calls tell little of how long many take: as many more as a tenth of a sample needs.
    while True:
        took = statistics.median(team.sample(calls) for _ in range(_WARM_UP_CALLS))
        if took * calls >= seconds / 10 or calls >= _MOST_CALLS:
            return max(1, min(round(seconds / took), _MOST_CALLS))
        calls *= 10
