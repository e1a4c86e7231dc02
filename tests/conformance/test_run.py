"""The comparison with Gloo finds what it is for: a test that fails, is skipped or is not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.run import baseline, read_report, shortfalls, table

_REPORT = """<testsuites><testsuite>
<testcase classname="T" name="test_good"/>
<testcase classname="T" name="test_bad"><failure message="no"/></testcase>
<testcase classname="T" name="test_broken"><error message="no"/></testcase>
<testcase classname="T" name="test_idle"><skipped message="no"/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_read(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(_REPORT)
    results = read_report(report)
    assert results == {
        "test_good": "passed",
        "test_bad": "failed",
        "test_broken": "failed",
        "test_idle": "skipped",
    }
    names = [*results, "test_lost"]
    assert shortfalls(results, names) == ["test_bad", "test_broken", "test_idle", "test_lost"]
    assert table(results, set(results), "ours")[-1].startswith("ours: 1 passed, 2 failed, 1 skip")


def test_no_report_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no report"):
        read_report(tmp_path / "none.xml")


def test_the_baseline_is_gloo_s() -> None:
    names = baseline()
    assert len(names) == len(set(names)) == 92
    assert all(name.startswith("test_") for name in names)
