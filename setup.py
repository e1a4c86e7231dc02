"""Builds the compiled part: a core that knows nothing of torch, and one extension that does.

Environment:
    HYBRIDCOMM_BUILD: "full" (default), or "reference" to install with nothing compiled.
    HYBRIDCOMM_CXXFLAGS: flags to add at the end of every compilation, for instance -Werror.
    MAX_JOBS: compilations at a time; the number of usable cores by default.
    CXX: the C++ compiler.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
CORE = Path("build/core/libhybridcomm.a")
MODES = ("full", "reference")


def build_mode() -> str:
    """Reads HYBRIDCOMM_BUILD."""
    mode = os.environ.get("HYBRIDCOMM_BUILD") or "full"
    if mode not in MODES:
        sys.exit(f"HYBRIDCOMM_BUILD={mode} is none of {', '.join(MODES)}")
    return mode


def write_build_info(package: Path, torch_version: str | None) -> None:
    """Records what the compiled part was built against, for the check before it is loaded."""
    recorded = f'"{torch_version}"' if torch_version else "None"
    (package / "_build_info.py").write_text(
        '"""Written by setup.py: the torch version that hybridcomm._C was built against."""\n\n'
        f"TORCH_VERSION: str | None = {recorded}\n",
        encoding="utf-8",
    )


class ReferenceBuild(build_py):
    """Installs the Python files, and records that nothing was compiled."""

    def run(self) -> None:
        """Overrides what a full build may have left in the working tree."""
        super().run()
        root = ROOT if self.editable_mode else Path(self.build_lib)
        write_build_info(root / "hybridcomm", None)


def build_core() -> None:
    """Builds the static core with csrc/Makefile."""
    jobs = os.environ.get("MAX_JOBS") or str(len(os.sched_getaffinity(0)))
    # Without the flags of a make that may be calling us: its job server is not open to us.
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS")}
    subprocess.run(["make", "-C", ROOT / "csrc", f"-j{jobs}", "lib"], env=environment, check=True)


def full_build() -> dict[str, Any]:
    """Returns the arguments of setup() that compile the extension."""
    try:
        import torch
        from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths
    except ImportError as error:
        sys.exit(
            f"hybridcomm is compiled against torch, which cannot be imported here: {error}\n"
            "Install torch first and build with `pip install --no-build-isolation`, or set "
            "HYBRIDCOMM_BUILD=reference to install with nothing compiled."
        )
    python_headers = sysconfig.get_path("include")
    if not (Path(python_headers) / "Python.h").exists():
        sys.exit(f"Python's headers (python3-dev) are missing: no Python.h in {python_headers}")

    class Build(BuildExtension):
        """Builds the core, then the extension, then records the torch version."""

        def finalize_options(self) -> None:
            super().finalize_options()
            # Objects survive from one editable install to the next: pip's own place is temporary.
            self.build_temp = str(ROOT / "build" / f"torch-{sys.implementation.cache_tag}")

        def run(self) -> None:
            build_core()
            super().run()
            root = ROOT if self.inplace else Path(self.build_lib)
            write_build_info(root / "hybridcomm", str(torch.__version__))

    extension = CppExtension(
        "hybridcomm._C",
        sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("csrc/torch/*.cpp")),
        include_dirs=[str(ROOT / "csrc")],
        extra_objects=[str(ROOT / CORE)],
        depends=[str(ROOT / CORE), *(str(path) for path in ROOT.glob("csrc/**/*.h"))],
        extra_compile_args=[
            *("-O3", "-std=c++20", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wextra"),
            # Against Python's own -g: ten times the size, of which nearly all is torch's templates.
            "-g0",
            # As system headers, so that the warnings above are about our own code.
            *(f"-isystem{path}" for path in (*include_paths(), python_headers)),
            # In the command line, so that the objects of another torch are never reused.
            f'-DHYBRIDCOMM_TORCH_VERSION="{torch.__version__}"',
            *shlex.split(os.environ.get("HYBRIDCOMM_CXXFLAGS", "")),
        ],
    )
    return {"ext_modules": [extension], "cmdclass": {"build_ext": Build}}


def reference_build() -> dict[str, Any]:
    """Returns the arguments of setup() that compile nothing."""
    return {"cmdclass": {"build_py": ReferenceBuild}}


setup(**(reference_build() if build_mode() == "reference" else full_build()))
