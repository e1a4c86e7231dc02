"""What all tests share: the pool of rank processes and the options of the test run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.ranks import RankPool


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--backend`, `--implementation` and `--strength`."""
    parser.addoption(
        "--backend",
        default="hybridcomm",
        help="backend of the process-group tests; 'gloo' shows whether a test or ours is wrong",
    )
    parser.addoption(
        "--implementation",
        choices=("compiled", "reference", "both"),
        help="which implementation of hybridcomm the process-group tests run; without it both, "
        "but for tests marked compiled_alone",
    )
    parser.addoption(
        "--strength",
        type=int,
        choices=(0, 2, 3),
        default=2,
        help="how many values (type, size, layout, ...) of the comparison with the reference must "
        "meet in some case that is run; 0 runs all cases, which takes hours",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives tests that use the pool one run per implementation that is asked for."""
    if "pool" not in metafunc.fixturenames:
        return
    asked = metafunc.config.getoption("--implementation")
    if asked is None:
        alone = "compiled" in metafunc.fixturenames or metafunc.definition.get_closest_marker(
            "compiled_alone"
        )
        asked = "compiled" if alone or metafunc.config.getoption("--backend") == "gloo" else "both"
    both = asked == "both"
    implementations = ["compiled", "reference"] if both else [asked]
    metafunc.parametrize("pool", implementations, indirect=True, scope="session")


@pytest.fixture(scope="session")
def pool(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    """Rank processes for the whole session; at its end, nothing of them may be left."""
    implementation = getattr(request, "param", "compiled")
    with RankPool(request.config.getoption("--backend"), implementation=implementation) as ranks:
        yield ranks


@pytest.fixture
def ours(pool: RankPool) -> RankPool:
    """The pool, for tests of what no other backend promises."""
    if pool.backend != "hybridcomm":
        pytest.skip(f"{pool.backend} does not promise this")
    return pool


@pytest.fixture
def compiled(ours: RankPool) -> RankPool:
    """The pool, for tests of what only the compiled implementation has."""
    if ours.implementation != "compiled":
        pytest.skip(f"the {ours.implementation} implementation has none of this")
    return ours


_CASE_COUNT = pytest.StashKey[list[int]]()


@pytest.fixture(scope="session")
def case_count(request: pytest.FixtureRequest) -> list[int]:
    """Cases run and cases there are, of the comparison with the reference; tests add to both."""
    return request.config.stash.setdefault(_CASE_COUNT, [0, 0])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Says how much of the comparison with the reference was run."""
    run, possible = config.stash.get(_CASE_COUNT, [0, 0])
    if possible:
        terminalreporter.write_line(f"comparison with the reference: {run} of {possible} cases run")
