"""Runs PyTorch's own process-group suite and compares with what Gloo passes.

    python tests/conformance/run.py [--backend gloo] [-k EXPRESSION] [--everything]

Each test starts four ranks; the whole takes about a quarter of an hour on two cores. Only the tests
that Gloo passes are run, unless --everything asks for those that it fails or skips too. The result
is a table of both; the exit status is 1 if a test that passes on Gloo fails or is skipped.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CLASS = "TestDistBackendWithSpawn"


def baseline() -> list[str]:
    """Names the tests that Gloo passes."""
    lines = (HERE / "gloo-baseline.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def run_suite(backend: str, names: list[str], keyword: str | None) -> dict[str, str]:
    """Runs tests of the suite; all if no names are given.

    Returns:
        What became of each: "passed", "failed" or "skipped".
    """
    scratch = Path(tempfile.mkdtemp(prefix="conformance-"))
    report = scratch / "report.xml"
    suite = HERE / "distributed_suite.py"
    targets = [f"{suite}::{CLASS}::{name}" for name in names] or [str(suite)]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--timeout", "300"]
    command += ["-p", "no:cacheprovider", f"--junitxml={report}", "--rootdir", str(ROOT), *targets]
    if keyword:
        command += ["-k", keyword]
    environment = {**os.environ, "CONFORMANCE_BACKEND": backend, "TEMP_DIR": str(scratch)}
    try:
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
        return read_report(report)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read_report(report: Path) -> dict[str, str]:
    """Reads pytest's JUnit report.

    Raises:
        SystemExit: There is none: pytest itself failed.
    """
    if not report.exists():
        sys.exit("pytest wrote no report")
    results = {}
    for case in ElementTree.parse(report).iter("testcase"):
        marks = {child.tag for child in case}
        outcome = "failed" if marks & {"failure", "error"} else "passed"
        results[case.attrib["name"]] = "skipped" if "skipped" in marks else outcome
    return results


def table(results: dict[str, str], passes_on_gloo: set[str], backend: str) -> list[str]:
    """Lists the tests with both results, and counts them."""
    width = max(map(len, results), default=0)
    lines = [f"{'test':{width}}  gloo       {backend}"]
    for name, outcome in sorted(results.items()):
        gloo = "passed" if name in passes_on_gloo else "not passed"
        lines.append(f"{name:{width}}  {gloo:10} {outcome}")
    counts = {kind: list(results.values()).count(kind) for kind in ("passed", "failed", "skipped")}
    summary = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    return [*lines, "", f"{backend}: {summary}; gloo passes {len(passes_on_gloo)} of the suite"]


def shortfalls(results: dict[str, str], expected: list[str]) -> list[str]:
    """Names the tests that pass on Gloo and did not here."""
    return [name for name in expected if results.get(name) != "passed"]


def main() -> int:
    """Runs the command.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="hybridcomm")
    parser.add_argument("-k", dest="keyword", help="as pytest's")
    parser.add_argument("--everything", action="store_true", help="also what Gloo does not pass")
    arguments = parser.parse_args()
    expected = baseline()
    results = run_suite(
        arguments.backend, [] if arguments.everything else expected, arguments.keyword
    )
    print("\n".join(table(results, set(expected), arguments.backend)))
    if arguments.keyword:
        expected = [name for name in expected if name in results]
    missing = shortfalls(results, expected)
    for name in missing:
        print(f"passes on gloo, not here: {name} ({results.get(name, 'not run')})")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
