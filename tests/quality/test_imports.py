"""Python imports point down, and what must stay light stays light."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quality.imports import import_graph, layer_faults, reached

PACKAGE = Path(__file__).resolve().parents[2] / "hybridcomm"


def plant(root: Path, files: dict[str, str]) -> dict[str, frozenset[str]]:
    """Writes a package named `planted` and reads its imports."""
    for name, text in files.items():
        path = root / "planted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return import_graph(root / "planted")


@pytest.mark.parametrize(
    "line",
    [
        "from planted.reference import run",
        "from planted import reference",
        "from ..reference import run",
        "from .. import reference",
        "import planted.reference.run",
        "def build():\n    from planted.reference import run",
    ],
)
def test_a_planted_import_upwards_is_found(tmp_path: Path, line: str) -> None:
    """In whatever way it is written; the same downwards is no fault."""
    upwards = plant(tmp_path / "up", {"programs/ir.py": line})
    assert layer_faults(upwards, "planted")
    downwards = plant(tmp_path / "down", {"process_group/ir.py": line})
    assert layer_faults(downwards, "planted") == []


def test_a_planted_indirect_import_is_found(tmp_path: Path) -> None:
    """Through another module, and not when only a type checker follows it."""
    files = {
        "programs/ir.py": "from planted import helper",
        "helper.py": "def f():\n    import torch.distributed",
    }
    graph = plant(tmp_path / "one", files)
    assert reached(graph, "planted.programs")["torch.distributed"] == "planted.helper"
    files["helper.py"] = "if TYPE_CHECKING:\n    import torch"
    assert "torch" not in reached(plant(tmp_path / "two", files), "planted.programs")


def test_a_planted_import_in_a_parent_is_found(tmp_path: Path) -> None:
    """Importing a.b.c runs a/__init__.py too."""
    graph = plant(
        tmp_path, {"programs/ir.py": "import planted.x.y", "x/__init__.py": "import torch"}
    )
    assert "torch" in reached(graph, "planted.programs")


def test_imports_point_down() -> None:
    """Our own package passes."""
    assert layer_faults(import_graph(PACKAGE), "hybridcomm") == []


@pytest.mark.parametrize(
    ("part", "heavy"),
    [
        ("hybridcomm.programs", "torch"),
        ("hybridcomm.programs", "numpy"),
        ("hybridcomm.reference", "hybridcomm._C"),
        ("hybridcomm.reference", "hybridcomm._compiled"),
        ("hybridcomm.cli", "torch"),
        ("hybridcomm.process_group", "hybridcomm.demo"),
    ],
)
def test_what_a_part_must_never_import(part: str, heavy: str) -> None:
    """Programs are pure Python, and the reference can run where nothing is compiled."""
    graph = import_graph(PACKAGE)
    assert any(name == part or name.startswith(part + ".") for name in graph)
    found = reached(graph, part)
    assert {name: by for name, by in found.items() if f"{name}.".startswith(f"{heavy}.")} == {}
