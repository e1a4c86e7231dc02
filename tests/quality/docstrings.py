"""Checks docstrings without importing anything.

Every public module, class, function and method has one. A function or class that a package exports
(`__all__` of an `__init__.py`) also documents its parts, in Google's style: each parameter under
`Args`, a result under `Returns` or `Yields`, and under `Raises` if it has a `raise` statement.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

_SECTION = re.compile(
    r"^(Args|Attributes|Returns|Yields|Raises):\n((?:[ \t]+.*\n|\n)*)", re.MULTILINE
)
_ENTRY = re.compile(r"^    \*{0,2}(\w+)", re.MULTILINE)


def faults_in(path: Path, name: str, exported: frozenset[str] = frozenset()) -> list[str]:
    """Lists what is missing in one file.

    Args:
        path: A Python file.
        name: What to call it in the faults.
        exported: Names defined in it whose docstrings must have their parts.

    Returns:
        One line for each fault.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    faults = [] if ast.get_docstring(tree) else [f"{name}: no docstring"]
    for qualified, node in _public(tree, ""):
        where = f"{name}: {qualified}"
        text = ast.get_docstring(node)
        if not text:
            faults.append(f"{where}: no docstring")
        elif qualified in exported:
            faults += [f"{where}: {fault}" for fault in _missing_parts(node, text + "\n")]
    return faults


def exports(package: Path) -> dict[Path, frozenset[str]]:
    """Finds where the names in the `__all__` of all `__init__.py` files are defined.

    Args:
        package: Directory of a package.

    Returns:
        For each file, the exported names that it defines.
    """
    listed = set()
    for init in package.rglob("__init__.py"):
        for node in ast.walk(ast.parse(init.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                listed |= set(ast.literal_eval(node.value))
    defined = {}
    for path in package.rglob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        defined[path] = (
            frozenset(node.name for node in body if isinstance(node, Definition)) & listed
        )
    return defined


def _public(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, Definition]]:
    for child in node.body:
        if isinstance(child, Definition) and not child.name.startswith("_"):
            if any(ast.unparse(decorator) == "overload" for decorator in child.decorator_list):
                continue
            yield prefix + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from _public(child, f"{prefix}{child.name}.")


def _missing_parts(node: Definition, text: str) -> Iterator[str]:
    sections = {match[1]: set(_ENTRY.findall(match[2])) for match in _SECTION.finditer(text)}
    documented = sections.get("Args", set()) | sections.get("Attributes", set())
    for parameter in _parameters(node):
        if parameter not in documented:
            yield f"{parameter} is not under Args"
    if isinstance(node, ast.ClassDef):
        return
    returns = "None" if node.returns is None else ast.unparse(node.returns)
    if returns not in ("None", "NoReturn") and not {"Returns", "Yields"} & sections.keys():
        yield "no Returns"
    if _raises(node) and "Raises" not in sections:
        yield "no Raises"


def _parameters(node: Definition) -> list[str]:
    """Parameters of a function or of a class's constructor; fields of a class without one."""
    if isinstance(node, ast.ClassDef):
        constructor = [f for f in node.body if isinstance(f, Definition) and f.name == "__init__"]
        if constructor:
            return _parameters(constructor[0])
        fields = [f.target for f in node.body if isinstance(f, ast.AnnAssign)]
        names = [f.id for f in fields if isinstance(f, ast.Name)]
    else:
        a = node.args
        rest = [extra for extra in (a.vararg, a.kwarg) if extra is not None]
        names = [p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs, *rest)]
    return [name for name in names if not name.startswith("_") and name not in ("self", "cls")]


def _raises(node: ast.AST) -> bool:
    """Whether the node itself raises something new; functions inside it do not count."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise) and child.exc is not None:
            return True
        if not isinstance(child, Definition) and _raises(child):
            return True
    return False
