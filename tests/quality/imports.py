"""Reads who imports whom in the package, without importing anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

# From top to bottom; a part may import what is below it. What is not listed may be imported by all.
LAYERS = (
    ("demo", "info_command", "benchmark"),
    ("process_group", "ddp", "fsdp", "pipeline", "parallel"),
    ("collectives", "point_to_point"),
    ("calling", "arrays"),
    ("reference",),
    ("plan",),
    ("programs",),
    ("codecs", "kernels"),
)


def import_graph(package: Path) -> dict[str, frozenset[str]]:
    """Reads all imports but those for type checkers only; those inside functions count.

    Args:
        package: Directory of a package.

    Returns:
        For each module of the package, by full name, the full names that it imports.
    """
    graph = {}
    for path in package.rglob("*.py"):
        parts = list(path.relative_to(package.parent).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        if is_package:
            parts.pop()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        home = parts if is_package else parts[:-1]
        graph[".".join(parts)] = frozenset(_imported(tree, home))
    return graph


def _imported(node: ast.AST, home: list[str]) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            start = home[: len(home) - child.level + 1] if child.level else []
            base = ".".join([*start, *filter(None, [child.module])])
            yield base
            # `from package import module`
            yield from (f"{base}.{alias.name}" for alias in child.names)
        yield from _imported(child, home)


def reached(graph: Mapping[str, frozenset[str]], start: str) -> dict[str, str]:
    """Follows imports.

    Args:
        graph: What `import_graph` returned.
        start: A module or package; all its modules are starting points.

    Returns:
        What is imported, directly or by others, with the module that imports it.
    """
    found: dict[str, str] = {}
    open_ends = [name for name in graph if name == start or name.startswith(start + ".")]
    seen = set(open_ends)
    while open_ends:
        module = open_ends.pop()
        for name in graph[module]:
            found.setdefault(name, module)
            # Importing a.b.c runs a and a.b too.
            parts = name.split(".")
            for upto in range(1, len(parts) + 1):
                parent = ".".join(parts[:upto])
                if parent in graph and parent not in seen:
                    seen.add(parent)
                    open_ends.append(parent)
    return found


def layer_faults(graph: Mapping[str, frozenset[str]], package: str) -> list[str]:
    """Lists imports that point up.

    Args:
        graph: What `import_graph` returned.
        package: Name of the package.

    Returns:
        One line for each fault.
    """
    height = {part: -level for level, parts in enumerate(LAYERS) for part in parts}

    def part_of(name: str) -> str | None:
        parts = name.split(".")
        return parts[1] if len(parts) > 1 and parts[0] == package and parts[1] in height else None

    faults = []
    for module, names in graph.items():
        own = part_of(module)
        for name in names:
            other = part_of(name)
            if own and other and height[other] > height[own]:
                faults.append(f"{module} imports {name}, which is above it")
    return sorted(faults)
