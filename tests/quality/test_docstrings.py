"""Every public name says what it does; every exported one, what it takes, gives and raises."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quality.docstrings import exports, faults_in

PACKAGE = Path(__file__).resolve().parents[2] / "hybridcomm"

GOOD = '''"""A module."""

def send(buffer: bytes, *peers: int, tag: int = 0) -> int:
    """Sends.

    Args:
        buffer: What to send.
        *peers: To whom.
        tag: Any number.

    Returns:
        How many bytes.

    Raises:
        ValueError: No peers.
    """
    if not peers:
        raise ValueError("peers")
    return len(buffer)

class Shape:
    """A shape.

    Args:
        width: In elements.
    """

    width: int

    def area(self) -> int:
        """Elements in all."""
        return self.width
'''


@pytest.mark.parametrize(
    ("good", "bad", "fault"),
    [
        ('"""A module."""\n', "", "planted.py: no docstring"),
        ('    """Elements in all."""\n', "", "planted.py: Shape.area: no docstring"),
        ("        tag: Any number.\n", "", "planted.py: send: tag is not under Args"),
        ("        *peers: To whom.\n", "", "planted.py: send: peers is not under Args"),
        ("        width: In elements.\n", "", "planted.py: Shape: width is not under Args"),
        ("    Returns:\n        How many bytes.\n", "", "planted.py: send: no Returns"),
        ("    Raises:\n        ValueError: No peers.\n", "", "planted.py: send: no Raises"),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, good: str, bad: str, fault: str) -> None:
    """The checker finds each kind of fault, and nothing where there is none."""
    path = tmp_path / "planted.py"
    exported = frozenset({"send", "Shape"})
    path.write_text(GOOD)
    assert faults_in(path, "planted.py", exported) == []
    assert good in GOOD
    path.write_text(GOOD.replace(good, bad))
    assert faults_in(path, "planted.py", exported) == [fault]


def test_the_package_has_no_fault() -> None:
    """Our own package passes."""
    exported = exports(PACKAGE)
    assert exported[PACKAGE / "errors.py"] >= {"CommError", "PeerLostError"}
    faults = []
    for path, names in sorted(exported.items()):
        faults += faults_in(path, str(path.relative_to(PACKAGE.parent)), names)
    assert faults == []
