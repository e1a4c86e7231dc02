"""csrc/ keeps its layers, waits in one place, and says at the top of each file what it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.utils.cpp_extension import include_paths

from tests.quality.csrc_rules import faults_in

CSRC = Path(__file__).resolve().parents[2] / "csrc"
FILES = sorted(path for suffix in ("*.h", "*.cpp", "*.cu", "*.cuh") for path in CSRC.rglob(suffix))


@pytest.mark.parametrize(
    ("path", "line", "fault"),
    [
        ("base/x.cpp", '#include "transports/link.h"', "base/ may not include"),
        ("executor/x.h", '#include "transports/shm/region.h"', "executor/ may not include"),
        ("executor/x.h", '#include "engine/engine.h"', "executor/ may not include"),
        ("transports/tcp/x.h", '#include "transports/shm/region.h"', "transports/ may not include"),
        ("engine/x.cpp", "#include <torch/extension.h>", "may not include <torch/extension.h>"),
        ("engine/x.cpp", "#include <c10/util/Exception.h>", "may not include <c10/"),
        ("executor/x.h", "#include <cuda_runtime.h>", "may not include <cuda_runtime.h>"),
        ("base/x.cpp", '#include "wait.h"', "no path below csrc/"),
        ("engine/x.cpp", "while (observe(word) == 0) {}", "a loop on an atomic"),
        ("engine/x.cpp", "while (!flag.load(order)) continue;", "a loop on an atomic"),
        ("engine/x.cpp", "for (;;) { if (load_acquire(w)) break; }", "a loop on an atomic"),
        ("engine/x.cpp", "for (; load_acquire(w) == 0;) {}", "a loop on an atomic"),
        ("engine/x.cpp", "while (true) if (observe(w)) break;", "a loop on an atomic"),
        ("engine/x.cpp", "do { n += 1; } while (observe(w) == 0);", "a loop on an atomic"),
        ("engine/x.cpp", "std::this_thread::sleep_for(1ms);", "sleep_for"),
        ("engine/x.cpp", "std::condition_variable ready;", "condition_variable"),
        ("torch/types.h", "#pragma once", "hides torch's own"),
    ],
)
def test_a_planted_fault_is_found(path: str, line: str, fault: str) -> None:
    """The checker finds each kind of fault, once."""
    begin = "// A file.\n" + ("#pragma once\n" if path.endswith(".h") else "")
    reserved = {"torch/types.h"}
    assert faults_in(path.replace("types", "ours"), begin, CSRC, reserved) == []
    (found,) = faults_in(path, begin + line + "\n", CSRC, reserved)
    assert fault in found


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("#pragma once\n", "does not begin with a comment"),
        ("// A header.\nint x;\n", "no #pragma once"),
    ],
)
def test_a_planted_beginning_is_found(text: str, fault: str) -> None:
    """The checker reads how a file begins."""
    (found,) = faults_in("base/x.h", text, CSRC)
    assert fault in found


@pytest.mark.parametrize(
    "line",
    [
        "if (observe(word) == 0) return false;",
        "for (int rank = 0; rank < world; ++rank) total += load_relaxed(counts[rank]);",
        "while (!compare_exchange(word, expected, desired)) {}",
        "while (at < size) { at += load_relaxed(step); }",
        "usleep(10);  // not a wait: the driver's own pause",
        "// while (observe(word) == 0) sched_yield();",
        '#include "transports/shm/region.h"',
    ],
)
def test_what_is_allowed_passes(line: str) -> None:
    """Reading an atomic, retrying an exchange and walking over ranks are no waits."""
    assert faults_in("engine/x.cpp", f"// A file.\n{line}\n", CSRC) == []


def test_csrc_keeps_the_rules() -> None:
    """Our own sources pass."""
    roots = [Path(root) for root in include_paths()]
    ours = [str(path.relative_to(CSRC)) for path in FILES]
    reserved = {path for path in ours if any((root / path).exists() for root in roots)}
    faults = []
    for path, name in zip(FILES, ours, strict=True):
        faults += faults_in(name, path.read_text(encoding="utf-8"), CSRC, reserved)
    assert faults == []
