"""Checks the rules that csrc/ keeps and no compiler knows: layers, waiting, and how files begin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_ENGINE = ("base/", "codecs/", "transports/", "executor/", "engine/")
# What each directory may include, by prefix. The executor sees links, not what carries them.
ALLOWED = {
    "base": ("base/",),
    "codecs": ("base/", "codecs/"),
    "transports": ("base/", "transports/link.h"),
    "executor": ("base/", "codecs/", "transports/link.h", "executor/"),
    "cuda": (
        "base/",
        "codecs/",
        "transports/link.h",
        "executor/",
        "transports/cuda_peer/",
        "cuda/",
    ),
    "engine": _ENGINE,
    "driver": (*_ENGINE, "driver/"),
    "torch": (*_ENGINE, "torch/"),
}
# Headers of others that only some may see: who may, and their names.
_FOREIGN = (
    ("torch/", re.compile(r"torch/|ATen/|c10/|pybind11/|Python\.h")),
    (("cuda/", "base/atomic.h"), re.compile(r"cuda/|cuda\w*\.h|cooperative_groups")),
)

_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ATOMIC_READ = re.compile(r"\b(?:observe|load_relaxed|load_acquire|load|test_and_set)\s*\(")
_LOOP = re.compile(r"\b(while|for)\b")
# What only a waiter says.
_WAITER = re.compile(
    r"\b(cpu_relax|yield_core|sched_yield|_mm_pause|__builtin_ia32_pause|__nanosleep|usleep|nanosleep"
    r"|clock_nanosleep|sleep_for|sleep_until|SYS_futex|condition_variable\w*)\b"
)
# On a line that looks like a wait for another rank and is none; the reason follows the colon.
_EXCUSE = re.compile(r"// not a wait: \w")


def faults_in(path: str, text: str, csrc: Path, reserved: Iterable[str] = ()) -> list[str]:
    """Lists the rules that one file breaks.

    Args:
        path: Its path below csrc/.
        text: Its contents.
        csrc: Where included files must lie.
        reserved: Paths of torch's own headers, which ours must not hide.

    Returns:
        One line for each fault.
    """
    faults = [*_beginnings(path, text), *_includes(path, text, csrc)]
    if path in reserved:
        faults.append(f"{path}: hides torch's own <{path}>")
    # The driver's parent process watches ranks from outside, as a test does.
    if not path.startswith(("base/wait.", "driver/")):
        faults += _waits(path, text)
    return faults


def _beginnings(path: str, text: str) -> Iterator[str]:
    if not text.startswith(("// ", "/* ")):
        yield f"{path}: does not begin with a comment that says what it is"
    if path.endswith(".h") and "#pragma once\n" not in text and "_loops.h" not in path:
        yield f"{path}: no #pragma once"


def _includes(path: str, text: str, csrc: Path) -> Iterator[str]:
    layer = path.split("/")[0]
    allowed: tuple[str, ...] = ALLOWED.get(layer, ())
    if layer == "transports" and path.count("/") == 2:
        allowed = (*allowed, path.rsplit("/", 1)[0] + "/")
    for match in _INCLUDE.finditer(text):
        bracket, name = match.groups()
        where = f"{path}:{_line(text, match.start(2))}"
        if bracket == "<":
            for owners, foreign in _FOREIGN:
                if foreign.match(name) and not path.startswith(owners):
                    yield f"{where}: may not include <{name}>"
        elif not (csrc / name).is_file():
            yield f'{where}: "{name}" is no path below csrc/'
        elif not name.startswith(allowed):
            yield f'{where}: {layer}/ may not include "{name}"'


def _waits(path: str, text: str) -> Iterator[str]:
    code = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    lines = text.split("\n")
    for match in _WAITER.finditer(code):
        line = _line(code, match.start())
        if not _EXCUSE.search(lines[line - 1]):
            yield f"{path}:{line}: {match[1]}: wait through base/wait.h"
    for match in _LOOP.finditer(code):
        line = _line(code, match.start())
        if not _EXCUSE.search(lines[line - 1]) and _spins(match[1], code[match.end() :]):
            yield f"{path}:{line}: a loop on an atomic: wait through base/wait.h"


def _spins(keyword: str, rest: str) -> bool:
    """Whether a loop's condition reads an atomic, or it has none and its body reads one.

    The condition of a `do` loop is found as that of its `while`.
    """
    head = _enclosed(rest, "(", ")")
    condition = head.split(";")[1] if keyword == "for" and head.count(";") == 2 else head
    if keyword == "for" and head.count(";") != 2:
        return False
    if _ATOMIC_READ.search(condition):
        return True
    endless = condition.strip("() \n") in ("", "true", "1")
    after = rest[rest.find(head) + len(head) :] if head else rest
    body = _enclosed(after, "{", "}") if after.lstrip().startswith("{") else after.split(";")[0]
    return endless and bool(_ATOMIC_READ.search(body))


def _enclosed(text: str, opening: str, closing: str) -> str:
    """The text from the first opening character to the one that closes it."""
    start = text.find(opening)
    depth = 0
    for at in range(max(start, 0), len(text)):
        depth += (text[at] == opening) - (text[at] == closing)
        if depth == 0:
            return text[start : at + 1]
    return ""


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
