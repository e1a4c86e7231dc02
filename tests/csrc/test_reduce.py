"""Reductions beyond what reduce_test checks itself: against torch, and how they are linked."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "tests" / "reduce_test"
OBJECTS = ROOT / "build" / "core" / "base"
NARROW = [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("built")]


@pytest.fixture(scope="module")
def built() -> None:
    """What make builds, it builds only if something changed."""
    done = subprocess.run(
        ["make", "-C", ROOT / "csrc", "../build/tests/reduce_test"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def run(*arguments: str, stdin: bytes = b"", isa: str | None = None) -> tuple[int, bytes]:
    """The program's exit status and output."""
    environment = {key: value for key, value in os.environ.items() if key != "HYBRIDCOMM_ISA"}
    if isa is not None:
        environment["HYBRIDCOMM_ISA"] = isa
    done = subprocess.run(
        [PROGRAM, *arguments], input=stdin, env=environment, stdout=subprocess.PIPE, timeout=60
    )
    return done.returncode, done.stdout


def short_name(dtype: torch.dtype) -> str:
    """As the program calls it."""
    return str(dtype).removeprefix("torch.")


def as_floats(data: bytes) -> torch.Tensor:
    """Its float32 numbers."""
    return torch.frombuffer(bytearray(data), dtype=torch.float32)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bits, or NaN in both."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[a.element_size()]
    nan = a.float().isnan() & b.float().isnan()
    return bool(((a.view(bits) == b.view(bits)) | nan).all())


@pytest.mark.parametrize("dtype", NARROW, ids=short_name)
def test_every_code_decodes_as_in_torch(dtype: torch.dtype) -> None:
    """All codes of a narrow float."""
    status, output = run("--decode", short_name(dtype))
    assert status == 0
    codes = torch.arange(256**dtype.itemsize, dtype=torch.int32)
    narrow = codes.to(torch.uint8 if dtype.itemsize == 1 else torch.uint16).view(dtype)
    ours, expected = as_floats(output), narrow.float()
    assert same(ours, expected)
    assert not same(ours.roll(1), expected)


@pytest.mark.parametrize("dtype", NARROW, ids=short_name)
def test_floats_encode_as_in_torch(dtype: torch.dtype) -> None:
    """Floats over the whole range in which torch and we agree.

    Beyond the largest float8 torch's result differs from ours by intent: we saturate.
    """
    generator = torch.Generator().manual_seed(7)
    bits = torch.randint(-(2**31), 2**31, (400_000,), generator=generator).to(torch.int32)
    usual = torch.randn(400_000, generator=generator) * 2.0 ** torch.arange(-20, 20).repeat(10_000)
    values = torch.cat([bits.view(torch.float32), usual, torch.tensor([0.0, -0.0, float("nan")])])
    if dtype.itemsize == 1:
        values = values[~(values.abs() > torch.finfo(dtype).max)]
    status, output = run("--encode", short_name(dtype), stdin=values.numpy().tobytes())
    assert status == 0
    ours = torch.frombuffer(bytearray(output), dtype=dtype)
    assert same(ours, values.to(dtype))
    assert not same(ours, (values * 1.01).to(dtype))


def test_the_environment_chooses_the_instruction_set() -> None:
    """HYBRIDCOMM_ISA is obeyed; unset or empty means the best there is."""
    assert run("--isa", isa="baseline") == (0, b"baseline\n")
    status, best = run("--isa")
    assert status == 0
    assert run("--isa", isa="") == (0, best)
    assert run("--isa", isa=best.decode().strip()) == (0, best)


@pytest.mark.parametrize("name", ["avx1024", "AVX2", " baseline"])
def test_a_wrong_instruction_set_is_an_error(name: str) -> None:
    """A mistyped name must not pass for a measurement of it."""
    status, message = run("--isa", isa=name)
    assert status == 3
    assert b"HYBRIDCOMM_ISA" in message


def shared_symbols(object_file: Path) -> list[str]:
    """Functions and data that the linker may merge with another object's."""
    names = subprocess.run(
        ["nm", "-C", "--defined-only", object_file], capture_output=True, text=True, check=True
    ).stdout
    return [line for line in names.splitlines() if line.split()[1] in "VvWwuUi"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="one instruction set, one table")
def test_no_code_for_newer_processors_can_replace_other_code(tmp_path: Path) -> None:
    """An inline function compiled for AVX-512 would be kept for everyone, and crash elsewhere."""
    planted = tmp_path / "planted.cpp"
    planted.write_text(
        '#pragma GCC target("avx2")\n'
        "inline int twice(int x) { return 2 * x; }\n"
        "int (*pointer)(int) = twice;\n"
    )
    subprocess.run(["g++", "-O2", "-c", planted, "-o", planted.with_suffix(".o")], check=True)
    assert shared_symbols(planted.with_suffix(".o")) != []
    for name in ["reduce_avx2.o", "reduce_avx512.o"]:
        assert shared_symbols(OBJECTS / name) == []
