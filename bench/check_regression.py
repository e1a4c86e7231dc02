"""Compares two runs of the benchmark by their ratios, and fails where one has become worse.

    python bench/check_regression.py BASELINE NEW [--tolerance 0.25]

Both are what `python -m hybridcomm bench --compare ... --json FILE` wrote. Absolute times say as
much of the machine, and of who else uses it, as of the code, so they are not looked at: what counts
is how many times faster the measured peer is than each of the others, within pairs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hybridcomm.benchmark.cases import Case
from hybridcomm.benchmark.ratios import Quartiles
from hybridcomm.benchmark.results import ResultsError, read_rows

Key = tuple[Case, str, str]  # of which the first peer is faster than the second


def ratios(path: Path) -> dict[Key, Quartiles]:
    """Reads the ratios of a run.

    Args:
        path: Its JSON.

    Returns:
        Times faster, for each case and pair of peers that can both do it.

    Raises:
        ResultsError: There is no such file, it holds something else, or it compares nothing.
    """
    found: dict[Key, Quartiles] = {}
    for row in read_rows(path):
        first, *others = row.peers
        for other in others:
            faster = row.times_faster(other)
            if faster is not None:
                found[row.case, first, other] = faster
    if not found:
        raise ResultsError(f"{path}: nothing is compared with anything; run bench with --compare")
    return found


def faults(
    baseline: dict[Key, Quartiles], new: dict[Key, Quartiles], tolerance: float
) -> list[str]:
    """Finds what has become worse, and what cannot be told.

    Args:
        baseline: Ratios as they were.
        new: Ratios as they are.
        tolerance: By which part a ratio may fall.

    Returns:
        A sentence for each.
    """
    sentences = []
    for key in {**baseline, **new}:
        case, first, other = key
        what = f"{case}, {case.world} ranks: {first} beside {other}"
        if key not in baseline:
            sentences.append(f"{what}: the baseline has nothing to compare with")
        elif key not in new:
            sentences.append(f"{what}: only the baseline has it")
        elif new[key].median < baseline[key].median * (1 - tolerance):
            sentences.append(f"{what}: {new[key]} as fast, was {baseline[key]}")
    return sentences


def main(argv: list[str]) -> int:
    """Runs the comparison.

    Args:
        argv: Arguments.

    Returns:
        0 if nothing has become worse, 1 if something has, 2 if a file cannot be used.
    """
    parser = argparse.ArgumentParser(description="Fails where a ratio has become worse.")
    parser.add_argument("baseline", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument(
        "--tolerance", type=float, default=0.25, help="by which part a ratio may fall (0.25)"
    )
    arguments = parser.parse_args(argv)
    try:
        baseline, new = ratios(arguments.baseline), ratios(arguments.new)
    except ResultsError as error:
        print(f"check_regression: {error}", file=sys.stderr)
        return 2
    found = faults(baseline, new, arguments.tolerance)
    print("\n".join(found) if found else f"{len(new)} ratios: none has become worse")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
