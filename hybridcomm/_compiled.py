"""The one way to the compiled part: loads `hybridcomm._C`, or says why it cannot be loaded."""

from __future__ import annotations

from types import ModuleType

_HOW_TO_BUILD = (
    "Build it from a source tree with `make build`, or with `pip install --no-build-isolation .` "
    "in an environment that has torch, g++ (11 or later), make and Python's headers."
)


def built_for() -> str | None:
    """Tells what was built.

    Returns:
        The version of torch that the compiled part was built against; None if nothing is compiled.
    """
    try:
        from hybridcomm._build_info import TORCH_VERSION
    except ImportError:
        return None
    return TORCH_VERSION


def load() -> ModuleType:
    """Imports `hybridcomm._C` after a check that it was built against the torch that runs.

    Returns:
        The module `hybridcomm._C`.

    Raises:
        ImportError: It was not built, or was built against another torch, or cannot be loaded. The
            message says which, and what to do.
    """
    import torch

    built = built_for()
    if built is None:
        raise ImportError(f"hybridcomm was installed without its compiled part. {_HOW_TO_BUILD}")
    if str(torch.__version__) != built:
        raise ImportError(
            f"hybridcomm was built against torch {built}, but torch {torch.__version__} is "
            f"running, whose C++ classes may be laid out differently. {_HOW_TO_BUILD}"
        )
    try:
        from hybridcomm import _C
    except ImportError as error:
        raise ImportError(
            f"hybridcomm's compiled part cannot be loaded: {error}. {_HOW_TO_BUILD}"
        ) from error
    return _C
